"""What the page of one node shows: who has its slots, now and next, and its history."""

from tests.api.conftest import World
from tests.api.shapes import job_spec, place
from tests.api.times import next_hour


def test_everyone_sees_who_has_a_node_and_only_the_owner_and_staff_who_has_booked_it(
    world: World,
) -> None:
    job = world.bob.post("/v1/jobs", json=job_spec()).json()["id"]
    place(world.database, job)
    body = {"node": "box", "start": next_hour(3), "hours": 2}
    booked = world.ann.post("/v1/leases", json=body).json()
    for viewer, owner, lease in (
        (world.ann, "ann", booked["id"]),
        (world.staff, "ann", booked["id"]),
        (world.bob, None, None),
    ):
        now, then = viewer.get("/v1/nodes/box/holds").json()["data"]
        assert (now["kind"], now["walk_in"], now["user"]) == ("lease", True, "bob")
        assert (now["lease"] is None) == (viewer is world.ann)
        assert (then["user"], then["lease"], then["slots"]) == (owner, lease, [])
        assert then["hold_start"] == booked["hold_start"]
    assert world.ann.get("/v1/nodes/nowhere/holds").status_code == 404


def test_a_nodes_history_is_its_changes_of_state_with_their_reasons(world: World) -> None:
    sent = world.staff.post("/v1/admin/nodes/box/drain", json={"reason": "new disk"})
    assert sent.status_code == 200
    world.staff.post("/v1/admin/nodes/box/resume")
    events = world.ann.get("/v1/nodes/box/events").json()["data"]
    assert [one["to_state"] for one in events[:2]] == ["ready", "draining"]
    assert "new disk" in events[1]["message"]
    page = world.ann.get("/v1/nodes/box/events", params={"limit": 1}).json()
    assert page["has_more"]
    after = {"after": page["data"][0]["id"]}
    assert world.ann.get("/v1/nodes/box/events", params=after).json()["data"] == events[1:]


def test_jobs_are_listed_by_the_lease_that_they_name_or_have_run_in(world: World) -> None:
    body = {"node": "box", "start": next_hour(3), "hours": 2}
    lease = world.ann.post("/v1/leases", json=body).json()["id"]
    named = world.ann.post("/v1/jobs", json={**job_spec(), "lease": lease}).json()["id"]
    other = world.ann.post("/v1/jobs", json=job_spec()).json()["id"]
    place(world.database, other)
    walk_in = world.ann.get("/v1/leases", params={"state": "active"}).json()["data"][0]["id"]
    for asked, jobs in ((lease, [named]), (walk_in, [other])):
        found = world.ann.get("/v1/jobs", params={"lease": asked}).json()["data"]
        assert [job["id"] for job in found] == jobs
    assert world.bob.get("/v1/jobs", params={"lease": lease}).json()["data"] == []
