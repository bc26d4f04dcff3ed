"""The protocol between the loop and a technique, and what techniques share.

A technique owns its backward pass and its update, because pipeline schedules and DeepSpeed do.
The loop calls these eight methods and never asks which technique it has.
"""

import importlib
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from strategies.catalog import TECHNIQUES
from strategies.mesh import Mesh
from strategies.spec import Strategy, TrainSpec

State = dict[str, dict[str, Tensor]]  # "model" and "optimizer", then by global name


class Batch(NamedTuple):
    """One micro-batch of one rank, on its device."""

    inputs_BT: Tensor
    labels_BT: Tensor


class Engine(Protocol):
    """One technique of training."""

    def setup(self, model: nn.Module, spec: TrainSpec, mesh: Mesh) -> None:
        """Take the initialised model and spread it over the mesh."""

    def forward_backward(self, micro_batches: Sequence[Batch], valid_tokens: int) -> Tensor:
        """Leave the gradient of the step's loss; return this rank's share of that loss, 0-d.

        The loss is the token sum over all ranks' micro-batches, divided by `valid_tokens`, the
        valid tokens of the whole step. The shares of all ranks add up to it.
        """

    def clip(self, max_norm: float) -> Tensor:
        """Scale the gradient of the whole model to at most `max_norm`; its norm before, 0-d."""

    def step(self, learning_rate: float) -> None:
        """Update the weights once and forget the gradient."""

    def evaluate(self, micro_batch: Batch) -> Tensor:
        """This rank's share of the token loss sum, 0-d, without a gradient."""

    def state(self) -> State:
        """The live tensors of weights and optimizer; a checkpoint is read into them in place."""

    def load(self, state: State) -> None:
        """Take over what was read into `state`."""

    def close(self) -> None:
        """Let go of what must not outlive the process group."""


def engine_for(strategy: Strategy) -> Engine:
    """The technique behind a strategy."""
    if strategy not in TECHNIQUES:
        raise ValueError(f"strategy {strategy} cannot run yet; there is: {', '.join(TECHNIQUES)}")
    module, _, name = TECHNIQUES[strategy].engine.partition(":")
    make: Callable[[], Engine] = getattr(importlib.import_module(module), name)
    return make()


@torch.no_grad()
def copy_state(source: State, target: State) -> None:
    """Copy tensors by name, where they are not already the same."""
    for part, tensors in target.items():
        for name, tensor in tensors.items():
            if tensor is not source[part][name]:
                tensor.copy_(source[part][name])
