"""Warm process: a spawner that has imported the modules that a rank needs, and forks it.

`python -m worker.warm TRAINER`. It must own one thread, have run no tensor operation and never have
used CUDA: a fork would hang or fail otherwise. OMP_NUM_THREADS=1 must be set before it starts,
because a thread pool of its own would not survive the fork.
"""

import gc
import importlib
import os
import sys

from worker.spawner import serve


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
    """Exit with a message if a fork would be unsafe."""
    threads = len(os.listdir("/proc/self/task"))
    torch = sys.modules.get("torch")
    if threads != 1:
        sys.exit(f"the warm process has {threads} threads after its imports; ranks use torchrun")
    if torch is not None and torch.cuda.is_initialized():
        sys.exit("the warm process has touched CUDA in its imports; ranks use torchrun")


if __name__ == "__main__":
    main(sys.argv[1])
