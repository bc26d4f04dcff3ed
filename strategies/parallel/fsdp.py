"""Fully sharded data parallel: every rank holds a part of each weight, its gradient and its
optimizer state, and gathers one layer at a time. HSDP: so within groups, replicated across them.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from strategies.models.network import Network
from strategies.parallel.mesh import Mesh
from strategies.spec import Gather


class Sharded:
    """torch's fully_shard on each layer, and on what is left of the model.

    Layers come one by one, so that no rank ever needs room for the whole model.
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
        """Split what is left of one module, and gather it all at a time."""
        if self.replicated:
            replicate(module, mesh=self.ranks)
        else:
            fully_shard(module, mesh=self.ranks, reshard_after_forward=not self.gather_once)
        assert isinstance(module, FSDPModule)
        # Sums instead of means: the loss is divided by the tokens of all ranks already.
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)

    def finish(self, model: Network) -> None:
        """Take what no layer has taken. A matrix of both ends can only be gathered with both."""
        if model.tied:
            self.take_together(model)
        else:
            self.take(model)
        assert isinstance(model, FSDPModule)
        self.module = model

    @contextmanager
    def micro_batch(self, *, last: bool) -> Iterator[None]:
        """Ranks add up their gradients once per step."""
        self.module.set_requires_gradient_sync(last)
        self.module.set_is_last_backward(last)
        yield


def shard_mesh(mesh: Mesh) -> DeviceMesh:
    """The ranks that share a weight: one line, or for HSDP replicas x shards."""
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
