"""One process of the platform, on a wall clock that can be moved: `run_process.py NAME CLOCK`.

CLOCK is a file that holds the seconds by which this process is ahead. Both `core.base.clock`, the
only place that reads one, and `time.time` for what the libraries read.
"""

import importlib
import os
import sys
import time
from datetime import UTC, datetime, timedelta

from core.base import clock


def main() -> None:
    name, file = sys.argv[1:]
    _move_clock(os.open(file, os.O_RDONLY))
    if name != "worker":
        importlib.import_module(f"{name}.main").main()
        return
    worker = importlib.import_module("worker.main")
    settings = importlib.import_module("core.process.settings").WorkerSettings()
    worker.configure_logs()
    token = os.environ.pop("TRAINYARD_ENROL_TOKEN", "")
    sys.exit(worker.run(settings, enrol_token=token, trainer="ledger_trainer"))


def _move_clock(descriptor: int) -> None:
    true_time = time.time

    def ahead_s() -> float:
        return float(os.pread(descriptor, 32, 0))

    time.time = lambda: true_time() + ahead_s()
    clock.wall_clock = lambda: datetime.now(UTC) + timedelta(seconds=ahead_s())


if __name__ == "__main__":
    main()
