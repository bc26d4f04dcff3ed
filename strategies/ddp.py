"""Data parallel: the whole model on every rank, each with its own samples, gradients summed."""

from contextlib import AbstractContextManager, nullcontext

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel


class Replicated:
    """torch's DistributedDataParallel; after its backward every rank holds the same gradient."""

    def __init__(self, model: nn.Module, ranks: DeviceMesh) -> None:
        device = next(model.parameters()).device
        self.module = DistributedDataParallel(
            model,
            device_ids=[device.index] if device.type == "cuda" else None,
            process_group=ranks.get_group(),
            forward_sync_buffers=False,  # the only buffer is a constant table
            gradient_as_bucket_view=True,
        )
        self.loss_factor = ranks.size()  # DDP averages over ranks; the law wants the sum

    def micro_batch(self, *, last: bool) -> AbstractContextManager[None]:
        """Ranks talk once per step; no_sync must cover the forward pass as well."""
        return nullcontext() if last else self.module.no_sync()
