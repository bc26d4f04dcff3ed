"""Reports that are written by themselves: once, when a job has ended and has handed over all."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import func, select

from api.studies import due_reports
from api.studies.due_reports import PATIENCE, write_due
from api.studies.reports import MAX_REPORTS
from core.base.clock import utc_now
from core.process import read_only
from core.tables.files import Report
from core.tables.jobs import Job
from tests.api.conftest import World
from tests.api.shapes import exit_record, heartbeat, job_spec, place

ONE_DATABASE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


def running(world: World, **changes: Any) -> str:
    """The id of a job of ann's that has trained three steps."""
    job_id = str(world.ann.post("/v1/jobs", json=job_spec(**changes)).json()["id"])
    place(world.database, job_id)
    assert world.node.post("/v1/node/heartbeat", json=heartbeat()).status_code == 200
    lines = [{"step": step, "loss": 4.0 - step / 10} for step in (1, 2, 3)]
    batch = {"job_id": job_id, "epoch": 1, "rank": 0, "first_line": 0, "lines": lines}
    assert world.node.post("/v1/node/metrics", json=batch).status_code == 200
    return job_id


def end(world: World, job_id: str, *, kept: bool = True) -> None:
    """The node tells that the job has ended; `kept`: all of it is here."""
    seen = {"job_id": job_id, "epoch": 1, "phase": "exited", "exit": exit_record(job_id)}
    answer = world.node.post("/v1/node/heartbeat", json=heartbeat({**seen, "kept": kept}))
    assert answer.status_code == 200, answer.text


def ask(world: World, job_id: str, *, wanted: bool = True) -> dict[str, Any]:
    answer = world.ann.put(f"/v1/jobs/{job_id}/report", json={"when_ended": wanted})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def show(world: World, job_id: str) -> dict[str, Any]:
    return dict(world.ann.get(f"/v1/jobs/{job_id}").json())


def notices(world: World) -> list[tuple[str, str]]:
    told = world.ann.get("/v1/me/notifications").json()["data"]
    return [(one["kind"], one["page"]) for one in told]


def test_it_is_written_once_the_job_has_ended_and_all_of_it_is_here(world: World) -> None:
    job_id = running(world)
    assert ask(world, job_id)["report_when_ended"] is True
    assert write_due(world.process, utc_now()) == 0
    end(world, job_id, kept=False)
    assert write_due(world.process, utc_now()) == 0
    assert show(world, job_id)["report"] is None
    end(world, job_id)
    assert write_due(world.process, utc_now()) == 1
    assert write_due(world.process, utc_now()) == 0
    job = show(world, job_id)
    assert (job["state"], job["report_when_ended"]) == ("succeeded", False)
    [told] = world.ann.get(f"/v1/reports/{job['report']}").json()["content"]["jobs"]
    assert (told["job"]["id"], told["job"]["state"]) == (job_id, "succeeded")
    [loss] = [series for series in told["curves"] if series["key"] == "loss"]
    assert loss["values"] == [3.9, 3.8, 3.7]
    assert notices(world) == [("report_written", f"/reports/{job['report']}")]
    [*_, last] = world.ann.get(f"/v1/jobs/{job_id}/events").json()["data"]
    assert last["kind"] == "report_written"
    assert ask(world, job_id) == show(world, job_id)  # it is written: nothing to ask for
    refused = world.ann.put(f"/v1/jobs/{job_id}/report", json={"when_ended": False})
    assert (refused.status_code, refused.json()["code"]) == (409, "report_written")


@ONE_DATABASE
def test_it_is_asked_for_in_the_spec_and_not_wanted_any_more_before_the_end(world: World) -> None:
    job_id = running(world, report_when_ended=True)
    assert show(world, job_id)["report_when_ended"] is True
    assert ask(world, job_id, wanted=False)["report_when_ended"] is False
    end(world, job_id)
    assert write_due(world.process, utc_now()) == 0
    assert world.ann.get("/v1/reports").json()["data"] == []
    assert ask(world, job_id)["report_when_ended"] is True  # it has ended meanwhile: at once
    assert write_due(world.process, utc_now()) == 1


@ONE_DATABASE
def test_of_a_job_that_never_began_it_is_written_as_well(world: World) -> None:
    job_id = str(world.ann.post("/v1/jobs", json=job_spec(report_when_ended=True)).json()["id"])
    assert world.ann.post(f"/v1/jobs/{job_id}/cancel").status_code == 200
    assert write_due(world.process, utc_now()) == 1


def test_of_many_that_look_at_once_one_writes_it(world: World) -> None:
    job_id = running(world)
    ask(world, job_id)
    end(world, job_id)
    gate = threading.Barrier(6)

    def look() -> int:
        gate.wait(30)
        return write_due(world.process, utc_now())

    with ThreadPoolExecutor(6) as pool:
        written = [future.result() for future in [pool.submit(look) for _ in range(6)]]
    assert sorted(written) == [0, 0, 0, 0, 0, 1]
    with world.database.read() as session:
        assert session.scalar(select(func.count()).select_from(Report)) == 1
    assert len(notices(world)) == 1


@ONE_DATABASE
def test_a_node_that_hands_nothing_over_delays_it_by_minutes_only(world: World) -> None:
    job_id = running(world)
    ask(world, job_id)
    end(world, job_id, kept=False)
    assert write_due(world.process, utc_now() + PATIENCE - timedelta(seconds=30)) == 0
    assert write_due(world.process, utc_now() + PATIENCE + timedelta(seconds=30)) == 1


@ONE_DATABASE
def test_it_waits_while_nothing_may_be_changed(world: World) -> None:
    job_id = running(world)
    ask(world, job_id)
    end(world, job_id)
    with world.database.write() as session:
        read_only.begin(session, "A backup.", now=utc_now(), lasts=timedelta(minutes=5))
    assert write_due(world.process, utc_now()) == 0
    with world.database.write() as session:
        read_only.end(session)
    assert write_due(world.process, utc_now()) == 1


@ONE_DATABASE
def test_an_owner_with_too_many_reports_is_told_so(world: World) -> None:
    job_id = running(world)
    ask(world, job_id)
    end(world, job_id)
    now = utc_now()
    with world.database.write() as session:
        owner = session.get_one(Job, job_id).user_id
        session.add_all(
            Report(sha256=f"{number:064x}", user_id=owner, title="", content="{}", made_at=now)
            for number in range(MAX_REPORTS)
        )
    assert write_due(world.process, now) == write_due(world.process, now) == 0
    job = show(world, job_id)
    assert (job["report"], job["report_when_ended"]) == (None, False)
    assert notices(world) == [("report_refused", f"/jobs/{job_id}")]


@ONE_DATABASE
def test_one_that_cannot_be_written_is_given_up_and_its_owner_told(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = running(world)
    ask(world, job_id)
    end(world, job_id)
    tried = []

    def content(*_: object) -> None:
        tried.append(1)
        raise ValueError("a curve of letters")

    monkeypatch.setattr(due_reports, "content_of", content)
    assert [write_due(world.process, utc_now()) for _ in range(3)] == [0, 0, 0]
    assert len(tried) == 1
    job = show(world, job_id)
    assert (job["report"], job["report_when_ended"]) == (None, False)
    [*_, last] = world.ann.get(f"/v1/jobs/{job_id}/events").json()["data"]
    assert last["kind"] == "report_refused"
    assert "The server failed" in last["message"]
    monkeypatch.undo()
    assert ask(world, job_id)["report_when_ended"] is True
    assert write_due(world.process, utc_now()) == 1


@ONE_DATABASE
def test_only_who_steers_a_job_chooses_and_the_owner_gets_it(world: World) -> None:
    job_id = running(world)
    address, body = f"/v1/jobs/{job_id}/report", {"when_ended": True}
    assert world.bob.put(address, json=body).status_code == 404
    shared = {"kind": "job", "thing": job_id, "everybody": True}
    assert world.ann.post("/v1/shares", json=shared).status_code == 201
    assert world.bob.get(f"/v1/jobs/{job_id}").status_code == 200
    assert world.bob.put(address, json=body).status_code == 404
    assert world.staff.put(address, json=body).status_code == 200
    [entry] = world.staff.get("/v1/admin/audit?action=job.report").json()["data"]
    assert (entry["actor_name"], entry["subject"]) == ("stefan", job_id)
    end(world, job_id)
    assert write_due(world.process, utc_now()) == 1
    [line] = world.ann.get("/v1/reports").json()["data"]
    assert line["user"] == "ann"
    wrong = world.ann.put(address, json={"when_ended": "perhaps"})
    assert (wrong.status_code, wrong.json()["param"]) == (422, "when_ended")


@ONE_DATABASE
def test_a_job_forgets_a_report_that_is_deleted(world: World) -> None:
    job_id = running(world)
    ask(world, job_id)
    end(world, job_id)
    write_due(world.process, utc_now())
    assert world.ann.delete(f"/v1/reports/{show(world, job_id)['report']}").status_code == 204
    assert show(world, job_id)["report"] is None
