"""Ring all-reduce, written out by hand as torch's backends do it inside, for readers.

Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations"
(2009). With N ranks each sends 2 (N - 1) / N times its tensor, however many ranks there are.
"""

import torch
import torch.distributed as dist
from torch import Tensor


def ring_all_reduce(tensor: Tensor) -> None:
    """Add up `tensor` over all ranks, in place; any size and shape, if contiguous.

    The tensor is cut into N parts. Every rank talks to its neighbours only: it sends to the right
    and receives from the left, at the same time.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    parts = tensor.view(-1).tensor_split(ranks)  # sizes differ by one at most
    buffer = torch.empty_like(parts[0])  # the first is never smaller than the others

    # 1. Reduce-scatter. A sum travels round the ring and each rank adds its own part to it: part p
    #    sets out at rank p and is whole at rank p - 1, after N - 1 steps.
    for step in range(ranks - 1):
        outgoing = parts[(rank - step) % ranks]
        incoming = parts[(rank - step - 1) % ranks]
        received = buffer[: incoming.numel()]
        pass_on(outgoing, received)
        incoming += received

    # 2. All-gather. The whole sums travel round the ring once more, replacing the partial sums.
    for step in range(ranks - 1):
        outgoing = parts[(rank + 1 - step) % ranks]
        incoming = parts[(rank - step) % ranks]
        pass_on(outgoing, incoming)


def pass_on(outgoing: Tensor, incoming: Tensor) -> None:
    """Send to the right neighbour while receiving from the left; empty parts are not sent.

    One batch, not a send and then a receive: with NCCL, ranks that all send first wait forever.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    transfers = [
        dist.P2POp(dist.isend, outgoing, (rank + 1) % ranks),
        dist.P2POp(dist.irecv, incoming, (rank - 1) % ranks),
    ]
    transfers = [transfer for transfer in transfers if transfer.tensor.numel()]
    for work in dist.batch_isend_irecv(transfers) if transfers else []:
        work.wait()
