"""Memory of one rank as its allocator counts it, and a warning when that of a GPU is full."""

import resource

import torch

from strategies.plan.estimates.memory import GIB
from strategies.plan.words import counted
from strategies.train.watching.console import say


class Allocator:
    """Reader of the memory that one rank has used so far."""

    def __init__(self, device: torch.device, rank: int) -> None:
        self.device, self.rank = device, rank
        self.retries_to_tell = 1

    def look(self, step: int) -> dict[str, float]:
        """Return the metrics after a step; print a warning at the first retry of the allocator, and
        each time that their number has doubled.

        `max_active_gib`: peak of tensors on a GPU, of the whole process (resident) on a CPU. On a
        GPU also `max_reserved_gib`, which counts the allocator's free blocks too, and
        `num_alloc_retries` unless it is 0.
        """
        if self.device.type != "cuda":
            # Linux counts KiB.
            return {"max_active_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20}
        counts = torch.cuda.memory_stats(self.device)
        retries = counts.get("num_alloc_retries", 0)
        found = {
            "max_active_gib": counts.get("allocated_bytes.all.peak", 0) / GIB,
            "max_reserved_gib": counts.get("reserved_bytes.all.peak", 0) / GIB,
        }
        if retries >= self.retries_to_tell:
            self.retries_to_tell = 2 * retries
            say(f"rank {self.rank}: {full_memory(step, retries, **found)}")
        return found | ({"num_alloc_retries": retries} if retries else {})


def full_memory(step: int, retries: int, *, max_active_gib: float, max_reserved_gib: float) -> str:
    """Return what a retry of the allocator means, and what to do."""
    return (
        f"the memory of its GPU is full: up to step {step:,} the allocator has given its free "
        f"blocks back to the driver and asked again {counted(retries, 'time')}, which makes steps "
        f"slow ({max_active_gib:.1f} GiB in tensors at most, {max_reserved_gib:.1f} GiB reserved). "
        "Take a smaller training.micro_batch_size, activation_checkpointing selective or full, or "
        "a strategy that shards over more ranks."
    )
