"""A model spread over ranks: all transforms of a layout, in their order."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor, nn

from strategies.plan.catalog import (
    gathers_again,
    gathers_in_half,
    keeps_on_host,
    multiplies_together,
    reduces_each,
    shares_copies,
)
from strategies.plan.spec import FrozenBase, TrainSpec
from strategies.train.init import Source, give_first_weights
from strategies.train.mesh import Mesh
from strategies.train.models.network import Network
from strategies.train.models.transformer import Head
from strategies.train.parallel.compiling import compile_layers
from strategies.train.parallel.context import split_context
from strategies.train.parallel.ddp import Replication
from strategies.train.parallel.fsdp import Sharding
from strategies.train.parallel.recompute import forget_activations
from strategies.train.parallel.tensor import split_matrices
from strategies.train.precision import compute_in, feature_dtype_of


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
    positions: Tensor | None  # positions of this rank's tokens in a sample; None: all


def parallelize(model: Network, spec: TrainSpec, mesh: Mesh, source: Source) -> ParallelModel:
    """Spread a model on the meta device over all axes but the pipeline, which comes before.

    The order must be: tensor, activation checkpointing, compile, then the data-parallel sharding,
    which gives each layer its initial weights and splits it before the next layer takes memory.
    """
    if (tensor_ranks := mesh.along("tensor")) is not None:
        split_matrices(
            model,
            tensor_ranks,
            sequence_parallel=spec.parallelism.sequence_parallel,
            together=multiplies_together(spec, mesh.layout),
            gathers_again=gathers_again(spec, mesh.layout),
        )

    forget_activations(model, spec.activation_checkpointing)

    if spec.compile is True:
        compile_layers(model, mesh.device)

    in_half = gathers_in_half(spec, mesh.layout)
    if not in_half:
        compute_in(spec.precision, model, mesh.device)
    if isinstance(model.head, Head):
        model.head.parts = spec.tiling.loss_parts
        model.head.keeps_gradients = mesh.layout.pipeline == 1

    layout, replicas = mesh.layout, mesh.along("replicate", "context")
    if shares_copies(spec, layout):
        replicas = None  # the engine adds up their gradients
    on_host = keeps_on_host(spec, layout)
    data_parallel: DataParallel
    if layout.shard > 1 or (replicas is not None and (layout.tensor > 1 or layout.pipeline > 1)):
        sharded = Sharding(
            mesh,
            gather=spec.tiling.gather,
            gather_once=layout.pipeline > 1,
            gather_as=feature_dtype_of(spec.precision) if in_half else None,
            reduces_each=reduces_each(spec, layout),
            on_host=on_host,
        )
        if spec.adapter is not None and spec.adapter.base is not FrozenBase.NONE:
            give_first_weights(model, source, mesh, then=sharded.take)  # codes need whole matrices
        else:
            give_first_weights(model, source, mesh, before=sharded.take, on_host=on_host)
        sharded.finish(model)
        data_parallel = sharded
    else:
        give_first_weights(model, source, mesh)
        data_parallel = Alone(model)
        if replicas is not None:
            compression = spec.parallelism.gradient_compression
            data_parallel = Replication(model, replicas, compression, spec.precision)

    positions = split_context(model, spec, mesh) if layout.context > 1 else None
    return ParallelModel(model, data_parallel, positions)
