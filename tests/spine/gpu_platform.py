"""`trainyard up` on a machine whose GPUs are a script, with ranks that compute on its CPU.

It takes the place of the command `python -m standalone ...` that stands behind it.
"""

import sys

import worker.main
from standalone import processes
from standalone.__main__ import main
from tests.worker import run_worker


def work(_: list[str]) -> int:
    """Run the worker, for its main function."""
    return run_worker.main("gpu_ranks_on_cpu")


if __name__ == "__main__":
    sys.argv = sys.argv[3:]
    worker.main.main = work
    processes.torch_lacks_cuda = lambda: False  # or it would hide the GPUs
    main()
