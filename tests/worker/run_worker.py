"""The worker with another trainer than strategies.train.main: `python run_worker.py MODULE`."""

import sys

from core.base.settings import WorkerSettings
from worker.main import configure_logs, run

if __name__ == "__main__":
    configure_logs()
    sys.exit(run(WorkerSettings(), trainer=sys.argv[1]))
