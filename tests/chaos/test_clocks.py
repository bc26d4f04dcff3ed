"""A clock that is a day ahead ends no lease, starts no job anew and gives no verdict."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "worker"))

from sqlalchemy import select

from core.states import TERMINAL_JOB
from core.tables.jobs import Attempt, Job
from tests.chaos.campaign import JobPlan, spec_of
from tests.chaos.fleet import running_fleet
from tests.running import wait_for

DAY_S = 100_000.0


@pytest.mark.slow
@pytest.mark.gloo
@pytest.mark.timeout(300)
def test_clocks_that_leap_leave_a_running_job_alone() -> None:
    """Before every process went by the database's clock, this job was stopped at once: by a
    scheduler for which its lease was long over, or by a node to which the API had said so."""
    job = JobPlan("leap", 0.0, 400, 1, None)
    with running_fleet("postgresql") as fleet:
        answer = fleet.ask("POST", "/v1/jobs", json=spec_of(job))
        assert answer is not None
        job_id = answer.json()["id"]

        def step() -> int:
            with fleet.database.read() as session:
                return session.get_one(Job, job_id).last_step

        wait_for(lambda: step() > 5, what="the first steps")
        for name in ("api-1", "api-2", "scheduler-1", "scheduler-2", "node-a", "node-b"):
            fleet.set_clock(name, DAY_S)
        before = step()
        wait_for(lambda: step() > before + 60, what="steps under a clock that is ahead")
        for name in ("api-1", "api-2", "scheduler-1", "scheduler-2", "node-a", "node-b"):
            fleet.set_clock(name, -DAY_S)

        def ended() -> Job | None:
            with fleet.database.read() as session:
                found = session.get_one(Job, job_id)
                return found if found.state in TERMINAL_JOB else None

        assert wait_for(ended, what="the end of the job").state == "succeeded"
        with fleet.database.read() as session:
            attempts = session.scalars(select(Attempt)).all()
        assert [attempt.outcome for attempt in attempts] == ["succeeded"]
