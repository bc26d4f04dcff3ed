"""`trainyard up` on a machine whose GPUs are a script, with ranks that compute on its CPU.

It takes the place of the command `python -m standalone ...` that stands behind it.
"""

import sys
from functools import partial

from standalone import processes
from standalone.__main__ import main
from tests.worker import run_worker

if __name__ == "__main__":
    sys.argv = sys.argv[3:]
    processes.MAINS["worker"] = partial(run_worker.main, "gpu_ranks_on_cpu")
    processes.torch_lacks_cuda = lambda: False  # or it would hide the GPUs
    main()
