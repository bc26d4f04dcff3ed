"""Place of a rank among the others, and the few operations that ranks do together."""

import math
import os
import time
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.distributed_c10d import _get_default_store, _set_pg_timeout, _world

from strategies.plan.layout import AXES, Coordinate, Layout
from strategies.plan.planner import Plan
from strategies.plan.words import counted

SAVING_TIMEOUT = timedelta(hours=1)
SAVING = "saving"  # name of the group of the thread that writes checkpoints
# A rank gives up by a deadline of its own (deadline.py), which can name the rank that is missing.
# The backend's timeout comes later, for the case that the deadline's thread is gone.
BACKEND_LATER_S = 30.0
NCCL_ENVIRONMENT = {
    # NCCL's watchdog would abort the process when a peer is gone; errors of CUDA would abort it
    # before the exception of the main thread is recorded.
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0",
}


@dataclass
class Timeout:
    """Time that a rank waits for the others in a collective; changed in the course of a run."""

    seconds: float = math.inf
    since: float = 0.0
    """Time of the last change, on the monotonic clock: no wait is counted from before it."""


@dataclass(frozen=True)
class Mesh:
    """Rank in a layout. A single rank has no process group."""

    layout: Layout
    rank: int
    device: torch.device
    num_nodes: int = 1
    timeout: Timeout = field(default_factory=Timeout, compare=False)

    @property
    def world_size(self) -> int:
        return self.layout.world_size

    @property
    def batch_rank(self) -> int:
        """Index of the share of the samples that this rank takes."""
        return self.layout.batch_rank(self.rank)

    @property
    def at(self) -> Coordinate:
        """Coordinate of this rank along each axis."""
        return self.layout.coordinate(self.rank)

    @cached_property
    def device_mesh(self) -> DeviceMesh:
        """torch's mesh over the axes of a degree above 1; created by all ranks together."""
        degrees = {axis: d for axis, d in zip(AXES, self.layout.degrees, strict=True) if d > 1}
        names = tuple(degrees)
        return init_device_mesh(self.device.type, tuple(degrees.values()), mesh_dim_names=names)

    def along(self, *axes: str) -> DeviceMesh | None:
        """Return the ranks that differ from this one on `axes` only, as one line; None if alone.

        Outer axes first. A process group is created the first time, by all ranks together.
        """
        wide = tuple(axis for axis in axes if getattr(self.layout, axis) > 1)
        if not wide:
            return None
        if len(wide) == 1:
            return self.device_mesh[wide[0]]
        if wide not in self.flattened:
            self.flattened[wide] = self.device_mesh[wide]._flatten("_".join(wide))
        return self.flattened[wide]

    @cached_property
    def flattened(self) -> dict[tuple[str, ...], DeviceMesh]:
        """Lines over several axes that have been created so far."""
        return {}

    def folded(self, axis: str, inner: int) -> DeviceMesh:
        """Return the ranks along `axis` in rows of `inner` neighbours, as a mesh "outer" x "inner".

        Its process groups are created the first time, by all ranks together.
        """
        if (axis, inner) not in self.folds:
            line = self.device_mesh[axis]
            sizes = (line.size() // inner, inner)
            self.folds[axis, inner] = line._unflatten(0, sizes, ("outer", "inner"))
        return self.folds[axis, inner]

    @cached_property
    def folds(self) -> dict[tuple[str, int], DeviceMesh]:
        """Lines that have been folded so far."""
        return {}

    @property
    def is_first(self) -> bool:
        """True on the rank that writes files written once per run."""
        return self.rank == 0

    @property
    def ranks_per_node(self) -> int:
        return self.world_size // self.num_nodes

    @property
    def node(self) -> int:
        """Number of the node that this rank is on, from 0."""
        return self.rank // self.ranks_per_node

    @property
    def is_first_here(self) -> bool:
        """True on the rank that writes files written once per node."""
        return self.rank % self.ranks_per_node == 0

    def sum(self, values: Tensor) -> Tensor:
        """Add up over all ranks, in place."""
        if self.world_size > 1:
            dist.all_reduce(values)
        return values

    def gather_texts(self, text: str) -> list[str]:
        """Return the text of every rank, on every rank. Slow: for the end of a run only."""
        texts = [text] * self.world_size
        if self.world_size > 1:
            dist.all_gather_object(texts, text)
        return texts

    @cached_property
    def saving_group(self) -> dist.ProcessGroup | None:
        """Group of all ranks over the CPU network, for the thread that writes checkpoints.

        Created the first time, by all ranks together. Its timeout is long, because disks may be
        slow.
        """
        if self.world_size == 1:
            return None
        group: dist.ProcessGroup = dist.new_group(
            backend="gloo", timeout=SAVING_TIMEOUT, group_desc=SAVING
        )
        return group

    def set_timeout(self, seconds: float) -> None:
        """Set how many seconds this rank waits for the others, in every group except saving's."""
        self.timeout.seconds, self.timeout.since = seconds, time.monotonic()
        if self.world_size > 1:
            later = timedelta(seconds=seconds + BACKEND_LATER_S)
            saving = self.__dict__.get("saving_group")
            for group in list(_world.pg_map):
                if group is not saving:
                    _set_pg_timeout(later, group)

    def gather(self, value: float) -> list[float]:
        """Return the value of every rank, on every rank. Slow: for the end of a run only."""
        values = torch.zeros(self.world_size, dtype=torch.float64, device=self.device)
        values[self.rank] = value
        return [float(number) for number in self.sum(values).tolist()]

    def broadcast_text(self, text: str) -> str:
        """Return the first rank's text on every rank."""
        texts = [text]
        if self.world_size > 1:
            dist.broadcast_object_list(texts, src=0)
        return texts[0]

    def barrier(self) -> None:
        """Wait until every rank has called this."""
        if self.world_size > 1:
            dist.barrier()


def join(plan: Plan, *, timeout_s: float, meet_s: float | None = None) -> Mesh:
    """Join the other ranks according to torchrun's environment. Raises ValueError on a mismatch.

    The first of them waits `meet_s` for the last, if that is longer than `timeout_s`.
    """
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if world_size != plan.world_size:
        raise ValueError(
            f"the plan is for {plan.world_size} ranks, but WORLD_SIZE is {world_size}; start "
            f"{plan.ranks_per_node} per node on {counted(plan.nodes, 'node')}"
        )
    device = torch.device("cpu")
    if plan.device == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    if world_size > 1:
        for name, value in NCCL_ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        # Its watchdog's own watchdog, which ends the process when a CUDA call blocks both.
        heartbeat_s = str(max(480, round(2 * timeout_s)))
        os.environ.setdefault("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", heartbeat_s)
        dist.init_process_group(
            "nccl" if plan.device == "cuda" else "gloo",
            timeout=timedelta(seconds=max(timeout_s, meet_s or 0.0) + BACKEND_LATER_S),
            device_id=device if plan.device == "cuda" else None,
        )
        if meet_s is not None:
            _get_default_store().set_timeout(timedelta(seconds=timeout_s + BACKEND_LATER_S))
    # From the launcher, not from the plan: in a manual start all ranks may be on one machine.
    num_nodes = world_size // int(os.environ.get("LOCAL_WORLD_SIZE", world_size))
    mesh = Mesh(layout=plan.layout, rank=rank, device=device, num_nodes=num_nodes)
    mesh.set_timeout(timeout_s)
    return mesh


def leave() -> None:
    """Destroy the process group; a finished rank that keeps it can abort at exit."""
    if dist.is_initialized():
        dist.destroy_process_group()
