"""Retention on a running application: what goes, what stays, who is told, and who sweeps."""

import hashlib
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import func, select, update

from api.files.retention import Retention, held_off
from api.files.store import Store
from core.base.clock import utc_now
from core.process.settings import ApiSettings
from core.tables.admin import AuditEntry
from core.tables.files import Checkpoint, StoredFile
from core.tables.notices import Notice
from core.tables.telemetry import LogChunk, MetricChunk
from tests.api.conftest import World, running_world
from tests.api.scripts.test_scripts import packed
from tests.api.shapes import exit_record, free, heartbeat, job_spec, place

DAY = timedelta(days=1)


def put(world: World, path: str, content: bytes) -> dict[str, Any]:
    sha256 = hashlib.sha256(content).hexdigest()
    assert world.node.put(f"/v1/node/files/{sha256}", content=content).status_code in (200, 201)
    return {"path": path, "sha256": sha256, "size": len(content)}


def beat(world: World, job_id: str, **seen: Any) -> None:
    observed = {"job_id": job_id, "epoch": 1, **seen}
    assert world.node.post("/v1/node/heartbeat", json=heartbeat(observed)).status_code == 200


def trained(world: World, name: str, *, has_ended: bool = True, size: int = 10) -> str:
    """A job with logs, metrics, two checkpoints and an artifact."""
    job_id = str(world.ann.post("/v1/jobs", json=job_spec(name=name)).json()["id"])
    place(world.database, job_id)
    beat(world, job_id, phase="running", step=1)
    told = {"job_id": job_id, "epoch": 1}
    lines = [{"step": 1, "time": 1.0, "loss": 2.0}]
    metrics = {**told, "rank": 0, "first_line": 0, "lines": lines}
    assert world.node.post("/v1/node/metrics", json=metrics).status_code == 200
    log = {**told, "rank": 0, "stream": "stdout", "first_byte": 0}
    log |= {"size": 6, "content": "hello\n"}
    assert world.node.post("/v1/node/logs", json=log).status_code == 200
    for step in (200, 400):
        files = [put(world, "manifest.json", f"{name} {step} ".encode().ljust(size, b"x"))]
        report = {**told, "step": step, "files": files}
        assert world.node.post("/v1/node/checkpoints", json=report).status_code == 204
    artifact = {**told, "file": put(world, "sample.txt", name.encode())}
    assert world.node.post("/v1/node/artifacts", json=artifact).status_code == 204
    if has_ended:
        beat(world, job_id, phase="exited", exit=exit_record(job_id), kept=True)
        free(world.database, "box")
    return job_id


def kept(world: World, job_id: str) -> dict[str, int]:
    """How much is left of each thing."""
    with world.database.read() as session:
        return {
            "logs": session.scalar(select(func.count(LogChunk.id))) or 0,
            "metrics": session.scalar(select(func.count(MetricChunk.id))) or 0,
            "checkpoints": len(world.ann.get(f"/v1/jobs/{job_id}/checkpoints").json()["data"]),
            "artifacts": len(world.ann.get(f"/v1/jobs/{job_id}/artifacts").json()["data"]),
        }


def retention(world: World, **changes: Any) -> Retention:
    settings = world.process.settings.model_copy(update=changes)
    return Retention(world.database, world.store, settings, "test")


def files_on_disk(world: World) -> int:
    return sum(len(list(path.iterdir())) for path in world.store.root.glob("[0-9a-f]?"))


def events(world: World, job_id: str) -> list[dict[str, Any]]:
    return list(world.ann.get(f"/v1/jobs/{job_id}/events").json()["data"])


def test_what_is_too_old_goes_with_an_event_that_says_why(world: World) -> None:
    job_id = trained(world, "old")
    before = kept(world, job_id)
    assert before["checkpoints"] == 2
    assert min(before.values()) >= 1
    assert retention(world).run(utc_now() + 100 * DAY)
    assert kept(world, job_id) == before
    assert retention(world).run(utc_now() + 200 * DAY)
    assert kept(world, job_id) == {**before, "logs": 0, "checkpoints": 0}
    told = [event for event in events(world, job_id) if event["reason_code"] == "age"]
    assert sorted(event["kind"] for event in told) == ["checkpoints_deleted", "logs_deleted"]
    assert "The job ended 200 days ago; logs are kept for 180." in told[0]["message"]


def test_nothing_of_a_job_that_goes_on_is_ever_deleted(world: World) -> None:
    job_id = trained(world, "live", has_ended=False)
    before, files = kept(world, job_id), files_on_disk(world)
    retention(world, user_storage_gib=1e-9).run(utc_now() + 5000 * DAY)
    assert kept(world, job_id) == before
    assert files_on_disk(world) == files


def test_code_goes_when_no_job_has_used_it_for_the_days_that_it_is_kept(world: World) -> None:
    used, unused = (
        world.ann.post("/v1/code", content=packed({"train.py": text})).json()["sha256"]
        for text in ("print(1)", "print(2)")
    )
    spec = {
        "name": "mine",
        "script": {"entry": "train.py", "code": used},
        "resources": {"ranks_per_node": 1, "wall_time": "10min"},
    }
    job_id = world.ann.post("/v1/jobs", json=spec).json()["id"]

    def left() -> set[str]:
        return {line["sha256"] for line in world.ann.get("/v1/code").json()["data"]}

    assert retention(world).run(utc_now() + 700 * DAY)
    assert left() == {used, unused}
    assert retention(world).run(utc_now() + 800 * DAY)
    assert left() == {used}, "its job has not ended"
    assert world.ann.post(f"/v1/jobs/{job_id}/cancel").status_code == 200
    assert retention(world, keep_code_days=0).run(utc_now() + 900 * DAY)
    assert left() == {used}
    assert retention(world).run(utc_now() + 901 * DAY)
    assert left() == set()
    with world.database.read() as session:
        told = session.scalars(select(AuditEntry).where(AuditEntry.action == "code.expire")).all()
    assert [entry.details["archives"] for entry in told] == [1, 1]


def test_files_that_nothing_names_leave_the_store_after_a_day(world: World) -> None:
    job_id = trained(world, "swept")
    before = files_on_disk(world)
    now = utc_now() + 200 * DAY
    retention(world).run(now)  # the files were named when they were stored: long ago by now
    assert files_on_disk(world) == before - 2  # both checkpoints'; the artifact stays
    with world.database.read() as session:
        entry = session.scalars(select(AuditEntry).where(AuditEntry.action == "store.sweep")).one()
        gone = session.scalar(
            select(func.count()).select_from(StoredFile).where(StoredFile.gone_at.is_not(None))
        )
    assert (entry.details["files"], gone) == (2, 2)
    (artifact,) = world.ann.get(f"/v1/jobs/{job_id}/artifacts").json()["data"]
    assert world.ann.get(f"/v1/jobs/{job_id}/artifacts/{artifact['id']}").status_code == 200


def test_a_swept_file_may_come_again(world: World) -> None:
    trained(world, "again")
    retention(world).run(utc_now() + 200 * DAY)
    job_id = trained(world, "again")
    (_, first) = world.ann.get(f"/v1/jobs/{job_id}/checkpoints").json()["data"]
    answer = world.ann.get(
        f"/v1/jobs/{job_id}/checkpoints/{first['id']}", params={"path": "manifest.json"}
    )
    assert answer.content == b"again 200 "


def test_a_file_that_is_named_while_it_is_swept_stays(world: World) -> None:
    """A node asks whether the store has the file, and names it a little later."""
    trained(world, "first")
    with world.database.write() as session:
        session.execute(update(Checkpoint).values(deleted_at=utc_now(), files=[]))
        session.execute(update(StoredFile).values(named_at=utc_now() - 3 * DAY))
    job_id = str(world.ann.post("/v1/jobs", json=job_spec(name="first")).json()["id"])
    place(world.database, job_id)
    beat(world, job_id, phase="running", step=1)
    content = b"first 200 "
    sha256 = hashlib.sha256(content).hexdigest()
    assert world.node.head(f"/v1/node/files/{sha256}").status_code == 200
    file = {"path": "manifest.json", "sha256": sha256, "size": len(content)}
    report = {"job_id": job_id, "epoch": 1, "step": 200, "files": [file]}
    swept = retention(world)
    assert world.node.post("/v1/node/checkpoints", json=report).status_code == 204
    swept.run(utc_now())
    assert world.store.has(sha256)
    swept.run(utc_now() + DAY)
    assert world.store.has(sha256)


def test_a_report_about_a_swept_file_asks_for_it_again(world: World) -> None:
    trained(world, "first")
    with world.database.write() as session:
        session.execute(update(Checkpoint).values(deleted_at=utc_now(), files=[]))
    retention(world).run(utc_now() + 2 * DAY)
    job_id = str(world.ann.post("/v1/jobs", json=job_spec(name="first")).json()["id"])
    place(world.database, job_id)
    content = b"first 200 "
    sha256 = hashlib.sha256(content).hexdigest()
    assert world.node.head(f"/v1/node/files/{sha256}").status_code == 404
    file = {"path": "manifest.json", "sha256": sha256, "size": len(content)}
    report = {"job_id": job_id, "epoch": 1, "step": 200, "files": [file]}
    answer = world.node.post("/v1/node/checkpoints", json=report)
    assert answer.json()["code"] == "file_missing"


def test_over_the_limit_superseded_checkpoints_go_and_the_owner_is_warned_once(
    world: World,
) -> None:
    job_id = trained(world, "big", size=4000)
    limit = 6000 / (1 << 30)
    chore = retention(world, user_storage_gib=limit)
    assert chore.run(utc_now())
    assert [c["step"] for c in world.ann.get(f"/v1/jobs/{job_id}/checkpoints").json()["data"]] == [
        400
    ]
    (told,) = [event for event in events(world, job_id) if event["reason_code"] == "storage"]
    assert "ann holds 7.8 KiB; the limit is 5.9 KiB" in told["message"]
    assert chore.run(utc_now() + DAY)
    with world.database.read() as session:
        (notice,) = session.scalars(select(Notice)).all()
    assert notice.kind == "storage_nearly_full"
    assert "nothing can be uploaded or submitted" in notice.facts["message"]


def test_who_is_in_two_labs_loses_no_more_than_the_limits_ask_for(world: World) -> None:
    for lab in ("vision", "speech"):
        lab_id = world.admin.post("/v1/labs", json={"name": lab}).json()["id"]
        added = world.admin.post(f"/v1/labs/{lab_id}/members", json={"user": "ann"})
        assert added.status_code < 300
    jobs = [trained(world, name, size=4000) for name in ("first", "second")]
    limit = 8100 / (1 << 30)
    assert retention(world, user_storage_gib=limit, lab_storage_gib=limit).run(utc_now())
    assert [kept(world, job_id)["checkpoints"] for job_id in jobs] == [1, 1]


def test_two_processes_do_not_both_forget(world: World) -> None:
    now = utc_now()
    assert retention(world).run(now)
    assert not retention(world).run(now + timedelta(hours=4))
    assert retention(world).run(now + timedelta(hours=6))


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_over_the_limit_nothing_more_is_taken_and_the_answer_says_why(
    settings: ApiSettings,
) -> None:
    with running_world(settings.model_copy(update={"user_storage_gib": 20 / (1 << 30)})) as world:
        trained(world, "full", size=100)
        refusals = [
            world.ann.post("/v1/jobs", json=job_spec()),
            world.ann.post("/v1/datasets?name=more", content=b"some text\n" * 500),
        ]
        for answer in refusals:
            assert (answer.status_code, answer.json()["code"]) == (409, "storage_full")
            assert "ann holds 204 bytes of 20 bytes" in answer.json()["detail"]
        assert world.bob.post("/v1/jobs", json=job_spec()).status_code == 201
        mine = world.ann.get("/v1/me/storage").json()
        assert mine["by_kind"] == {"checkpoints": 200, "artifacts": 4}
        assert mine["limits"] == [{"name": "ann", "used": 204, "limit": 20}]
        assert len(mine["warnings"]) == 1
        assert mine["keep_days"]["logs"] == 180


class Disturbed(Store):
    """A store in which something happens while a sweep looks at it."""

    def __init__(self, store: Store, happens: Callable[[], object]) -> None:
        super().__init__(store.root)
        self.happens = happens

    def files(self, beginning: str) -> dict[str, int]:
        if beginning == "00":
            self.happens()
        return super().files(beginning)


@pytest.mark.parametrize("what", ["backup", "read-only"])
def test_a_sweep_that_is_under_way_stops_for_a_backup_and_for_read_only(
    world: World, what: str
) -> None:
    trained(world, "first")
    with world.database.write() as session:
        session.execute(update(Checkpoint).values(deleted_at=utc_now(), files=[]))
        session.execute(update(StoredFile).values(named_at=utc_now() - 3 * DAY))
    wish = {"minutes": 10, "reason": "It moves."}
    with ExitStack() as held:

        def happens() -> None:
            if what == "backup":
                held.enter_context(held_off(world.database))
            else:
                assert world.admin.post("/v1/admin/read-only", json=wish).status_code == 200

        store = Disturbed(world.store, happens)
        sweep = Retention(world.database, store, world.process.settings, "test")
        assert not sweep.run(utc_now())
        assert files_on_disk(world) == 3
        assert not retention(world).run(utc_now())
    world.admin.delete("/v1/admin/read-only")
    assert retention(world).run(utc_now() + timedelta(hours=6))
    assert files_on_disk(world) == 1  # the artifact
