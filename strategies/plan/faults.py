"""Causes of a failure that CUDA, NCCL, torch and the system name in an error's text. Pure.

The ranks use the table for their exit code, and the process that judges an attempt for errors of
programs it knows nothing else about.
"""

import re
from enum import StrEnum


class Cause(StrEnum):
    """Cause of a failure, as far as an error's text tells."""

    MEMORY = "memory"
    """Memory of a GPU or of the machine is used up."""
    GPU = "gpu"
    """A GPU, its driver or a link between GPUs is broken: no change of the program helps."""
    KERNEL = "kernel"
    """A kernel accessed memory that is not its own: a mistake in its code or a broken GPU."""
    TIMEOUT = "timeout"
    """Other ranks did not come to a collective in time."""
    PEER = "peer"
    """The connection to another rank broke."""


# In this order: NCCL reports lack of memory as an "unhandled cuda error" of a collective.
TEXTS: tuple[tuple[Cause, re.Pattern[str]], ...] = (
    (
        Cause.MEMORY,
        re.compile(
            # Python, numpy, torch on a CPU, the system
            r"^([\w.]+\.)?(OutOfMemoryError|(_Array)?MemoryError)\b|"
            r"can't allocate memory|^([\w.]+\.)?OSError: \[Errno 12\]|"
            # torch's allocator, the driver (cudaErrorMemoryAllocation), XLA
            r"(CUDA|HIP)( error:)? out of memory|(cuda|hip)ErrorMemoryAllocation|"
            r"RESOURCE_EXHAUSTED: .*[Oo]ut of memory|"
            # libraries that allocate for themselves; cuBLAS cannot create its handle
            r"(CUBLAS|CUBLASLT|CUDNN|CUSPARSE|CUSOLVER|HIPBLAS|MIOPEN)_STATUS_ALLOC_FAILED|"
            r"CUFFT_ALLOC_FAILED|(CUBLAS|CUSOLVER|CUSPARSE|HIPBLAS)_STATUS_NOT_INITIALIZED|"
            r"CUDNN_STATUS_NOT_INITIALIZED|rocblas_status_memory_error|"
            # NCCL, RCCL
            r"(Cuda|HIP) failure (\d+ )?'out of memory'"
        ),
    ),
    (
        Cause.GPU,
        re.compile(
            r"uncorrectable ECC error|uncorrectable NVLink error|(cuda|hip)ErrorECC|"
            r"GPU is lost|fallen off the bus|[Hh]ardware stack error|"
            r"no CUDA-capable device|busy or unavailable|"
            r"driver version is insufficient|driver on your system is too old|"
            r"Found no NVIDIA driver|[Dd]river/library version mismatch|"
            r"forward compatibility was attempted|system not yet initialized|"
            r"CUDA error: unknown error|CUDA unknown error"
        ),
    ),
    (
        Cause.KERNEL,
        re.compile(
            r"illegal memory access|unspecified launch failure|misaligned address|"
            r"illegal instruction was encountered"
        ),
    ),
    (
        Cause.TIMEOUT,
        re.compile(
            r"Timed out waiting|monitoredBarrier|[Ss]ocket timeout|"
            r"Watchdog caught collective operation timeout|due to a collective timeout|"
            r"Terminating the process after attempting to dump"
        ),
    ),
    (
        Cause.PEER,
        re.compile(
            r"Connection (closed|reset|refused)|Broken pipe|"
            r"remote process exited|[Ss]ocket closed|"
            r"NCCL.*(remote|unhandled system) error|nccl(Remote|System)Error"
        ),
    ),
)
# Errors of the ranks' own communication, not of a program's connection to something else.
COLLECTIVE = re.compile(
    r"\bDist\w*Error\b|gloo|NCCL|nccl|c10d|ProcessGroup|Timed out waiting \d+ ?ms for|"
    r"monitoredBarrier|remote process exited|Terminating the process after attempting to dump"
)


def cause_of(kind: str, message: str) -> Cause | None:
    """Return the cause that an error of this type and message names; None if it names none."""
    text = f"{kind}: {message}"
    return next((cause for cause, pattern in TEXTS if pattern.search(text)), None)


def is_of_collective(kind: str, message: str) -> bool:
    """Return True for an error of the communication between ranks."""
    return COLLECTIVE.search(f"{kind}: {message}") is not None
