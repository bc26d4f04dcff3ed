"""Warm process: a spawner that has imported the modules that a rank needs, and forks it.

`python -m worker.warm TRAINER`. A fork of it is safe if it owns one thread, has run no tensor
operation and has not initialised CUDA; it proves the first and the last before it serves.
OMP_NUM_THREADS=1 must be set before it starts, because a thread pool of its own would not survive
the fork, and PYTORCH_NVML_BASED_CUDA_CHECK=1, because `torch.cuda.is_available()` would otherwise
initialise CUDA. Ranks forked from it choose their GPUs by CUDA_VISIBLE_DEVICES, which CUDA reads
when a rank first uses it.
"""

import ctypes
import gc
import importlib
import os
import sys
from enum import IntEnum
from pathlib import Path

from worker.spawner import serve

MAPS = Path("/proc/self/maps")
DRIVER = "libcuda.so"
NOT_INITIALIZED = 3  # CUDA_ERROR_NOT_INITIALIZED in cuda.h: cuInit was not called, or it failed


class ForkRisk(IntEnum):
    """Reason why a fork would be unsafe, by the exit code with which the warm process then ends."""

    THREADS = 81
    CUDA = 82

    @property
    def sentence(self) -> str:
        if self is ForkRisk.THREADS:
            return "the warm process has more than one thread after its imports"
        return "the warm process has initialised CUDA in its imports"


def main(trainer: str) -> None:
    """Import, check, and serve."""
    module = importlib.import_module(trainer)
    preload = getattr(module, "preload", None)
    if preload is not None:
        preload()
    require_forkable()
    gc.collect()
    gc.freeze()  # a collection in a rank would otherwise copy every page it scans
    serve()


def require_forkable() -> None:
    """Exit with a message and the risk's code if a fork would be unsafe."""
    risk = fork_risk()
    if risk is not None:
        sys.stderr.write(f"{risk.sentence} ({', '.join(thread_names())}); ranks use torchrun\n")
        sys.exit(risk)


def thread_names() -> list[str]:
    """Return the name of each thread of this process: a library's tells which one started it."""
    return sorted(path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm"))


def fork_risk() -> ForkRisk | None:
    """Return the reason why a fork of this process would be unsafe; None if it is safe."""
    if len(os.listdir("/proc/self/task")) != 1:
        return ForkRisk.THREADS
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return ForkRisk.CUDA
    # torch does not know of a call of cuInit by somebody else, but the driver does.
    return ForkRisk.CUDA if driver_is_initialised() else None


def driver_is_initialised(maps: Path = MAPS) -> bool:
    """Return True unless this process has provably not initialised the CUDA driver.

    Either the driver's library is not loaded, or it answers that it is not initialised. torch's
    CUDA builds load it when they are imported.
    """
    loaded = {line.split(maxsplit=5)[-1] for line in maps.read_text().splitlines()}
    drivers = {path for path in loaded if os.path.basename(path).startswith(DRIVER)}
    return any(_answers(path) for path in drivers)


def _answers(driver: str) -> bool:
    """Return True unless a loaded driver answers NOT_INITIALIZED. A question does not initialise
    it."""
    try:
        count = ctypes.CDLL(driver).cuDeviceGetCount
    except (OSError, AttributeError):
        return True
    return bool(count(ctypes.byref(ctypes.c_int())) != NOT_INITIALIZED)


if __name__ == "__main__":
    main(sys.argv[1])
