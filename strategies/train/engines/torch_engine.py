"""Update by a torch optimizer, and the state: the same in all layouts but DeepSpeed's."""

import torch
from torch import Tensor
from torch.optim import Optimizer

from strategies.train.adapters.frozen_matrix import FrozenMatrix
from strategies.train.engine import HeldBytes, State, copy_state
from strategies.train.gradients import Weight, broken_weights, clip_gradients, num_bytes
from strategies.train.mesh import Mesh
from strategies.train.models.network import Network
from strategies.train.optimizers.optimizer import optimizer_state, set_learning_rate


class TorchEngine:
    """Engine without its passes, over the weights of one or more parts of a model.

    `setup` of a subclass sets the attributes.
    """

    mesh: Mesh
    models: list[Network]
    """Parts of the model on this rank."""
    weights: list[Weight]
    """Weights of these parts, in the order of the optimizer."""
    optimizer: Optimizer

    @property
    def runs_ahead(self) -> bool:
        on_gpu = (weight.parameter.device.type == "cuda" for weight in self.weights)
        return self.mesh.device.type == "cuda" and all(on_gpu)

    def counted_once(self, share: Tensor) -> Tensor:
        """Return the share on the first tensor-parallel rank and 0 on the others, which have the
        same."""
        return share if self.mesh.at.tensor == 0 else torch.zeros_like(share)

    def clip(self, max_norm: float, loss_scale: float) -> Tensor:
        return clip_gradients(self.weights, max_norm, self.mesh, loss_scale=loss_scale)

    def step(self, learning_rate: float) -> None:
        set_learning_rate(self.optimizer, learning_rate)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def skip(self) -> None:
        self.optimizer.zero_grad()

    def broken_weights(self, *, updated: bool) -> list[str]:
        return broken_weights(self.weights, updated=updated)

    def held(self) -> HeldBytes:
        parameters = [weight.parameter for weight in self.weights]
        state = optimizer_state(self.optimizer, self.weights).values()
        return HeldBytes(
            weights=sum(weight_bytes(model) for model in self.models),
            gradients=num_bytes([p.grad for p in parameters if p.grad is not None]),
            optimizer=num_bytes(state),
        )

    def state(self) -> State:
        return {
            "model": {weight.name: weight.parameter.detach() for weight in self.weights},
            "optimizer": optimizer_state(self.optimizer, self.weights),
        }

    def load(self, state: State) -> None:
        copy_state(state, self.state())

    def close(self) -> None:
        """Do nothing: the training loop owns the process group."""


def weight_bytes(model: Network) -> int:
    """Return the bytes of a model's weights on this rank, trained and frozen, in any form."""
    scales = (
        buffer
        for module in model.modules()
        if isinstance(module, FrozenMatrix)
        for buffer in module.buffers()
    )
    return num_bytes([*model.parameters(), *scales])
