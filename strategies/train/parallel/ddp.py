"""Data parallelism: the whole model on every rank, each with its own samples, gradients summed."""

from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from strategies.plan.spec import GradientCompression, Precision

SENT_AS = {
    GradientCompression.FLOAT16: torch.float16,
    GradientCompression.BFLOAT16: torch.bfloat16,
}
LARGEST_SENT = 2.0**15  # largest number sent as a float16, whose maximum is 65504


class Replication:
    """torch's DistributedDataParallel; after its backward every rank holds the same gradient."""

    def __init__(
        self,
        model: nn.Module,
        ranks: DeviceMesh,
        compression: GradientCompression,
        precision: Precision,
    ) -> None:
        device = next(model.parameters()).device
        self.module = DistributedDataParallel(
            model,
            device_ids=[device.index] if device.type == "cuda" else None,
            process_group=ranks.get_group(),
            forward_sync_buffers=False,  # the only buffer is a constant table
            gradient_as_bucket_view=True,
        )
        self.loss_factor = ranks.size()  # DDP averages over ranks; the law wants the sum
        if compression in SENT_AS:
            sender = Sender(ranks.get_group(), SENT_AS[compression])
            self.module.register_comm_hook(sender, send_rounded)
        elif precision is Precision.FLOAT16:  # a multiplied loss overflows before one rank's does
            self.module.register_comm_hook(ranks.get_group(), send_sum)
            self.loss_factor = 1

    def micro_batch(self, *, last: bool) -> AbstractContextManager[None]:
        """Communicate in the last micro-batch of a step only; no_sync must cover the forward
        pass too."""
        return nullcontext() if last else self.module.no_sync()


def send_sum(
    group: dist.ProcessGroup,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[Tensor]:
    """Return the sum over ranks of a bucket of gradients; DistributedDataParallel would average."""
    work = dist.all_reduce(bucket.buffer(), group=group, async_op=True)
    assert work is not None
    added: torch.futures.Future[Tensor] = work.get_future().then(lambda done: done.value()[0])
    return added


class Sender(NamedTuple):
    """Ranks that add up gradients, and the type in which they are sent."""

    group: dist.ProcessGroup
    dtype: torch.dtype


def send_rounded(
    sender: Sender,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[Tensor]:
    """Return the mean over ranks of a bucket of gradients, rounded to two bytes when sent.

    Like torch's fp16_compress_hook; but since gradients are often below what float16 can tell from
    zero, and a sum may exceed its maximum, all ranks first agree on a power of two that makes the
    largest number of any of them just fit.
    """
    gradient, num_ranks = bucket.buffer(), sender.group.size()
    gradient.div_(num_ranks)
    scale = torch.ones((), dtype=gradient.dtype, device=gradient.device)
    if sender.dtype is torch.float16:
        scale = common_scale(gradient, sender.group)
    sent = (gradient * scale).to(sender.dtype)
    work = dist.all_reduce(sent, group=sender.group, async_op=True)
    assert work is not None

    def receive(_: object) -> Tensor:
        for lent in (sent, scale):
            if lent.is_cuda:  # this runs on a stream of its own
                lent.record_stream(torch.cuda.current_stream())
        mean: Tensor = gradient.copy_(sent).div_(scale)
        return mean

    received: torch.futures.Future[Tensor] = work.get_future().then(receive)
    return received


def common_scale(gradient: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return the power of two, 0-d, with which no sum over ranks exceeds LARGEST_SENT."""
    largest = gradient.abs().amax().nan_to_num(torch.inf)  # a nan would spread to all numbers
    dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=group)
    room = LARGEST_SENT / (largest * group.size())
    powers = room.clamp(2.0**-120, 2.0**120).log2().floor()  # finite even if all are zero
    return powers.exp2()
