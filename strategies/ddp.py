"""Data parallel: the whole model on every rank, each with its own samples, gradients summed."""

from collections.abc import Sequence
from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from strategies.engine import Batch
from strategies.loss import token_loss_sum
from strategies.mesh import Mesh
from strategies.single import SingleEngine, sum_of
from strategies.spec import TrainSpec


class DDPEngine(SingleEngine):
    """torch's DistributedDataParallel; after its backward every rank holds the same gradient."""

    def setup(self, model: nn.Module, spec: TrainSpec, mesh: Mesh) -> None:
        super().setup(model, spec, mesh)
        self.ranks = mesh.world_size
        self.replicated = DistributedDataParallel(
            model,
            device_ids=[mesh.device.index] if mesh.device.type == "cuda" else None,
            forward_sync_buffers=False,  # the only buffer is a constant table
            gradient_as_bucket_view=True,
        )

    def forward_backward(self, micro_batches: Sequence[Batch], valid_tokens: int) -> Tensor:
        shares = []
        last = len(micro_batches) - 1
        for i, (inputs_BT, labels_BT) in enumerate(micro_batches):
            # Ranks talk once per step; no_sync must cover the forward pass as well.
            with nullcontext() if i == last else self.replicated.no_sync():
                loss = token_loss_sum(self.replicated(inputs_BT), labels_BT) / valid_tokens
                # DDP averages over ranks; the law wants the sum.
                torch.autograd.backward(loss * self.ranks)
            shares.append(loss.detach())
        return sum_of(shares)
