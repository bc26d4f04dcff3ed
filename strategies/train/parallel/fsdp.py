"""Fully sharded data parallelism: every rank holds a part of each weight, its gradient and its
optimizer state, and gathers one layer at a time. HSDP: sharded within groups, replicated across."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from strategies.plan.spec import Gather
from strategies.train.mesh import Mesh
from strategies.train.models.network import Network


class Sharding:
    """torch's fully_shard on each layer, and on the rest of the model.

    Layers are split one by one, so that no rank ever needs memory for the whole model.
    """

    loss_factor = 1

    def __init__(self, mesh: Mesh, *, gather: Gather, gather_once: bool) -> None:
        self.ranks = shard_mesh(mesh)
        self.replicated = mesh.layout.shard == 1
        self.by_matrix = gather is Gather.MATRIX
        self.gather_once = gather_once  # keep a layer gathered between its two passes

    def take(self, module: nn.Module) -> None:
        """Split one module's parameters over the ranks."""
        if self.by_matrix:
            for part in list(module.modules()):
                if isinstance(part, (nn.Linear, nn.Embedding)) and not isinstance(part, FSDPModule):
                    self.take_together(part)
        self.take_together(module)

    def take_together(self, module: nn.Module) -> None:
        """Split the parameters of one module that are not split yet; they are gathered together."""
        if self.replicated:
            replicate(module, mesh=self.ranks)
        else:
            fully_shard(module, mesh=self.ranks, reshard_after_forward=not self.gather_once)
        assert isinstance(module, FSDPModule)
        # Sums instead of means: the loss is already divided by the tokens of all ranks.
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)

    def finish(self, model: Network) -> None:
        """Split the parameters outside layers.

        A matrix tied to both ends must be gathered with both.
        """
        if model.tied:
            self.take_together(model)
        else:
            self.take(model)
        assert isinstance(model, FSDPModule)
        self.module = model

    @contextmanager
    def micro_batch(self, *, last: bool) -> Iterator[None]:
        """Reduce gradients over ranks in the last micro-batch of a step only."""
        self.module.set_requires_gradient_sync(last)
        self.module.set_is_last_backward(last)
        yield


def shard_mesh(mesh: Mesh) -> DeviceMesh:
    """Return the ranks that share a weight: one line, or for HSDP replicas x shards."""
    if mesh.layout.shard == 1:
        replicas = mesh.along("replicate", "context")
        assert replicas is not None
        return replicas
    shards = mesh.along("shard", "context")
    assert shards is not None
    if mesh.layout.replicate == 1:
        return shards
    assert shards.mesh_dim_names is not None
    return mesh.device_mesh["replicate", shards.mesh_dim_names[0]]
