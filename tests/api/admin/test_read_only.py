"""Read-only: changes wait, reading and running go on, and it ends by itself."""

from datetime import timedelta

from sqlalchemy import func, select, update

from api.housekeeping import forget_old
from core.base.clock import utc_now
from core.tables.people import Link
from core.tables.processes import Claim
from tests.api.conftest import World
from tests.api.shapes import heartbeat, job_spec, place
from tests.one_database import quick_on_sqlite

WISH = {"minutes": 10, "reason": "It moves to another machine."}


def test_changes_answer_503_with_the_reason_and_reading_goes_on(world: World) -> None:
    job_id = world.ann.post("/v1/jobs", json=job_spec()).json()["id"]
    until = world.admin.post("/v1/admin/read-only", json=WISH).json()["until"]
    assert until is not None
    for answer in (
        world.ann.post("/v1/jobs", json=job_spec()),
        world.ann.post(f"/v1/jobs/{job_id}/cancel"),
        world.ann.post("/v1/datasets?name=more", content=b"some text\n" * 500),
        world.node.post("/v1/node/heartbeat", json=heartbeat()),
    ):
        assert (answer.status_code, answer.json()["code"]) == (503, "read_only")
        assert answer.headers["Retry-After"] == "30"
        assert "It moves to another machine. Running jobs continue." in answer.json()["detail"]
    assert world.ann.get(f"/v1/jobs/{job_id}").json()["state"] == "queued"
    assert world.ann.get("/v1/me").status_code == 200
    assert world.staff.get("/v1/admin/read-only").json()["read_only"]


def test_afterwards_a_node_brings_what_it_has_kept(world: World) -> None:
    job_id = world.ann.post("/v1/jobs", json=job_spec()).json()["id"]
    place(world.database, job_id)
    world.admin.post("/v1/admin/read-only", json=WISH)
    seen = {"job_id": job_id, "epoch": 1, "phase": "running", "step": 3}
    assert world.node.post("/v1/node/heartbeat", json=heartbeat(seen)).status_code == 503
    assert world.admin.delete("/v1/admin/read-only").status_code == 204
    assert world.node.post("/v1/node/heartbeat", json=heartbeat(seen)).status_code == 200
    assert world.ann.get(f"/v1/jobs/{job_id}").json()["state"] == "running"


def test_it_ends_by_itself(world: World) -> None:
    world.admin.post("/v1/admin/read-only", json=WISH)
    with world.database.write() as session:
        session.execute(update(Claim).values(until=utc_now() - timedelta(seconds=1)))
    assert world.ann.post("/v1/jobs", json=job_spec()).status_code == 201


@quick_on_sqlite
def test_only_administrators_begin_and_end_it(world: World) -> None:
    assert world.ann.post("/v1/admin/read-only", json=WISH).status_code == 403
    assert world.staff.post("/v1/admin/read-only", json=WISH).status_code == 403
    assert world.staff.delete("/v1/admin/read-only").status_code == 403


def test_calendars_are_read_and_old_links_stay_and_nothing_is_written(world: World) -> None:
    feed = world.ann.post("/v1/calendars", json={}).json()
    world.ann.post("/v1/me/login-link")
    world.admin.post("/v1/admin/read-only", json=WISH)
    assert "BEGIN:VCALENDAR" in world.nobody.get(feed["url"]).text
    soon = utc_now() + timedelta(minutes=5)  # it is read-only still
    with world.database.write() as session:
        session.execute(update(Link).values(expires_at=soon - timedelta(days=8)))
    forget_old(world.database, soon)
    with world.database.read() as session:
        assert session.scalar(select(func.count()).select_from(Link)) != 0
    assert world.ann.get("/v1/calendars").json()["data"][0]["last_used_at"] is None
    assert world.admin.delete("/v1/admin/read-only").status_code == 204
    assert "BEGIN:VCALENDAR" in world.nobody.get(feed["url"]).text
    forget_old(world.database, soon)
    assert world.ann.get("/v1/calendars").json()["data"][0]["last_used_at"] is not None
    with world.database.read() as session:
        assert session.scalar(select(func.count()).select_from(Link)) == 0
