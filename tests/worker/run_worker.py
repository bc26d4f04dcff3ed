"""The worker with another trainer than strategies.train.main: `python run_worker.py MODULE`."""

import os
import sys

from core.base.settings import WorkerSettings
from worker.main import ENROL_TOKEN, configure_logs, run

if __name__ == "__main__":
    configure_logs()
    token = os.environ.pop(ENROL_TOKEN, "")
    sys.exit(run(WorkerSettings(), trainer=sys.argv[1], enrol_token=token))
