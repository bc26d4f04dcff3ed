"""Layouts in which every rank runs the same program on its share: one rank, data, tensor and
context parallelism, fully sharded, and any mix of them."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from strategies.plan.planner import Plan
from strategies.plan.spec import TrainSpec
from strategies.train.adapters.frozen_matrix import FrozenMatrix
from strategies.train.engine import Batch, HeldBytes, State, copy_state, sum_of
from strategies.train.gradients import (
    broken_weights,
    clip_gradients,
    num_bytes,
    own_part,
    weights_of,
)
from strategies.train.init import Source, design_model, materialise
from strategies.train.mesh import Mesh
from strategies.train.models.loss import Measure, token_loss_sum
from strategies.train.models.network import Network
from strategies.train.models.transformer import Head
from strategies.train.optimizers.delayed_gradients import delay_gradients
from strategies.train.optimizers.optimizer import (
    build_optimizer,
    optimizer_state,
    set_learning_rate,
)
from strategies.train.parallel.recompute import forget_activations
from strategies.train.precision import compute_in
from strategies.train.watching.phases import Phase, phase


class DataParallel(Protocol):
    """Reduction that gives ranks with different samples or tokens one gradient."""

    @property
    def module(self) -> nn.Module:
        """Module that a forward pass must go through."""

    @property
    def loss_factor(self) -> int:
        """Factor of the loss with which the gradient becomes the sum over ranks."""

    def micro_batch(self, *, last: bool) -> AbstractContextManager[None]:
        """Return the context of one micro-batch's two passes; the last of a step sums over
        ranks."""


@dataclass
class Alone:
    """Data parallelism of one rank."""

    module: nn.Module
    loss_factor: int = 1

    def micro_batch(self, *, last: bool) -> AbstractContextManager[None]:
        return nullcontext()


@dataclass
class ParallelModel:
    """Model, or a pipeline stage of one, on its ranks and with its initial weights."""

    model: Network
    data_parallel: DataParallel
    around_loss: Callable[[], AbstractContextManager[None]]  # logits may be split over ranks
    positions: Tensor | None  # positions of this rank's tokens in a sample; None: all


def spread(
    model: Network, spec: TrainSpec, plan: Plan, mesh: Mesh, source: Source
) -> ParallelModel:
    """Spread a model on the meta device over all axes but the pipeline.

    The order must be: tensor, activation checkpointing, compile, then the data-parallel sharding.
    """
    layout = mesh.layout
    around_loss: Callable[[], AbstractContextManager[None]] = nullcontext
    if (tensor_ranks := mesh.along("tensor")) is not None:
        from strategies.train.parallel.tensor import loss_over_ranks, split_matrices

        split_matrices(model, tensor_ranks, sequence_parallel=spec.parallelism.sequence_parallel)
        around_loss = loss_over_ranks
    transform_forward(model, spec, mesh)
    data_parallel: DataParallel
    replicas = mesh.along("replicate", "context")
    if layout.shard > 1 or (replicas is not None and (layout.tensor > 1 or layout.pipeline > 1)):
        from strategies.train.parallel.fsdp import Sharding

        sharded = Sharding(mesh, gather=spec.tiling.gather, gather_once=layout.pipeline > 1)
        give_first_weights(model, source, mesh, then=sharded.take)
        sharded.finish(model)
        data_parallel = sharded
    else:
        give_first_weights(model, source, mesh)
        if replicas is None:
            data_parallel = Alone(model)
        else:
            from strategies.train.parallel.ddp import Replication

            compression = spec.parallelism.gradient_compression
            data_parallel = Replication(model, replicas, compression, spec.precision)
    positions = None
    if layout.context > 1:
        from strategies.train.parallel.context import split_context

        positions = split_context(model, spec, mesh)
    return ParallelModel(model, data_parallel, around_loss, positions)


def transform_forward(model: Network, spec: TrainSpec, mesh: Mesh) -> None:
    """Apply the changes of a model's forward pass that involve no other rank."""
    forget_activations(model, spec.activation_checkpointing)
    if spec.compile:
        from strategies.train.parallel.compiling import compile_layers

        compile_layers(model, mesh.device)
    compute_in(spec.precision, model, mesh.device)
    if isinstance(model.head, Head):
        model.head.parts = spec.tiling.loss_parts


def give_first_weights(
    model: Network,
    source: Source,
    mesh: Mesh,
    *,
    then: Callable[[nn.Module], None] = lambda layer: None,
) -> None:
    """Allocate and fill the weights of a meta model, layer by layer; `then` takes each layer."""
    for name, layer in model.layers.items():
        materialise(layer, f"layers.{name}", source, device=mesh.device)
        then(layer)
    for name in ("embedding", "norm", "head"):
        module = getattr(model, name)
        if module is not None:
            named = "embedding" if model.tied and name == "head" else name
            materialise(module, named, source, device=mesh.device)
    model.compute_constants(mesh.device)
    model.tie()


def weight_bytes(model: Network) -> int:
    """Return the bytes of a model's weights on this rank, trained and frozen, in any form."""
    scales = (
        buffer
        for module in model.modules()
        if isinstance(module, FrozenMatrix)
        for buffer in module.buffers()
    )
    return num_bytes([*model.parameters(), *scales])


class SpmdEngine:
    """Engine of layouts without a pipeline."""

    def setup(self, spec: TrainSpec, plan: Plan, mesh: Mesh, source: Source) -> None:
        self.mesh, self.in_parts = mesh, spec.tiling.loss_parts > 1
        self.spread = spread(design_model(spec), spec, plan, mesh, source)
        self.model = self.spread.model
        self.models = [self.model]
        self.weights = weights_of(self.model.named_weights(), mesh)
        self.optimizer = build_optimizer((w.parameter for w in self.weights), spec.training)
        delay_gradients(self.optimizer, steps=spec.parallelism.gradient_delay)

    def forward_backward(self, micro_batches: Sequence[Batch], divisor: float) -> Tensor:
        parallel, shares = self.spread.data_parallel, []
        for i, batch in enumerate(micro_batches):
            last = i == len(micro_batches) - 1
            with parallel.micro_batch(last=last), self.spread.around_loss():
                with phase(Phase.FORWARD):
                    loss = self.measured(batch, token_loss_sum) / divisor
                with phase(Phase.BACKWARD):
                    torch.autograd.backward(loss * parallel.loss_factor)
            shares.append(loss.detach())
        return self.counted_once(sum_of(shares))

    def measured(self, batch: Batch, measure: Measure) -> Tensor:
        """Return a measure of this rank's tokens of a micro-batch."""
        if self.spread.positions is not None:
            batch = batch.at(self.spread.positions)
        module = self.spread.data_parallel.module
        if self.in_parts:
            found: Tensor = module(batch.inputs_BT, batch.documents_BT, batch.labels_BT, measure)
            return found
        logits_BTV = module(batch.inputs_BT, batch.documents_BT)
        return own_part(measure(logits_BTV, batch.labels_BT))

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

    def broken_weights(self) -> list[str]:
        return broken_weights(self.weights)

    @torch.no_grad()
    def evaluate(self, micro_batch: Batch, measure: Measure) -> Tensor:
        with self.spread.around_loss():
            return self.counted_once(self.measured(micro_batch, measure))

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
