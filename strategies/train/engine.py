"""Protocol between the training loop and a technique, and code that techniques share.

A technique owns its backward pass and its update, because pipeline schedules and DeepSpeed do. The
loop calls these methods and never asks which technique it has.
"""

import importlib
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from strategies.plan.catalog import TECHNIQUES, engine_path
from strategies.plan.planner import Plan
from strategies.plan.spec import TrainSpec
from strategies.train.init import Source
from strategies.train.mesh import Mesh
from strategies.train.models.loss import Measure, token_loss_sum
from strategies.train.models.network import Network
from strategies.train.models.transformer import Transformer

State = dict[str, dict[str, Tensor]]  # "model" and "optimizer", then by global name


class Batch(NamedTuple):
    """One micro-batch of one rank, on its device."""

    inputs_BT: Tensor  # tokens; or images, (B, 1, pixels)
    labels_BT: Tensor
    documents_BT: Tensor | None = None  # document of each token; None: not distinguished

    def at(self, positions: Tensor) -> "Batch":
        """Return the tokens at some positions of every sample; document numbers stay complete."""
        return Batch(self.inputs_BT[:, positions], self.labels_BT[:, positions], self.documents_BT)


class HeldBytes(NamedTuple):
    """Bytes that this rank holds from step to step."""

    weights: int
    gradients: int
    optimizer: int


class Engine(Protocol):
    """Technique of training."""

    @property
    def runs_ahead(self) -> bool:
        """True if the device computes a step while the host already issues the next one."""

    def setup(self, spec: TrainSpec, plan: Plan, mesh: Mesh, source: Source) -> None:
        """Build the model, spread it over the mesh, and give it its initial weights."""

    def forward_backward(self, micro_batches: Sequence[Batch], divisor: float) -> Tensor:
        """Compute the gradient of the step's loss; return this rank's share of that loss, 0-d.

        The loss is the token sum over all ranks' micro-batches, divided by `divisor`: the valid
        tokens of the whole step, over the loss scale. The shares of all ranks add up to it.
        """

    def clip(self, max_norm: float, loss_scale: float) -> Tensor:
        """Divide the gradient by `loss_scale`, then scale that of the whole model to at most
        `max_norm`.

        Returns its norm before the second scaling, 0-d. A gradient that is not finite may stay
        unchanged.
        """

    def step(self, learning_rate: float) -> None:
        """Update the weights once and free the gradient."""

    def skip(self) -> None:
        """Free the gradient; weights and optimizer stay unchanged."""

    def broken_weights(self, *, updated: bool) -> list[str]:
        """Return this rank's weights whose gradient is not finite, by global name.

        With `updated` the gradient has been used and freed: it has left its mark on the weights.
        """

    def evaluate(self, micro_batch: Batch, measure: Measure) -> Tensor:
        """Return this rank's share of a measure, 0-d or 1-d, without a gradient.

        Pipeline ranks without the last stage return 0-d zeros.
        """

    def held(self) -> HeldBytes:
        """Return the bytes that this rank holds now."""

    def state(self) -> State:
        """Return the live tensors of weights and optimizer; a checkpoint is read into them in
        place."""

    def load(self, state: State) -> None:
        """Take over the tensors that were read into `state`."""

    def close(self) -> None:
        """Release everything that must not outlive the process group."""


def engine_for(plan: Plan) -> Engine:
    """Return the technique of a plan."""
    if plan.strategy not in TECHNIQUES:
        known = ", ".join(TECHNIQUES)
        raise ValueError(f"strategy {plan.strategy} cannot run yet; known are: {known}")
    module, _, name = engine_path(plan.strategy, plan.layout).partition(":")
    make: Callable[[], Engine] = getattr(importlib.import_module(module), name)
    return make()


@torch.no_grad()
def copy_state(source: State, target: State) -> None:
    """Copy tensors by name, unless they are already the same."""
    for part, tensors in target.items():
        for name, tensor in tensors.items():
            if tensor is not source[part][name]:
                tensor.copy_(source[part][name])


def measure_of(
    module: Callable[..., Tensor], model: Network, batch: Batch, measure: Measure
) -> Tensor:
    """Return a measure of a micro-batch that passes `module`, which runs `model`.

    A text model computes its loss itself, so that its logits never exist all at once.
    """
    if measure is token_loss_sum and isinstance(model, Transformer):
        return module(batch.inputs_BT, batch.documents_BT, batch.labels_BT)
    return measure(module(batch.inputs_BT, batch.documents_BT), batch.labels_BT)


def sum_of(shares: list[Tensor]) -> Tensor:
    """Return the sum of 0-d tensors; a single one is returned as it is."""
    return shares[0] if len(shares) == 1 else torch.stack(shares).sum()
