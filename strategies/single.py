"""One rank that holds everything."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_

from strategies.engine import Batch, State, copy_state
from strategies.loss import token_loss_sum
from strategies.mesh import Mesh
from strategies.optimizer import (
    build_optimizer,
    gradient_norm,
    optimizer_state,
    set_learning_rate,
)
from strategies.spec import TrainSpec


class SingleEngine:
    """The whole model, gradient and optimizer state on one rank."""

    def setup(self, model: nn.Module, spec: TrainSpec, mesh: Mesh) -> None:
        self.model = model
        self.parameters = list(model.named_parameters())
        self.optimizer = build_optimizer(model.parameters(), spec.training)

    def forward_backward(self, micro_batches: Sequence[Batch], valid_tokens: int) -> Tensor:
        shares = []
        for inputs_BT, labels_BT in micro_batches:
            loss = token_loss_sum(self.model(inputs_BT), labels_BT) / valid_tokens
            torch.autograd.backward(loss)
            shares.append(loss.detach())
        return sum_of(shares)

    def clip(self, max_norm: float) -> Tensor:
        parameters = list(self.model.parameters())
        norm = gradient_norm([p.grad for p in parameters if p.grad is not None])
        clip_grads_with_norm_(parameters, max_norm, norm)
        return norm

    def step(self, learning_rate: float) -> None:
        set_learning_rate(self.optimizer, learning_rate)
        self.optimizer.step()
        self.optimizer.zero_grad()

    @torch.no_grad()
    def evaluate(self, micro_batch: Batch) -> Tensor:
        return token_loss_sum(self.model(micro_batch.inputs_BT), micro_batch.labels_BT)

    def state(self) -> State:
        return {
            "model": {name: parameter.detach() for name, parameter in self.parameters},
            "optimizer": optimizer_state(self.optimizer, self.parameters),
        }

    def load(self, state: State) -> None:
        copy_state(state, self.state())

    def close(self) -> None:
        """Nothing outlives a single rank."""


def sum_of(shares: list[Tensor]) -> Tensor:
    """The sum of 0-d tensors; the tensor itself where there is only one."""
    return shares[0] if len(shares) == 1 else torch.stack(shares).sum()
