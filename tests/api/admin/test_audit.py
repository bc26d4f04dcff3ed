"""The audit log is asked: by whom, what, about what, when."""

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import update
from starlette.testclient import TestClient

from core.base.clock import utc_now
from core.process import read_only
from core.tables.admin import AuditEntry
from tests.api.conftest import World
from tests.api.jobs.test_files_of_jobs import put
from tests.api.shapes import job_spec, place

# Plain columns: once is enough.
pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


def kinds(world: World, **asked: str) -> list[str]:
    answer = world.staff.get("/v1/admin/audit", params=asked)
    assert answer.status_code == 200, answer.text
    return [entry["kind"] for entry in answer.json()["data"]]


def test_the_log_is_asked_by_actor_action_subject_and_time(world: World) -> None:
    world.staff.post("/v1/admin/nodes/box/drain")
    world.admin.post("/v1/admin/nodes/box/resume")
    world.ann.post("/v1/tokens", json={"name": "laptop"})
    assert kinds(world, actor="stefan") == ["node.drain"]
    assert kinds(world, actor="ada", action="node.") == ["node.resume"]
    assert kinds(world, action="token.make") == ["token.make"]
    assert kinds(world, action="token") == []
    assert kinds(world, subject="box", action="node.drain") == ["node.drain"]
    now = datetime.now(UTC)
    assert kinds(world, since=(now + timedelta(hours=1)).isoformat()) == []
    assert "token.make" in kinds(world, until=(now + timedelta(hours=1)).isoformat())
    refused = world.staff.get("/v1/admin/audit", params={"since": "2026-11-21T12:00:00"})
    assert (refused.status_code, refused.json()["param"]) == (422, "since")
    assert world.ann.get("/v1/admin/audit").status_code == 403


def test_people_and_nodes_are_named_and_what_has_no_name_keeps_its_id(world: World) -> None:
    world.staff.post("/v1/admin/nodes/box/drain")
    world.ann.post("/v1/tokens", json={"name": "laptop"})
    entries = world.staff.get("/v1/admin/audit").json()["data"]
    named = {one["kind"]: (one["actor_name"], one["subject_name"]) for one in entries}
    assert named["node.drain"] == ("stefan", "box")
    assert named["token.make"] == ("ann", None)


def reads(world: World, **asked: str) -> list[str]:
    return [kind for kind in kinds(world, action="job.", **asked) if "read" in kind]


def test_staff_who_read_what_others_jobs_left_are_in_the_log_once_an_hour(world: World) -> None:
    job = world.ann.post("/v1/jobs", json=job_spec()).json()["id"]
    place(world.database, job)
    file = put(world, "sample.txt", b"To be")
    checkpoint = {"job_id": job, "epoch": 1, "step": 200, "files": [file]}
    assert world.node.post("/v1/node/checkpoints", json=checkpoint).status_code == 204
    artifact = {"job_id": job, "epoch": 1, "file": file}
    assert world.node.post("/v1/node/artifacts", json=artifact).status_code == 204
    (kept,) = world.ann.get(f"/v1/jobs/{job}/checkpoints").json()["data"]
    (left,) = world.ann.get(f"/v1/jobs/{job}/artifacts").json()["data"]
    pages = [
        f"/v1/jobs/{job}/logs",
        f"/v1/jobs/{job}/checkpoints/{kept['id']}",
        f"/v1/jobs/{job}/artifacts/{left['id']}",
    ]

    def read(*readers: TestClient) -> None:
        for reader in readers:
            assert [reader.get(page).status_code for page in pages] == [200] * 3

    rows = ["job.read_artifact", "job.read_checkpoint", "job.read_logs"]
    read(world.ann)
    assert reads(world) == []
    read(world.staff, world.staff)
    assert sorted(reads(world)) == rows
    read(world.admin)
    assert sorted(reads(world, actor="ada")) == rows
    with world.database.write() as session:
        session.execute(update(AuditEntry).values(at=utc_now() - timedelta(minutes=61)))
    read(world.staff)
    assert sorted(reads(world, actor="stefan")) == sorted(rows * 2)


def test_while_nothing_may_be_changed_staff_still_read(world: World) -> None:
    job = world.ann.post("/v1/jobs", json=job_spec()).json()["id"]
    with world.database.write() as session:
        read_only.begin(session, "A backup runs.", now=utc_now(), lasts=timedelta(minutes=5))
    assert world.staff.get(f"/v1/jobs/{job}/logs").status_code == 200
    assert reads(world) == []


def test_staff_who_watch_or_resume_anothers_job_are_in_the_log(world: World) -> None:
    job = world.ann.post("/v1/jobs", json=job_spec()).json()["id"]
    for who, rows in ((world.ann, 0), (world.staff, 1)):
        assert who.post(f"/v1/jobs/{job}/pause").status_code == 200
        assert who.post(f"/v1/jobs/{job}/resume").status_code == 200
        assert len(kinds(world, action="job.resume", subject=job)) == rows
    world.ann.post(f"/v1/jobs/{job}/cancel")
    assert world.staff.get(f"/v1/jobs/{job}/stream").status_code == 200  # it ends at once
    assert kinds(world, action="job.read_logs") == ["job.read_logs"]
