"""Optimizer steps of all ranks: both passes, clipping, the guards, the update.

Loss and gradient norm of a step tell whether it may stand. On a CPU they are read before the
update. On a GPU that would empty the queue of kernels in every step, so they are copied to pinned
memory and read while the passes of the next step compute: a broken step then ends the run before
another update, and before anything is evaluated or saved.
"""

import math
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from strategies.plan.learning_rate import learning_rate
from strategies.plan.run_directory import Action
from strategies.plan.spec import TrainSpec
from strategies.train.checkpoints.checkpoint import Progress
from strategies.train.data.batches import TrainingData
from strategies.train.engine import Engine
from strategies.train.guards import require_finite_gradient, require_finite_loss, require_no_spike
from strategies.train.mesh import Mesh
from strategies.train.precision import LossScale
from strategies.train.transfer import HostCopy
from strategies.train.watching.phases import Phase, phase


class Agreement(NamedTuple):
    """Values that all ranks know after a step's only small reduction."""

    loss: float
    grad_norm: float
    asked: frozenset[Action]
    """Requests to any rank."""


class Step(NamedTuple):
    """Step that all ranks took, with its values."""

    agreed: Agreement
    learning_rate: float
    skipped: bool
    """True if float16's gradient overflowed, so that the weights stayed unchanged."""
    progress: Progress
    """Progress of the run after this step."""
    valid_tokens: int
    """Valid tokens of all ranks."""
    data_time_s: float
    time_s: float
    """Time of the whole step; for values that are read late, since the previous step's were."""


class UnreadStep(NamedTuple):
    """Step whose values nobody has looked at yet."""

    values: HostCopy
    share: Tensor
    """Share of the loss on this rank, 0-d."""
    scale: LossScale
    learning_rate: float
    valid_tokens: int
    data_time_s: float
    began: float


class Steps:
    """Steps of a run, taken one after another.

    `progress` counts all steps taken, but knows the losses only of those that have been read.
    """

    def __init__(
        self,
        engine: Engine,
        data: TrainingData,
        progress: Progress,
        *,
        spec: TrainSpec,
        mesh: Mesh,
        before_update: Callable[[], None],
    ) -> None:
        self.engine, self.data, self.progress = engine, data, progress
        self.spec, self.mesh, self.before_update = spec, mesh, before_update
        # The scale of float16's next step depends on this one's gradient. A delayed gradient does
        # not yet show in the weights, by which a broken one would be found.
        self.reads_late = (
            engine.runs_ahead
            and not progress.loss_scale.dynamic
            and spec.parallelism.gradient_delay == 0
        )
        self.unread: UnreadStep | None = None
        self.last_ended = 0.0

    def take(self, request: Action | None) -> list[Step]:
        """Take the next step; return the steps whose values have become known.

        `request` is the request to this rank. Raises Diverged if a guard finds one of them broken;
        this step's update is then not made.
        """
        began, engine, training = time.perf_counter(), self.engine, self.spec.training
        micro_batches, valid_tokens = self.data.step(self.progress.samples_seen)
        data_time_s, scale = self.data.time_s, self.progress.loss_scale
        share = engine.forward_backward(micro_batches, valid_tokens / scale.value) / scale.value
        known = self.read()
        norm = engine.clip(training.max_grad_norm, scale.value)
        self.progress = self.progress.after(samples=training.global_batch_size, tokens=valid_tokens)
        rate = learning_rate(training, self.progress.step)
        self.unread = UnreadStep(
            HostCopy(add_up(share, norm, request, self.mesh)),
            *(share, scale, rate, valid_tokens, data_time_s, began),
        )
        self.data.prepare(self.progress.samples_seen)  # while a GPU computes
        if not self.reads_late:
            known = self.read()
        self.before_update()
        with phase(Phase.OPTIMIZER):
            if any(step.skipped for step in known):
                engine.skip()
            else:
                engine.step(rate)
        if not self.reads_late:
            self.last_ended = time.perf_counter()
            known = [step._replace(time_s=self.last_ended - began) for step in known]
        return known

    def read(self) -> list[Step]:
        """Return the last step if its values have not been read yet. Raises Diverged."""
        if self.unread is None:
            return []
        taken, self.unread = self.unread, None
        agreed, number = agreement(taken.values.read()), self.progress.step
        guards, scale = self.spec.guards, taken.scale
        skipped = scale.may_skip and not math.isfinite(agreed.grad_norm)
        require_finite_loss(agreed.loss, own_share=taken.share, step=number, mesh=self.mesh)
        if not skipped:
            require_finite_gradient(
                agreed.grad_norm,
                engine=self.engine,
                step=number,
                mesh=self.mesh,
                scale=scale,
                updated=self.reads_late,
            )
        require_no_spike(agreed.loss, self.progress.recent_losses, guards=guards, step=number)
        self.progress = self.progress.judged(loss=agreed.loss, skipped=skipped, guards=guards)
        since, self.last_ended = max(taken.began, self.last_ended), time.perf_counter()
        return [
            Step(
                agreed,
                taken.learning_rate,
                skipped,
                self.progress,
                taken.valid_tokens,
                taken.data_time_s,
                time_s=self.last_ended - since,
            )
        ]


def add_up(share: Tensor, norm: Tensor, request: Action | None, mesh: Mesh) -> Tensor:
    """Return the sum over ranks of the shares of the loss, their mean norm, and one number for each
    kind of request: requests to one rank are sent to all in the same reduction."""
    requests = torch.zeros(len(Action), dtype=torch.float64, device=mesh.device)
    if request is not None:
        requests[list(Action).index(request)].fill_(1.0)
    values = torch.stack([share.detach().double(), norm.detach().double() / mesh.world_size])
    return mesh.sum(torch.cat([values, requests]))


def agreement(values: list[float]) -> Agreement:
    """Return the content of `add_up`'s result."""
    loss, grad_norm, *asked = values
    requests = (action for action, ranks in zip(Action, asked, strict=True) if ranks > 0)
    return Agreement(loss, grad_norm, frozenset(requests))
