"""/v1/reports: written once, found again by its hash, and told apart from what was changed."""

import hashlib
import json
from typing import Any

import pytest
from sqlalchemy import update

from api.studies.reports import MAX_REPORTS
from core.base.clock import utc_now
from core.tables.files import Report
from tests.api.conftest import World
from tests.api.shapes import exit_record, free, heartbeat, job_spec, place

# Nothing here is SQL of one database: once is enough.
pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


@pytest.fixture
def trained(world: World) -> str:
    """The id of a job of ann's that has trained three steps and ended."""
    job_id = str(world.ann.post("/v1/jobs", json=job_spec()).json()["id"])
    place(world.database, job_id)
    assert world.node.post("/v1/node/heartbeat", json=heartbeat()).status_code == 200
    lines = [{"step": step, "loss": 4.0 - step / 10, "grad_norm": 1.0} for step in (1, 2, 3)]
    batch = {"job_id": job_id, "epoch": 1, "rank": 0, "first_line": 0, "lines": lines}
    assert world.node.post("/v1/node/metrics", json=batch).status_code == 200
    record = exit_record(job_id)
    seen = {"job_id": job_id, "epoch": 1, "phase": "exited", "exit": record, "kept": True}
    assert world.node.post("/v1/node/heartbeat", json=heartbeat(seen)).status_code == 200
    free(world.database)
    return job_id


def written(world: World, **body: Any) -> dict[str, Any]:
    answer = world.ann.post("/v1/reports", json=body)
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


def test_a_report_tells_all_of_a_job_under_the_hash_of_its_content(
    world: World, trained: str
) -> None:
    report = written(world, jobs=[trained], title="Homework 4")
    [told] = report["content"]["jobs"]
    assert (told["job"]["id"], told["job"]["state"]) == (trained, "succeeded")
    assert [attempt["epoch"] for attempt in told["attempts"]] == [1]
    [loss] = [series for series in told["curves"] if series["key"] == "loss"]
    assert loss["values"] == [3.9, 3.8, 3.7]
    assert told["events"][0]["to_state"] == "queued"
    # The rule as docs/api.md has it, without our own code.
    text = json.dumps(report["content"], sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert hashlib.sha256(text.encode()).hexdigest() == report["sha256"]
    assert world.ann.get(f"/v1/reports/{report['sha256']}").json() == report
    [line] = world.ann.get("/v1/reports").json()["data"]
    assert (line["sha256"], line["title"], line["user"]) == (report["sha256"], "Homework 4", "ann")


def test_whoever_holds_a_report_can_have_it_checked(world: World, trained: str) -> None:
    report = written(world, jobs=[trained])
    genuine = world.staff.post("/v1/reports/check", json=report).json()
    assert (genuine["intact"], genuine["known"], genuine["made_by"]) == (True, True, "ann")

    report["content"]["jobs"][0]["job"]["loss"] = 0.1
    changed = world.staff.post("/v1/reports/check", json=report).json()
    assert (changed["intact"], changed["known"]) == (False, False)
    assert "was altered" in changed["message"]

    forged = world.staff.post(
        "/v1/reports/check", json={**report, "sha256": changed["sha256"]}
    ).json()
    assert (forged["intact"], forged["known"], forged["made_by"]) == (True, False, None)


def test_a_deleted_report_is_gone_and_a_copy_of_it_can_still_be_checked(
    world: World, trained: str
) -> None:
    report = written(world, jobs=[trained], title="Homework 4")
    address = f"/v1/reports/{report['sha256']}"
    assert world.bob.delete(address).status_code == 404
    assert world.staff.delete(address).status_code == 404
    assert world.ann.delete(address).status_code == 204
    assert world.ann.delete(address).status_code == 204
    gone = world.ann.get(address)
    assert (gone.status_code, "was deleted on" in gone.json()["detail"]) == (404, True)
    assert world.ann.get("/v1/reports").json()["data"] == []
    with world.database.read() as session:
        assert session.get_one(Report, report["sha256"]).content == ""
    checked = world.staff.post("/v1/reports/check", json=report).json()
    assert (checked["intact"], checked["known"], checked["made_by"]) == (True, True, "ann")
    [entry] = world.staff.get("/v1/admin/audit?action=report.delete").json()["data"]
    assert (entry["actor_name"], entry["subject"]) == ("ann", report["sha256"])


def test_nobody_keeps_more_reports_than_the_limit(world: World) -> None:
    job_id = world.ann.post("/v1/jobs", json=job_spec()).json()["id"]
    first = written(world, jobs=[job_id])
    with world.database.write() as session:
        mine = session.get_one(Report, first["sha256"])
        for number in range(MAX_REPORTS - 1):
            session.add(
                Report(
                    sha256=f"{number:064x}",
                    user_id=mine.user_id,
                    title="",
                    content="{}",
                    made_at=mine.made_at,
                )
            )
    refused = world.ann.post("/v1/reports", json={"jobs": [job_id]})
    assert (refused.status_code, refused.json()["code"]) == (409, "too_many_reports")
    assert f"You have {MAX_REPORTS} reports" in refused.json()["detail"]
    assert world.ann.delete(f"/v1/reports/{first['sha256']}").status_code == 204
    written(world, jobs=[job_id])


def test_it_stays_as_it_was_told_when_the_job_goes_on(world: World) -> None:
    job_id = world.ann.post("/v1/jobs", json=job_spec()).json()["id"]
    report = written(world, jobs=[job_id])
    assert world.ann.post(f"/v1/jobs/{job_id}/cancel").status_code == 200
    again = world.ann.get(f"/v1/reports/{report['sha256']}").json()
    assert again["content"]["jobs"][0]["job"]["state"] == "queued"


def test_of_a_lease_it_tells_every_job_that_ran_in_it(world: World, trained: str) -> None:
    [attempt] = world.ann.get(f"/v1/jobs/{trained}/attempts").json()["data"]
    report = written(world, lease=attempt["lease"])
    assert report["content"]["lease"]["id"] == attempt["lease"]
    assert [told["job"]["id"] for told in report["content"]["jobs"]] == [trained]


def test_other_peoples_jobs_and_reports_are_not_there(world: World, trained: str) -> None:
    report = written(world, jobs=[trained])
    address = f"/v1/reports/{report['sha256']}"
    assert world.bob.post("/v1/reports", json={"jobs": [trained]}).status_code == 404
    assert world.bob.get(address).status_code == 404
    assert world.bob.get("/v1/reports").json()["data"] == []
    assert world.staff.get(address).status_code == 200


@pytest.mark.parametrize("body", [{}, {"jobs": [], "lease": None}, {"jobs": ["x"], "lease": "y"}])
def test_it_names_jobs_or_a_lease(world: World, body: dict[str, Any]) -> None:
    answer = world.ann.post("/v1/reports", json=body)
    assert (answer.status_code, answer.json()["param"]) == (422, "jobs")


def test_reports_come_page_by_page(world: World, trained: str) -> None:
    made = [written(world, jobs=[trained], title=f"nr. {index}")["sha256"] for index in range(3)]
    first = world.ann.get("/v1/reports?limit=2").json()
    assert ([line["sha256"] for line in first["data"]], first["has_more"]) == (
        [made[2], made[1]],
        True,
    )
    rest = world.ann.get(f"/v1/reports?limit=2&after={made[1]}").json()
    assert ([line["sha256"] for line in rest["data"]], rest["has_more"]) == ([made[0]], False)


def test_reports_of_one_moment_are_all_listed(world: World, trained: str) -> None:
    made = {written(world, jobs=[trained], title=title)["sha256"] for title in "abc"}
    with world.database.write() as session:
        session.execute(update(Report).values(made_at=utc_now()))
    found, after = [], None
    while True:
        page = world.ann.get("/v1/reports", params={"limit": 1, "after": after}).json()
        found += [line["sha256"] for line in page["data"]]
        if not page["has_more"]:
            break
        after = found[-1]
    assert (len(found), set(found)) == (3, made)
    wrong = world.ann.get("/v1/reports", params={"after": "0" * 64})
    assert (wrong.status_code, wrong.json()["param"]) == (422, "after")
