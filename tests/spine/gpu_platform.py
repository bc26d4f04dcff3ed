"""`trainyard up` on a machine whose GPUs are a script, with ranks that compute on its CPU.

It takes the place of the command `python -m standalone ...` that stands behind it.
"""

import os
import sys

from core.base.settings import WorkerSettings
from standalone import processes
from standalone.__main__ import main
from worker.main import ENROL_TOKEN, configure_logs, run


def worker() -> int:
    """The worker of this machine, with the trainer that needs no GPU."""
    configure_logs()
    token = os.environ.pop(ENROL_TOKEN, "")
    return run(WorkerSettings(), trainer="gpu_ranks_on_cpu", enrol_token=token)


if __name__ == "__main__":
    sys.argv = sys.argv[3:]
    processes.MAINS["worker"] = worker
    processes.torch_lacks_cuda = lambda: False  # or it would hide the GPUs
    main()
