"""Two APIs and two schedulers as processes on one PostgreSQL: whichever dies, the others go on."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "worker"))

import httpx2
from sqlalchemy import select

from core.states import TERMINAL_JOB
from core.tables.jobs import Job
from core.tables.processes import Leadership
from tests.chaos.campaign import JobPlan, spec_of
from tests.chaos.counting import Found, count
from tests.chaos.fleet import Fleet, running_fleet
from tests.running import wait_for
from tests.spine.otlp_sink import Sink, running_sink
from trainyard import Trainyard

pytestmark = [pytest.mark.gloo, pytest.mark.slow]
TRACE = "0af7651916cd43dd8448eb211c80319c"
CALLER = "b7ad6b7169203331"


@pytest.fixture(scope="module")
def sink() -> Iterator[Sink]:
    with running_sink() as sink:
        yield sink


@pytest.fixture(scope="module")
def fleet(sink: Sink) -> Iterator[Fleet]:
    """With networks of their own the nodes would not reach the sink."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", sink.url)
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        with running_fleet("postgresql", is_root=False) as fleet:
            yield fleet


def submit(fleet: Fleet, api: str, job: JobPlan, **headers: str) -> str:
    answer = httpx2.post(
        f"{fleet.api_urls[api]}/v1/jobs",
        json=spec_of(job),
        headers={"Authorization": f"Bearer {fleet.token}", "Idempotency-Key": job.key, **headers},
        timeout=30,
    )
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def states(fleet: Fleet, *jobs: str) -> list[str]:
    with fleet.database.read() as session:
        return [session.get_one(Job, job).state for job in jobs]


def leader(fleet: Fleet) -> str | None:
    """The scheduler that leads now."""
    with fleet.database.read() as session:
        holder = session.scalar(select(Leadership.holder)) or ""
    for name in ("scheduler-1", "scheduler-2"):
        process = fleet.children[name].process
        if process is not None and f":{process.pid}:" in holder:
            return name
    return None


def test_a_killed_scheduler_and_a_killed_api_cost_no_job(fleet: Fleet) -> None:
    """Both APIs take jobs and show each other's; who is left serves and decides alone."""
    plans = [JobPlan(f"side-{number}", 0.0, 80, 1, None) for number in range(4)]
    jobs = [submit(fleet, "api-1", plans[0]), submit(fleet, "api-2", plans[1])]
    assert submit(fleet, "api-2", plans[0]) == jobs[0]  # the same key is the same job everywhere
    for job, watched_at in zip(jobs, ("api-2", "api-1"), strict=True):
        with Trainyard(fleet.api_urls[watched_at], fleet.token) as client:
            kinds = (event.kind for event in client.jobs.stream(job))
            assert next(kind for kind in kinds if kind in ("metrics", "end")) == "metrics"
    first = wait_for(lambda: leader(fleet), what="a leader")
    fleet.kill(first)
    second = {"scheduler-1": "scheduler-2", "scheduler-2": "scheduler-1"}[first]
    jobs.append(submit(fleet, "api-1", plans[2]))
    wait_for(lambda: leader(fleet) == second, what="the other leader")
    fleet.kill("api-1")
    jobs.append(submit(fleet, "api-2", plans[3]))
    with Trainyard(fleet.api_urls["api-2"], fleet.token) as client:
        *_, last = client.jobs.stream(jobs[3])
    assert (last.kind, last.data["state"]) == ("end", "succeeded")
    wait_for(
        lambda: all(state in TERMINAL_JOB for state in states(fleet, *jobs)), what="the end of all"
    )
    wait_for(lambda: not any(map(fleet.attempt_processes, fleet.nodes)), what="the last processes")
    wanted = dict(zip(jobs, plans, strict=True))
    assert count(fleet, wanted, [plan.key for plan in plans]) == Found()
    with fleet.database.read() as session:
        epochs = session.scalars(select(Job.epoch).where(Job.id.in_(jobs))).all()
    assert epochs == [1, 1, 1, 1]
    for name in (first, "api-1"):
        fleet.release(name)
    wait_for(lambda: fleet.answers("api-1"), what="the first API again")


def test_one_trace_tells_a_job_from_the_request_to_its_launch(fleet: Fleet, sink: Sink) -> None:
    parent = {"traceparent": f"00-{TRACE}-{CALLER}-01", "X-Request-Id": "of-the-test-1"}
    job = submit(fleet, "api-2", JobPlan("traced", 0.0, 20, 1, None), **parent)
    wanted = {
        ("trainyard-api", "POST /v1/jobs"),
        ("trainyard-scheduler", "place"),
        ("trainyard-worker", "prepare"),
        ("trainyard-worker", "launch"),
    }
    wait_for(lambda: sink.of_trace(TRACE).keys() >= wanted, what="its spans")
    spans = sink.of_trace(TRACE)
    request = spans["trainyard-api", "POST /v1/jobs"]
    assert request.parent == CALLER
    assert request.attributes["http.response.status_code"] == 201
    assert request.attributes["trainyard.request"] == "of-the-test-1"
    for key in wanted:
        assert spans[key].attributes["trainyard.job"] == job
    for key in wanted - {("trainyard-api", "POST /v1/jobs")}:
        assert spans[key].parent == request.id
        assert spans[key].attributes["trainyard.epoch"] == 1
    assert any(span.name == "cycle" for span in sink.spans)
    wait_for(lambda: states(fleet, job) == ["succeeded"], what="the end of the job")
