"""The worker with another trainer than strategies.train.main: `python run_worker.py MODULE`.

TRAINYARD_TEST_PATIENCE is the JSON of waits that a test shortens, in seconds by module and name.
"""

import importlib
import json
import os
import sys

from core.process.settings import WorkerSettings
from worker.main import ENROL_TOKEN, configure_logs, run


def main(trainer: str = "") -> int:
    """Run the worker, with the trainer of the command line by default; its exit code."""
    configure_logs()
    token = os.environ.pop(ENROL_TOKEN, "")
    for place, seconds in json.loads(os.environ.pop("TRAINYARD_TEST_PATIENCE", "{}")).items():
        module, _, name = place.rpartition(".")
        setattr(importlib.import_module(module), name, seconds)
    return run(WorkerSettings(), trainer=trainer or sys.argv[1], enrol_token=token)


if __name__ == "__main__":
    sys.exit(main())
