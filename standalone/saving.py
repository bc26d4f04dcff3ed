"""`python -m standalone.saving DIR`: save and queue the running jobs of a platform that stops.

A program of its own, which the supervisor starts at the end: what it imports is needed by nothing
before.
"""

import sys
import time
from contextlib import closing
from pathlib import Path

from sqlalchemy import select

from core.base.clock import utc_now
from core.database.database import Database
from core.jobs.attempts import ask_to_stop
from core.states import LIVE_JOB, JobState, Outcome
from core.tables.jobs import Job
from core.wire.doorbell import Doorbell
from standalone import valkey
from standalone.data_directory import DataDirectory
from standalone.supervisor import say
from strategies.plan.words import counted

LOCAL_NODE = "this-machine"
ACTOR = "trainyard up"
SAVE_DEADLINE_S = 90.0  # for the jobs to save and stop


def main(data: DataDirectory) -> None:
    """Ask every running job for a checkpoint, wait until all have stopped and are queued again."""
    with closing(Database(data.database_url)) as database:
        _save(database, Doorbell(valkey.url(data.path)))


def _save(database: Database, bell: Doorbell) -> None:
    with database.write() as session:
        live = session.scalars(select(Job).where(Job.state.in_(LIVE_JOB))).all()
        for job in live:
            if job.state is not JobState.STOPPING:
                ask_to_stop(
                    session,
                    job,
                    Outcome.PREEMPTED,
                    now=utc_now(),
                    message="The platform is being stopped: saving a checkpoint.",
                    actor=ACTOR,
                )
    if not live:
        return
    say(f"Saving {counted(len(live), 'running job')} ...")
    bell.ring_node(LOCAL_NODE)
    deadline = time.monotonic() + SAVE_DEADLINE_S
    while time.monotonic() < deadline:
        with database.read() as session:
            left = session.scalars(select(Job.name).where(Job.state.in_(LIVE_JOB))).all()
        if not left:
            say("All running jobs were saved and queued again.")
            return
        time.sleep(0.1)
    say(
        f"These jobs were not saved within {SAVE_DEADLINE_S:.0f} s and keep running: "
        f"{', '.join(left)}."
    )


if __name__ == "__main__":
    main(DataDirectory(Path(sys.argv[1])))
