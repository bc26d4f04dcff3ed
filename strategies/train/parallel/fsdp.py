"""Fully sharded data parallelism: every rank holds a part of each weight, its gradient and its
optimizer state, and gathers one layer at a time. HSDP: sharded within groups, replicated across."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)

from strategies.plan.spec import Gather
from strategies.train.mesh import Mesh
from strategies.train.models.network import Network


class Sharding:
    """torch's fully_shard on each layer, on the embedding, and on the last norm with the head.

    Layers are split one by one, so that no rank ever needs memory for the whole model. A model that
    is gathered in 16 bits also computes in them, and its gradients are added up in float32: those
    of every micro-batch to this rank's part, or whole ones, which are reduced once in a step.
    A rank may keep its parts in the host's memory, where they are updated, and bring each to its
    device for as long as it is gathered.
    """

    loss_factor = 1

    def __init__(
        self,
        mesh: Mesh,
        *,
        gather: Gather,
        gather_once: bool,
        gather_as: torch.dtype | None,
        reduces_each: bool,
        on_host: bool,
    ) -> None:
        self.ranks = shard_mesh(mesh)
        self.policy = MixedPrecisionPolicy()
        self.reduces_each = reduces_each  # micro-batch's gradients
        if gather_as is not None:  # inputs: the rotary table stays in float32
            self.policy = MixedPrecisionPolicy(
                param_dtype=gather_as, reduce_dtype=torch.float32, cast_forward_inputs=False
            )
        self.place = OffloadPolicy()
        if on_host:
            self.place = CPUOffloadPolicy(pin_memory=mesh.device.type == "cuda")
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

    def take_together(self, *modules: nn.Module, used_last: bool = False) -> None:
        """Split the parameters of modules that are not split yet; they are gathered together.

        Those used last in the forward pass stay gathered: the backward pass begins with them.
        """
        if self.replicated:
            replicate(list(modules), mesh=self.ranks)
        else:
            fully_shard(
                list(modules),
                mesh=self.ranks,
                reshard_after_forward=not (self.gather_once or used_last),
                mp_policy=self.policy,
                offload_policy=self.place,
            )
        for module in modules:
            assert isinstance(module, FSDPModule)
            # Sums instead of means: the loss is already divided by the tokens of all ranks.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)

    def finish(self, model: Network) -> None:
        """Split the parameters outside layers.

        A matrix tied to both ends must be gathered with both.
        """
        first, last = model.embedding, [part for part in (model.norm, model.head) if part]
        if not (model.tied and first and last):
            if first:
                first.register_forward_hook(without_base)
                self.take_together(first)
                if isinstance(first, nn.Embedding) and isinstance(first, FSDPModule):
                    first.set_unshard_in_backward(False)  # which needs the tokens, not the weights
            if last:
                self.take_together(*last, used_last=True)
        self.take_together(model, used_last=True)
        assert isinstance(model, FSDPModule)
        self.module = model

    @contextmanager
    def micro_batch(self, *, last: bool) -> Iterator[None]:
        """Reduce gradients over ranks in every micro-batch, or in the last of a step only."""
        self.module.set_requires_gradient_sync(last or self.reduces_each)
        self.module.set_requires_all_reduce(last)  # among replicas
        yield


def without_base(_: nn.Module, tokens: object, features: Tensor) -> Tensor:
    """Return features that are not a view, as tensor parallelism gives them: a forward hook.

    fully_shard cannot follow views.
    """
    return features.clone() if features._is_view() else features


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
