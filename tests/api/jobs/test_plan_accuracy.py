"""Finished jobs teach the planner; a plan is held against the end of its lease."""

from datetime import timedelta

from api.jobs.plan_cache import PlanCache
from api.jobs.routes_plan_accuracy import learn
from core.base.clock import utc_now
from core.policy.grid import hour_ceiling
from core.tables.jobs import Job
from tests.api.conftest import World
from tests.api.shapes import exit_record, job_spec

PLANNED = "/v1/jobs/plan"


def finish(world: World, peak_gib: float) -> None:
    """A job that succeeded, whose fullest rank held so much."""
    job = world.ann.post("/v1/jobs", json=job_spec()).json()
    result = {**exit_record(job["id"])["result"], "peak_gib": [peak_gib, peak_gib / 2]}
    with world.database.write() as session:
        row = session.get_one(Job, job["id"])
        row.state, row.result = "succeeded", result


def planned_gib(world: World) -> float:
    """Of the job's training; the process has a line of its own."""
    answer = world.ann.post(PLANNED, json={"spec": job_spec()}).json()
    memory = answer["plans"][0]["plan"]["memory"]
    return sum(float(term["gib"]) for term in memory if term["name"] != "process")


def test_plans_grow_by_what_finished_jobs_have_needed(world: World) -> None:
    before = planned_gib(world)
    for _ in range(5):
        finish(world, 1.3 * before)
    (row,) = world.bob.get(PLANNED + "/accuracy").json()["rows"]
    assert (row["model"], row["strategy"], row["runs"]) == ("gpt", "ddp", 5)
    assert abs(row["error_median"] - (1 / 1.3 - 1)) < 0.01
    assert row["factor"] > 1.2
    assert planned_gib(world) == before, "nothing is learnt within a minute"
    learn(world.database, world.process.service(PlanCache))
    assert planned_gib(world) > 1.1 * before
    for _ in range(5):
        finish(world, 1.3 * before)
    learn(world.database, world.process.service(PlanCache))
    (again,) = world.bob.get(PLANNED + "/accuracy").json()["rows"]
    assert abs(again["factor"] - row["factor"]) <= 0.01, "what was learnt is not learnt twice"


def test_nobody_has_finished_yet(world: World) -> None:
    assert world.ann.get(PLANNED + "/accuracy").json() == {"rows": []}
    assert world.nobody.get(PLANNED + "/accuracy").status_code == 401


def test_a_plan_in_a_lease_tells_when_it_would_be_stopped(world: World) -> None:
    start = hour_ceiling(utc_now()) + timedelta(hours=2)
    booked = {"node": "box", "start": start.isoformat(), "hours": 2}
    lease = world.ann.post("/v1/leases", json=booked).json()
    answer = world.ann.post(PLANNED, json={"spec": job_spec(lease=lease["id"])}).json()
    assert answer["lease_end"] == lease["usable_end"]
    assert answer["predicted_start"] == lease["hold_start"]
    assert answer["predicted_finish"] is None
    assert "The lease has 1h 55min of usable time" in answer["reason"]
