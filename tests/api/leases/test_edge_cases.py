"""Numbered edge cases of bookings that only show over HTTP, on both databases.

A number at the end of a name is that of the case in the list of edge cases.
"""

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import func, select, update

from api.leases import booking
from api.web.bells import Bells
from api.web.identity import Person
from core.tables.kinds import Role, Scope
from core.tables.leases import Lease, Occupancy
from core.tables.nodes import Node
from tests.api.conftest import World, client, enrol
from tests.api.leases.test_booking import begin
from tests.api.policies.test_policies import YAML
from tests.api.shapes import INVENTORY, heartbeat
from tests.api.times import next_hour
from tests.api.web.test_idempotency import commits_that_fail


def block(more: int = 1, hours: int = 2, **changes: Any) -> dict[str, Any]:
    return {"node": "box", "start": next_hour(more), "hours": hours, **changes}


def apply(world: World, text: str) -> None:
    answer = world.staff.post("/v1/policies", content=text, headers=YAML)
    assert answer.status_code == 200, answer.text


def count(world: World, table: type[Lease] | type[Occupancy]) -> int:
    with world.database.read() as session:
        return session.scalar(select(func.count()).select_from(table)) or 0


def test_a_booking_whose_answer_was_lost_is_sent_again_and_is_the_same_38(world: World) -> None:
    apply(
        world,
        "policy: {id: one, version: 1}\npools: {all-of-it: {nodes: [box]}}\n"
        "quotas: {main: {one_of: [{name: one, slots: [{pool: all-of-it, hours: 2}]}]}}\n",
    )
    key = {"Idempotency-Key": "the-answer-never-came"}
    assert world.ann.get("/v1/me").status_code == 200  # so that no `last_used_at` is due below
    with commits_that_fail(world, after=True):
        assert world.ann.post("/v1/leases", json=block(), headers=key).status_code == 500
    first = world.ann.post("/v1/leases", json=block(), headers=key)
    again = world.ann.post("/v1/leases", json=block(), headers=key)
    assert (first.status_code, again.status_code) == (201, 201)
    assert first.json() == again.json()
    assert (count(world, Lease), count(world, Occupancy)) == (1, 1)
    other = world.ann.post("/v1/leases", json=block(more=6), headers=key)
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_mismatch")
    without = world.ann.post("/v1/leases", json=block(more=6))
    assert without.json()["code"] == "quota_main"  # one is charged, and not two
    assert count(world, Lease) == 1


def test_the_seventh_cancel_of_a_day_ends_booking_until_tomorrow_42(world: World) -> None:
    apply(world, "policy: {id: calm, version: 1}\ncancel: {churn: {max_cancels: 6, per: day}}\n")
    for number in range(7):
        lease = world.ann.post("/v1/leases", json=block(more=1 + number))
        assert lease.status_code == 201, (number, lease.text)
        assert world.ann.delete(f"/v1/leases/{lease.json()['id']}").status_code == 204
    refused = world.ann.post("/v1/leases", json=block())
    assert (refused.status_code, refused.json()["code"]) == (422, "churn")
    assert "cancelled 7 leases today and the limit is 6" in refused.json()["detail"]
    assert world.bob.post("/v1/leases", json=block()).status_code == 201


def test_hours_that_leave_no_room_for_cleaning_are_not_free_44(world: World) -> None:
    lease = world.ann.post("/v1/leases", json=block(more=-1, hours=3)).json()
    begin(world, lease["id"])
    two_minutes_to_six = datetime.fromisoformat(lease["hold_start"]) + timedelta(minutes=118)
    with world.database.write() as session:
        row = session.get_one(Lease, lease["id"])
        ann = Person(row.user_id, "ann", Role.USER, "UTC", "token", frozenset(Scope))
        booking.give_back(session, row, ann, Bells(), now=two_minutes_to_six)
    back = world.ann.get(f"/v1/leases/{lease['id']}").json()
    assert (back["state"], back["hold_end"]) == ("ending", lease["hold_end"])
    refused = world.bob.post("/v1/leases", json=block(more=1))
    assert (refused.status_code, refused.json()["code"]) == (409, "node_taken")


def test_an_extension_into_another_alternative_is_judged_with_all_leases_47(world: World) -> None:
    more_nodes(world, "crate")
    apply(
        world,
        "policy: {id: course, version: 1}\n"
        "pools: {long: {nodes: [box], hours: [2, 3]}, short: {nodes: [box, crate], hours: [2]}}\n"
        "quotas:\n  main:\n    one_of:\n"
        "      - {name: one-long, slots: [{pool: long, hours: 3}]}\n"
        "      - {name: two-short, slots: [{pool: short, hours: 2}, {pool: short, hours: 2}]}\n",
    )
    first = world.ann.post("/v1/leases", json=block(more=1)).json()
    other = world.ann.post("/v1/leases", json=block(more=6, node="crate")).json()
    refused = world.ann.post(f"/v1/leases/{first['id']}/extend", json={"hours": 1})
    assert (refused.status_code, refused.json()["code"]) == (422, "quota_main")
    assert world.ann.get(f"/v1/leases/{first['id']}").json() == first
    assert world.ann.delete(f"/v1/leases/{other['id']}").status_code == 204
    longer = world.ann.post(f"/v1/leases/{first['id']}/extend", json={"hours": 1})
    assert (longer.status_code, longer.json()["charge"]["hours"]) == (200, 3)
    late = world.ann.post("/v1/leases", json=block(more=6, node="crate"))
    assert late.json()["code"] == "quota_main"


def test_new_hardware_is_another_class_and_leases_to_come_are_judged_anew_55(
    world: World,
) -> None:
    more_nodes(world, "crate")
    apply(
        world,
        "policy: {id: classes, version: 1}\n"
        "pools: {small: {class: cpu2, hours: [3]}, wide: {class: cpu4, hours: [2]}}\n",
    )
    changed = world.ann.post("/v1/leases", json=block(hours=3)).json()["id"]
    kept = world.bob.post("/v1/leases", json=block(node="crate", hours=3)).json()["id"]
    assert cleanup(world)["rows"] == []
    wider = {**INVENTORY, "cores": 4, "slots": 4}
    world.node.post("/v1/node/heartbeat", json=heartbeat(inventory=wider))
    assert world.staff.get("/v1/nodes/box").json()["node_class"] == "cpu4"
    shown = world.ann.get(f"/v1/leases/{changed}").json()
    assert (shown["state"], shown["node_class"]) == ("booked", "cpu4")  # nothing by itself
    plan = cleanup(world)
    assert [(row["lease"], row["rule"]) for row in plan["rows"]] == [(changed, "bad_block_length")]
    assert "2 hours, not 3" in plan["rows"][0]["message"]
    done = world.staff.post(
        f"/v1/admin/cleanups/{plan['id']}/apply", json={"hash": plan["hash"]}
    ).json()
    assert done["removed"] == 1
    assert world.bob.get(f"/v1/leases/{kept}").json()["state"] == "booked"


def test_a_renamed_node_keeps_its_leases_and_they_are_judged_by_its_new_name_55(
    world: World,
) -> None:
    apply(
        world,
        "policy: {id: names, version: 1}\n"
        "pools: {old: {nodes: [box], hours: [3]}, new: {nodes: [chest], hours: [2]}}\n",
    )
    lease = world.ann.post("/v1/leases", json=block(hours=3)).json()["id"]
    with world.database.write() as session:
        session.execute(update(Node).where(Node.name == "box").values(name="chest"))
    shown = world.ann.get(f"/v1/leases/{lease}").json()
    assert (shown["state"], shown["node"]) == ("booked", "chest")
    (row,) = cleanup(world)["rows"]
    assert (row["lease"], row["rule"]) == (lease, "bad_block_length")


def test_pages_of_leases_neither_repeat_nor_miss_one_while_others_book_77(world: World) -> None:
    made = [
        world.staff.post("/v1/leases", json=block(more=2 * number)).json()["id"]
        for number in range(5)
    ]
    first = world.staff.get("/v1/leases", params={"limit": 2}).json()
    assert world.staff.delete(f"/v1/leases/{made[0]}").status_code == 204
    assert world.staff.post("/v1/leases", json=block(more=20)).status_code == 201
    seen = [lease["id"] for lease in first["data"]]
    page = first
    while page["has_more"]:
        page = world.staff.get("/v1/leases", params={"limit": 2, "after": seen[-1]}).json()
        seen += [lease["id"] for lease in page["data"]]
    assert seen == made[::-1]


def more_nodes(world: World, *names: str) -> None:
    for name in names:
        node = client(world.app, enrol(world.app, world.database, name))
        node.post("/v1/node/heartbeat", json=heartbeat())


def cleanup(world: World) -> dict[str, Any]:
    body = {"selector": {"wrong": ["unfit"]}, "reason": "New hardware."}
    answer = world.staff.post("/v1/admin/cleanups", json=body)
    assert answer.status_code == 201, answer.text
    plan: dict[str, Any] = answer.json()
    return plan
