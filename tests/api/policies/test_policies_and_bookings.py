"""Bookings are judged by the policy that was applied, with its windows as they are now."""

from datetime import timedelta, timezone

from core.tables.leases import Lease
from core.tables.notices import Notice
from tests.api.conftest import World
from tests.api.policies.test_policies import book, document, post
from tests.api.times import next_hour


def test_an_applied_policy_judges_bookings_until_it_is_withdrawn(world: World) -> None:
    assert book(world, hours=4)["status"] == 201
    post(world, document())
    refused = book(world, more=6, hours=4)
    assert (refused["status"], refused["code"]) == (422, "bad_block_length")
    granted = book(world, more=6, hours=3)
    assert granted["status"] == 201
    with world.database.read() as session:
        lease = session.get_one(Lease, granted["id"])
        assert (lease.policy_id, lease.policy_version) == ("lab", 1)
    assert world.staff.delete("/v1/policies/lab").status_code == 204
    assert book(world, more=10, hours=4)["status"] == 201


def test_availability_judges_every_length_that_the_rules_allow(world: World) -> None:
    """Blocks have two hours or three; one hour before a lease, and within it, none fits."""
    asked = {"start": next_hour(), "hours": 6, "any_length": True}

    def seen(**more: object) -> tuple[list[str], list[int]]:
        view = world.bob.get("/v1/leases/availability", params={**asked, **more}).json()
        whys = [[one["why"] for one in hour["taken"]] for hour in view["hours"]]
        [lengths] = view["lengths"]
        return [why[0] if why else "" for why in whys], lengths["hours"]

    assert seen()[1] == list(range(1, 13)), "without rules, whatever the default allows"
    post(world, document(hours="[2, 3]"))
    assert book(world, more=3, hours=2)["status"] == 201
    assert seen() == (["", "", "node_taken", "leased", "leased", ""], [2, 3])
    alone = seen(any_length=False, block_hours=1)[0]
    assert alone == [*["bad_block_length"] * 3, "leased", "leased", "bad_block_length"]
    both = world.bob.get("/v1/leases/availability", params={**asked, "block_hours": 2})
    assert both.status_code == 422


def test_windows_hold_as_they_are_now(world: World) -> None:
    post(world, document())
    [window] = world.staff.get("/v1/windows").json()["data"]
    change = {"ends_at": next_hour(24)}
    address = f"/v1/windows/{window['id']}"
    assert book(world, 30, 2)["status"] == 201
    plan = world.staff.patch(address, json=change).json()
    world.staff.patch(address, json={**change, "plan": plan["hash"]})
    refused = book(world, 36, 2)
    assert (refused["status"], refused["code"]) == (422, "outside_window")
    new = {
        "policy": "lab",
        "pools": ["small"],
        "starts_at": next_hour(24),
        "ends_at": next_hour(48),
        "opens_at": next_hour(2),
    }
    assert world.staff.post("/v1/windows", json=new).status_code == 201
    too_early = book(world, 36, 2)
    assert (too_early["status"], too_early["code"]) == (422, "not_open_yet")


def test_29_leases_whose_clock_time_has_moved_are_listed_and_their_owners_told(
    world: World,
) -> None:
    post(world, document())
    moved, kept = book(world, 3, 1), book(world, 6, 1)
    assert world.staff.get("/v1/admin/moved-leases").json()["data"] == []
    with world.database.write() as session:
        lease = session.get_one(Lease, moved["id"])
        assert lease.verdict is not None
        before = lease.hold_start
        # As if Berlin had been five hours ahead of UTC when it was booked.
        shown = before.astimezone(timezone(timedelta(hours=5))).isoformat(timespec="minutes")
        lease.verdict = {**lease.verdict, "local_start": shown}
    [listed] = world.staff.get("/v1/admin/moved-leases").json()["data"]
    assert (listed["id"], listed["user"]) == (moved["id"], "ann")
    assert shown in listed["message"]
    assert [one["id"] for one in world.staff.post("/v1/admin/moved-leases").json()["data"]] == [
        moved["id"]
    ]
    assert world.staff.post("/v1/admin/moved-leases").json()["data"] == []
    with world.database.read() as session:
        assert session.get_one(Lease, moved["id"]).hold_start == before
        [notice] = session.query(Notice).filter_by(kind="lease_clock_moved")
        assert notice.subject == moved["id"] != kept["id"]
