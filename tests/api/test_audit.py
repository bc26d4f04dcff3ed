"""The audit log is asked: by whom, what, about what, when."""

from datetime import UTC, datetime, timedelta

import pytest

from tests.api.conftest import World

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
