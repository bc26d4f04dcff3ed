"""One optimizer step of all ranks: both passes, clipping, the guards, the update."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from strategies.plan.learning_rate import learning_rate
from strategies.plan.run_directory import Action
from strategies.plan.spec import TrainSpec
from strategies.train.checkpoints.checkpoint import Progress
from strategies.train.engine import Batch, Engine
from strategies.train.guards import require_finite_gradient, require_finite_loss, require_no_spike
from strategies.train.mesh import Mesh
from strategies.train.watching.phases import Phase, phase


class Agreement(NamedTuple):
    """Values that all ranks know after a step's only small reduction."""

    loss: float
    grad_norm: float
    stop: bool
    checkpoint: bool
    profile: bool
    snapshot: bool


class Step(NamedTuple):
    """Step that all ranks took."""

    agreed: Agreement
    learning_rate: float
    skipped: bool
    """True if float16's gradient overflowed, so that the weights stayed unchanged."""


def take_step(
    engine: Engine,
    micro_batches: list[Batch],
    valid_tokens: int,
    progress: Progress,
    request: Action | None,
    *,
    spec: TrainSpec,
    mesh: Mesh,
) -> Step:
    """Take the step after `progress`. Raises Diverged, before any weight changes, if a guard stops
    it.

    `valid_tokens` are those of all ranks, `request` is the request to this rank.
    """
    step, scale = progress.step + 1, progress.loss_scale
    share = engine.forward_backward(micro_batches, valid_tokens / scale.value) / scale.value
    norm = engine.clip(spec.training.max_grad_norm, scale.value)
    agreed = agree(share, norm, request, mesh)
    skipped = scale.may_skip and not math.isfinite(agreed.grad_norm)
    require_finite_loss(agreed.loss, own_share=share, step=step, mesh=mesh)
    if not skipped:
        require_finite_gradient(agreed.grad_norm, engine=engine, step=step, mesh=mesh, scale=scale)
    require_no_spike(agreed.loss, progress.recent_losses, guards=spec.guards, step=step)
    rate = learning_rate(spec.training, step)
    with phase(Phase.OPTIMIZER):
        if skipped:
            engine.skip()
        else:
            engine.step(rate)
    return Step(agreed, rate, skipped)


def agree(share: Tensor, norm: Tensor, request: Action | None, mesh: Mesh) -> Agreement:
    """Add up the shares of the loss; requests to one rank are sent to all in the same reduction."""
    requests = [float(request is action) for action in Action]
    values = torch.cat(
        [
            torch.stack([share.detach().double(), norm.detach().double() / mesh.world_size]),
            torch.tensor(requests, dtype=torch.float64, device=mesh.device),
        ]
    )
    loss, grad_norm, *asked = mesh.sum(values).tolist()
    by_action = dict(zip(Action, asked, strict=True))
    return Agreement(
        loss=loss,
        grad_norm=grad_norm,
        stop=by_action[Action.STOP] > 0,
        checkpoint=by_action[Action.CHECKPOINT] > 0,
        profile=by_action[Action.PROFILE] > 0,
        snapshot=by_action[Action.SNAPSHOT] > 0,
    )
