"""One node of a class, as the planner sees it. Torch-free."""

from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]


@dataclass(frozen=True)
class GpuSpeeds:
    """Dense peaks in TFLOP/s of products that are summed in float32, and the link in GB/s.

    None: the GPU has no unit for that type. In 16 bits it is then no faster than in float32.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    float32: Positive
    tf32: Positive | None
    float16: Positive | None
    bfloat16: Positive | None
    float8: Positive | None
    link_gb_per_s: Positive | None
    """Bandwidth to other GPUs of its node, each way. None: not known, or there is no other."""
    source: Annotated[str, Field(max_length=200)]
    memory_gb_per_s: Positive | None = None
    """Bandwidth of its memory, reads and writes together, as measured by a copy if the data sheet
    is not known."""


class Constants(BaseModel):
    """Numbers of a class of nodes that were measured on one of its nodes; None: not measured."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    source: str = Field(default="", max_length=200)
    """Node and day of the measurement."""
    process_gib: float | None = Field(default=None, ge=0, le=1000)
    """Device memory of a rank before its model: context and libraries on a GPU."""
    communicator_gib: float | None = Field(default=None, ge=0, le=1000)
    """Device memory of each group of ranks that communicates."""
    link_gb_per_s: float | None = Field(default=None, gt=0)
    """Bus bandwidth of a large all-reduce over all GPUs, in 10^9 bytes per second."""


class Hardware(BaseModel):
    """One node of a class. `memory_gib` is per GPU, or the whole host's RAM on CPU."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    class_name: str
    device: Literal["cpu", "cuda"]
    slots: int = Field(ge=1)
    memory_gib: float = Field(gt=0)
    model: str | None = None
    host_memory_gib: float | None = Field(default=None, gt=0)
    """RAM of the host of a GPU node; None if it is not known."""
    job_memory_gib: float | None = Field(default=None, gt=0, exclude_if=lambda limit: limit is None)
    """Most memory of one job on a node, however many slots it has; None: no limit is set."""
    speeds: GpuSpeeds | None = None
    """Measured speeds of a GPU whose data sheet is not known; None: known, or not measured."""
    measured: Constants | None = None
    """Constants from the last proof of a node of this class; None: none is known."""
    no_sandbox: str = ""
    """Reason why scripts cannot be sandboxed here; empty if they can, or it is not known."""
    no_gang_sandbox: str = ""
    """Reason why scripts that run on several of these nodes cannot be sandboxed."""
    no_compiler: str = ""
    """Missing parts of the compiler for generated kernels; empty if it is complete, or not
    known."""

    def for_one_job(self, share_gib: float) -> float:
        """Return the memory that one job may use of its share of the host's."""
        return share_gib if self.job_memory_gib is None else min(share_gib, self.job_memory_gib)

    @property
    def host_text(self) -> str:
        """The memory of the host, and the most that one job may use of it, in words."""
        whole = self.memory_gib if self.device == "cpu" else self.host_memory_gib
        limit = self.job_memory_gib
        told = "" if whole is None else f"{whole:.2f} GiB"
        return told if limit is None else f"{told}, {limit:.2f} GiB at most for one job"

    def part(self, slots: int) -> "Hardware":
        """Return so many of the node's slots, with their share of the host's memory."""
        share = min(1.0, slots / self.slots)
        on_cpu = self.device == "cpu"
        host = self.host_memory_gib
        return self.model_copy(
            update={
                "slots": min(slots, self.slots),
                "memory_gib": self.memory_gib * share if on_cpu else self.memory_gib,
                "host_memory_gib": None if host is None else host * share,
            }
        )

    def without_gpus(self) -> "Hardware":
        """Return the node for ranks that compute on its CPU, in its slots and the host's RAM.

        If the RAM is not known, they may use as much as one GPU has.
        """
        if self.device == "cpu":
            return self
        return self.model_copy(
            update={
                "device": "cpu",
                "memory_gib": self.host_memory_gib or self.memory_gib,
                "model": None,
                "host_memory_gib": None,
            }
        )


@lru_cache(maxsize=256)
def digest_of(hardware: Hardware) -> str:
    """Return a digest of all that a plan may depend on of its hardware."""
    return sha256(hardware.model_dump_json().encode()).hexdigest()[:16]
