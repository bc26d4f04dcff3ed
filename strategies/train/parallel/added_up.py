"""Data parallelism of a pipeline's replicas: gradients added up once a step has all of them.

Micro-batches that share copies of a stage's matrices (`step_copies`) go round the wrappers of
torch, which would cast and reduce for each of them.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from strategies.train.gradients import own_part, settled
from strategies.train.models.network import Network


class AddedUp:
    """Model whose gradients are added up over its replicas, each by itself and in place."""

    loss_factor = 1  # it is already divided by the tokens of all ranks

    def __init__(self, model: Network, ranks: DeviceMesh) -> None:
        self.module = model
        self.group = ranks.get_group()

    @contextmanager
    def micro_batch(self, *, last: bool) -> Iterator[None]:
        """Add up after the last micro-batch of a step."""
        yield
        if last:
            self.add_up()

    @torch.no_grad()
    def add_up(self) -> None:
        """Give all replicas the sum of their gradients."""
        trained = (each for each in self.module.parameters() if each.grad is not None)
        gradients = [own_part(settled(parameter)) for parameter in trained]
        sent = [gradient.contiguous() for gradient in gradients]  # a backend takes no others
        sums = [dist.all_reduce(each, group=self.group, async_op=True) for each in sent]
        for work, gradient, total in zip(sums, gradients, sent, strict=True):
            assert work is not None
            work.wait()
            if total is not gradient:
                gradient.copy_(total)
