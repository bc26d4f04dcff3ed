"""Workspaces over HTTP: one writer at a time, a quota, snapshots, and nobody else's."""

import hashlib
from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select, update

from api.files.retention import Retention, named_files
from core.base.clock import utc_now
from core.jobs.attempts import end_part
from core.jobs.gang_exit import PartEnd
from core.tables.files import StoredFile
from core.tables.jobs import Attempt, AttemptPart, Job
from core.tables.kinds import WorkspaceAccess
from core.tables.workspaces import Workspace, WorkspaceSnapshot
from core.wire.workspace_tree import Entry, EntryKind, tree_bytes, tree_of
from core.workspaces.snapshots import KEPT, KEPT_FOR, prune
from tests.api.conftest import World
from tests.api.scripts.test_scripts import packed
from tests.api.shapes import exit_record, free, heartbeat, place
from tests.one_database import quick_on_sqlite

pytestmark = pytest.mark.db
on_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


def submit(world: World, caller: TestClient | None = None, **changes: Any) -> str:
    caller = caller or world.ann
    code = caller.post(
        "/v1/code",
        content=packed({"train.py": "print()"}),
        headers={"Content-Type": "application/zip"},
    ).json()["sha256"]
    spec = {
        "name": "mine",
        "script": {"entry": "train.py", "code": code, "launcher": "python"},
        "workspace": True,
        "resources": {"ranks_per_node": 1, "wall_time": "20min"},
        **changes,
    }
    answer = caller.post("/v1/jobs", json=spec)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def orders(world: World, *seen: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The node's orders by job."""
    answer = world.node.post("/v1/node/heartbeat", json=heartbeat(*seen))
    assert answer.status_code == 200, answer.text
    return {one["job_id"]: one for one in answer.json()["attempts"]}


def started(world: World, **changes: Any) -> tuple[str, dict[str, Any]]:
    """A job of ann's on the node, and its order's workspace."""
    job_id = submit(world, **changes)
    place(world.database, job_id, num_slots=1)
    return job_id, orders(world)[job_id]["workspace"]


def bring(
    world: World, job_id: str, contents: Mapping[str, bytes], *, epoch: int = 1, final: bool = False
) -> Any:
    """What a node does for a snapshot; the answer."""
    entries, blobs = [], dict[str, bytes]()
    for path, content in contents.items():
        sha256 = hashlib.sha256(content).hexdigest()
        blobs[sha256] = content
        entries.append(Entry(path=path, kind=EntryKind.FILE, size=len(content), sha256=sha256))
    tree = tree_of(entries, [])
    document = tree_bytes(tree)
    own = hashlib.sha256(document).hexdigest()
    blobs[own] = document
    asked = {"job_id": job_id, "epoch": epoch, "files": list(blobs)}
    missing = world.node.post("/v1/node/workspaces/missing", json=asked)
    assert missing.status_code == 200, missing.text
    for sha256 in missing.json()["files"]:
        assert world.node.put(f"/v1/node/files/{sha256}", content=blobs[sha256]).is_success
    return world.node.post(
        "/v1/node/workspaces/snapshots",
        json={
            "job_id": job_id,
            "epoch": epoch,
            "size": tree.size,
            "files": len(entries),
            "tree": {"sha256": own, "size": len(document)},
            "final": final,
        },
    )


def end(world: World, job_id: str, *, kept: bool = True) -> None:
    record = exit_record(job_id, result=None)
    seen = {"job_id": job_id, "epoch": 1, "phase": "exited", "exit": record, "kept": kept}
    orders(world, seen)
    free(world.database)


def events(world: World, job_id: str) -> dict[str, str]:
    rows = world.ann.get(f"/v1/jobs/{job_id}/events").json()["data"]
    return {row["kind"]: row["message"] for row in rows}


def content(caller: TestClient, path: str, **query: str) -> bytes:
    answer = caller.get("/v1/workspace/content", params={"path": path, **query})
    assert answer.status_code == 200, answer.text
    return answer.content


def test_the_next_program_begins_with_what_the_last_one_left(world: World) -> None:
    job_id, workspace = started(world)
    assert (workspace["access"], workspace["tree"]) == ("write", None)
    me = world.ann.get("/v1/workspace").json()
    assert (me["files"], me["writer"]["job"]) == (0, job_id)
    assert bring(world, job_id, {"a": b"1", "b": b"2"}).json() == {"kept": True, "message": ""}
    assert bring(world, job_id, {"a": b"1", "b": b"22"}, final=True).json()["kept"]
    end(world, job_id)
    me = world.ann.get("/v1/workspace").json()
    assert (me["used"], me["files"], me["writer"]) == (3, 2, None)
    assert content(world.ann, "b") == b"22"
    next_id, workspace = started(world)
    assert workspace["access"] == "write"
    tree = world.node.get(f"/v1/node/files/{workspace['tree']['sha256']}")
    assert tree.status_code == 200
    for blob in (b"1", b"22"):
        url = f"/v1/node/files/{hashlib.sha256(blob).hexdigest()}"
        assert world.node.get(url).content == blob
    assert "workspace_read_only" not in events(world, next_id)


def test_a_second_program_meanwhile_reads_and_its_owner_is_told_before(world: World) -> None:
    first, _ = started(world, name="the writer")
    bring(world, first, {"a": b"1"})
    code = world.ann.get(f"/v1/jobs/{first}").json()["spec"]["script"]["code"]
    spec = {
        "name": "second",
        "script": {"entry": "train.py", "code": code, "launcher": "python"},
        "workspace": True,
        "resources": {"ranks_per_node": 1, "wall_time": "20min"},
    }
    reason = world.ann.post("/v1/jobs/plan", json={"spec": spec}).json()["reason"]
    assert "the writer" in reason
    assert "read-only" in reason
    second, workspace = started(world, name="second")
    assert workspace["access"] == "read"
    assert workspace["tree"] is not None
    told = events(world, second)["workspace_read_only"]
    assert "the writer" in told
    assert first in told
    refused = bring(world, second, {"a": b"mine"})
    assert refused.status_code == 409
    assert content(world.ann, "a") == b"1"
    # Another person's program is not concerned.
    theirs = submit(world, world.bob)
    with world.database.read() as session:
        assert session.scalar(select(Workspace.user_id).where(Workspace.user_id == theirs)) is None


def test_a_lost_node_gives_the_workspace_back_as_it_was_kept_last(world: World) -> None:
    job_id, _ = started(world)
    bring(world, job_id, {"a": b"kept"})
    now = utc_now()
    with world.database.write() as session:
        job = session.get_one(Job, job_id)
        attempt = session.scalars(select(Attempt).where(Attempt.job_id == job_id)).one()
        part = session.get_one(AttemptPart, (attempt.id, 0))
        lost = PartEnd(None, lost="box is silent.")
        assert end_part(session, job, attempt, part, lost, now=now, actor="test")
    assert "as it was at" in events(world, job_id)["workspace_went_back"]
    assert world.ann.get("/v1/workspace").json()["writer"] is None
    late = bring(world, job_id, {"a": b"late"}, final=True)
    assert late.status_code == 409
    assert content(world.ann, "a") == b"kept"


def test_an_ended_program_whose_last_snapshot_is_on_its_way_still_holds_it(world: World) -> None:
    job_id, _ = started(world)
    end(world, job_id, kept=False)
    assert world.ann.get("/v1/workspace").json()["writer"]["job"] == job_id
    assert bring(world, job_id, {"a": b"last"}, final=True).json()["kept"]
    assert world.ann.get("/v1/workspace").json()["writer"] is None
    assert content(world.ann, "a") == b"last"


@on_sqlite
def test_a_snapshot_beyond_the_quota_is_refused_with_number_and_limit(world: World) -> None:
    world.process.settings.__dict__.update(workspace_gib=1000 / 2**30, workspace_files=3)
    job_id, workspace = started(world)
    assert (workspace["max_bytes"], workspace["max_files"]) == (1000, 3)
    assert bring(world, job_id, {"a": b"x" * 500}).json()["message"] == ""
    near = bring(world, job_id, {"a": b"x" * 950}).json()
    assert near["kept"]
    assert "nearly full: 950 bytes of 1000 bytes" in near["message"]
    over = bring(world, job_id, {"a": b"x" * 1001}).json()
    assert not over["kept"]
    assert "1001 bytes of at most 1000 bytes" in over["message"]
    many = bring(world, job_id, {name: b"" for name in "abcd"}).json()
    assert "4 files and folders of at most 3" in many["message"]
    told = events(world, job_id)
    assert "nearly full" in told["workspace_nearly_full"]
    assert "not kept" in told["workspace_not_kept"]
    me = world.ann.get("/v1/workspace").json()
    assert me["used"] == 950
    assert "at most 3" in me["trouble"]
    assert world.ann.get(f"/v1/jobs/{job_id}").json()["state"] == "starting"
    again = bring(world, job_id, {"a": b"x"}, final=True).json()
    assert again == {"kept": True, "message": ""}


def test_what_a_node_sees_in_a_shared_folder_is_its_owners_to_see_and_warned_about(
    world: World,
) -> None:
    world.process.settings.__dict__.update(workspace_gib=1000 / 2**30, workspace_files=3)
    job_id, _ = started(world)

    def look(size: int, files: int, *top: tuple[str, str, int, int]) -> Any:
        named = [dict(zip(("path", "kind", "size", "files"), one, strict=True)) for one in top]
        use = {"size": size, "files": files, "top": named}
        return world.node.post(
            "/v1/node/workspaces/shared", json={"job_id": job_id, "epoch": 1, "use": use}
        )

    assert look(1, 1).json()["code"] == "stale_epoch"  # it writes to a copy of its own
    with world.database.write() as session:
        session.execute(
            update(Attempt)
            .where(Attempt.job_id == job_id)
            .values(workspace_access=WorkspaceAccess.SHARED)
        )
    assert world.ann.get("/v1/workspace").json()["shared"] is None
    assert look(500, 2, ("notes", "folder", 500, 1)).json() == {"message": ""}
    seen = world.ann.get("/v1/workspace").json()
    assert (seen["shared"]["used"], seen["shared"]["files"]) == (500, 2)
    assert seen["shared"]["top"] == [{"path": "notes", "kind": "folder", "size": 500, "files": 1}]
    assert world.bob.get("/v1/workspace").json()["shared"] is None
    assert "nearly full" in look(950, 2).json()["message"]
    over = look(2000, 4).json()["message"]
    assert over == (
        "The workspace holds 2.0 KiB of at most 1000 bytes and 4 files and folders of at most 3 in "
        "the site's shared folder. Delete something: programs that bring it are ended, and only a "
        "workbench starts."
    )
    assert world.ann.get("/v1/workspace").json()["trouble"] == over
    assert events(world, job_id)["workspace_over_quota"] == over
    assert look(1, 1).json() == {"message": ""}
    assert world.ann.get("/v1/workspace").json()["trouble"] == ""


def test_files_are_put_listed_fetched_and_deleted_by_their_owner(world: World) -> None:
    path = "my notes/été 🚂/.plan -v2"
    put = world.ann.post("/v1/workspace/files", params={"path": path}, content=b"plan")
    assert put.status_code == 201, put.text
    world.ann.post("/v1/workspace/files", params={"path": "b", "executable": "true"}, content=b"!")
    assert len(world.ann.get("/v1/workspace/snapshots").json()["data"]) == 1  # one edit
    listed = world.ann.get("/v1/workspace/files").json()["data"]
    assert [(e["path"], e["kind"], e["executable"]) for e in listed] == [
        ("b", "file", True),
        ("my notes", "folder", False),
    ]
    deep = world.ann.get("/v1/workspace/files", params={"recursive": True, "limit": 2}).json()
    assert deep["has_more"]
    rest = world.ann.get(
        "/v1/workspace/files", params={"recursive": True, "after": deep["data"][-1]["path"]}
    ).json()["data"]
    assert rest[-1]["path"] == path
    answer = world.ann.get("/v1/workspace/content", params={"path": path})
    assert answer.content == b"plan"
    assert quote(".plan -v2") in answer.headers["content-disposition"]
    assert world.ann.delete("/v1/workspace/files", params={"path": "my notes"}).status_code == 200
    assert world.ann.get("/v1/workspace").json()["files"] == 1
    gone = world.ann.delete("/v1/workspace/files", params={"path": "my notes"})
    assert gone.status_code == 404


@on_sqlite
def test_a_file_may_be_as_large_as_the_quota_and_a_stranger_sends_none(world: World) -> None:
    large = bytes(2_000_000)  # above the cap of other requests
    put = world.ann.post("/v1/workspace/files", params={"path": "large"}, content=large)
    assert put.status_code == 201, put.text
    assert content(world.ann, "large") == large
    world.process.settings.__dict__.update(workspace_gib=3_000_000 / 2**30)
    more = world.ann.post("/v1/workspace/files", params={"path": "more"}, content=large)
    assert (more.status_code, more.json()["code"]) == (409, "workspace_full")
    for caller in (world.nobody, world.node):
        refused = caller.post("/v1/workspace/files", params={"path": "x"}, content=large)
        assert refused.status_code in (401, 403)


@on_sqlite
@pytest.mark.parametrize(
    "path", ["../x", "/etc/passwd", "a/../../b", "", "a//b", ".", "x" * 300, "a\0b"]
)
def test_paths_that_lead_out_are_refused(world: World, path: str) -> None:
    for answer in (
        world.ann.post("/v1/workspace/files", params={"path": path}, content=b"x"),
        world.ann.get("/v1/workspace/content", params={"path": path}),
        world.ann.delete("/v1/workspace/files", params={"path": path}),
    ):
        assert answer.status_code == 422
        assert "path" in answer.text


def test_edits_wait_until_no_program_writes(world: World) -> None:
    job_id, _ = started(world)
    bring(world, job_id, {"a": b"1"})
    [snapshot] = world.ann.get("/v1/workspace/snapshots").json()["data"]
    for answer in (
        world.ann.post("/v1/workspace/files", params={"path": "b"}, content=b"x"),
        world.ann.delete("/v1/workspace/files", params={"path": "a"}),
        world.ann.post(f"/v1/workspace/snapshots/{snapshot['id']}/restore"),
    ):
        assert (answer.status_code, answer.json()["code"]) == (409, "workspace_in_use")
        assert job_id in answer.json()["detail"]


def test_one_goes_back_to_an_earlier_snapshot_and_forth_again(world: World) -> None:
    job_id, _ = started(world)
    bring(world, job_id, {"thesis": b"good"})
    bring(world, job_id, {"thesis": b"spoilt"}, final=True)
    end(world, job_id)
    newest, oldest = world.ann.get("/v1/workspace/snapshots").json()["data"]
    assert newest["is_current"]
    assert content(world.ann, "thesis", snapshot=oldest["id"]) == b"good"
    restored = world.ann.post(f"/v1/workspace/snapshots/{oldest['id']}/restore")
    assert restored.status_code == 201, restored.text
    assert content(world.ann, "thesis") == b"good"
    world.ann.post(f"/v1/workspace/snapshots/{newest['id']}/restore")
    assert content(world.ann, "thesis") == b"spoilt"


def test_nobody_sees_anybody_elses(world: World) -> None:
    job_id, _ = started(world)
    bring(world, job_id, {"secret": b"of ann"}, final=True)
    [snapshot] = world.ann.get("/v1/workspace/snapshots").json()["data"]
    for other in (world.bob, world.staff, world.admin):
        assert other.get("/v1/workspace").json()["files"] == 0
        assert other.get("/v1/workspace/files").json()["data"] == []
        assert other.get("/v1/workspace/snapshots").json()["data"] == []
        for answer in (
            other.get("/v1/workspace/content", params={"path": "secret"}),
            other.get("/v1/workspace/files", params={"snapshot": snapshot["id"]}),
            other.get(
                "/v1/workspace/content", params={"path": "secret", "snapshot": snapshot["id"]}
            ),
            other.post(f"/v1/workspace/snapshots/{snapshot['id']}/restore"),
            other.delete("/v1/workspace/files", params={"path": "secret"}),
        ):
            assert answer.status_code == 404, answer.text
    for stranger in (world.nobody, world.node):
        assert stranger.get("/v1/workspace").status_code in (401, 403)
    for person in (world.ann, world.nobody):
        report = person.post("/v1/node/workspaces/snapshots", json={})
        assert report.status_code in (401, 403)
    end(world, job_id)
    # Its node can no longer fetch it, nor name another's file as its own.
    own = world.node.get(f"/v1/node/files/{hashlib.sha256(b'of ann').hexdigest()}")
    assert own.status_code == 404


def test_a_tree_that_leads_out_or_lacks_a_file_is_refused(world: World) -> None:
    job_id, _ = started(world)
    for document, code in (
        (b'{"entries": [{"path": "../x", "kind": "folder"}]}', "bad_tree"),
        (b"not json", "bad_tree"),
        (
            b'{"entries": [{"path": "x", "kind": "file", "size": 1, "sha256": "'
            + b"e" * 64
            + b'"}]}',
            "file_missing",
        ),
    ):
        sha256 = hashlib.sha256(document).hexdigest()
        assert world.node.put(f"/v1/node/files/{sha256}", content=document).is_success
        answer = world.node.post(
            "/v1/node/workspaces/snapshots",
            json={
                **{"job_id": job_id, "epoch": 1, "size": 1, "files": 1},
                "tree": {"sha256": sha256, "size": len(document)},
            },
        )
        assert (answer.status_code, answer.json()["code"]) == (422, code)
    assert world.ann.get("/v1/workspace").json()["files"] == 0


@quick_on_sqlite
def test_the_newest_24_stay_for_a_week_and_their_files_are_not_swept(world: World) -> None:
    job_id, _ = started(world)
    for number in range(KEPT + 3):
        bring(world, job_id, {"a": b"%d" % number})
    bring(world, job_id, {"a": b"last"}, final=True)
    end(world, job_id)
    rows = world.ann.get("/v1/workspace/snapshots").json()["data"]
    assert len(rows) == KEPT
    named = hashlib.sha256(b"last").hexdigest()
    dropped = hashlib.sha256(b"0").hexdigest()
    later = utc_now() + KEPT_FOR + timedelta(hours=1)
    with world.database.write() as session:
        session.execute(update(StoredFile).values(created_at=utc_now() - timedelta(days=2)))
        session.execute(update(StoredFile).values(named_at=utc_now() - timedelta(days=2)))
        assert named in named_files(session)
        assert dropped not in named_files(session)
    retention = Retention(world.database, world.store, world.process.settings, "test")
    assert retention.run(later)
    assert world.store.has(named)
    assert not world.store.has(dropped)
    rows = world.ann.get("/v1/workspace/snapshots").json()["data"]
    assert [row["is_current"] for row in rows] == [True]
    assert content(world.ann, "a") == b"last"


def test_a_snapshot_that_a_live_attempt_began_with_is_not_pruned(world: World) -> None:
    world.ann.post("/v1/workspace/files", params={"path": "a"}, content=b"begun with")
    job_id, workspace = started(world)
    for number in range(3):
        bring(world, job_id, {"a": b"%d" % number})
    with world.database.write() as session:
        owner = session.get_one(Job, job_id).user_id
        prune(session, owner, now=utc_now() + 2 * KEPT_FOR)
        left = session.scalars(select(WorkspaceSnapshot.tree)).all()
    assert workspace["tree"]["sha256"] in left
    assert len(left) == 2
