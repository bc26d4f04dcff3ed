"""Booking over HTTP beyond one block on one node: several nodes, any start, swap, extend, release.

A number at the end of a name is that of the case in the list of edge cases.
"""

from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import func, select

from core.base.clock import utc_now
from core.database.database import Database
from core.leases import leases
from core.policy.grid import HOUR, hour_ceiling, hour_floor
from core.states import LeaseState
from core.tables.jobs import Job
from core.tables.kinds import AppointmentState, LeaseKind
from core.tables.leases import Appointment, Lease, Occupancy
from core.tables.nodes import Node
from core.tables.people import User
from core.transitions import advance
from tests.api.conftest import World, client, enrol
from tests.api.shapes import heartbeat, job_spec
from tests.api.times import next_hour


def block(more: int = 1, hours: int = 2, **changes: Any) -> dict[str, Any]:
    return {"node": "box", "start": next_hour(more), "hours": hours, **changes}


def more_nodes(world: World, *names: str) -> None:
    for name in names:
        node = client(world.app, enrol(world.app, world.database, name))
        node.post("/v1/node/heartbeat", json=heartbeat())


def live_holds(database: Database) -> list[tuple[str, datetime, datetime]]:
    with database.read() as session:
        rows = session.execute(
            select(Node.name, Occupancy.hold_start, Occupancy.hold_end)
            .join(Node, Node.id == Occupancy.node_id)
            .where(Occupancy.live)
            .order_by(Node.name, Occupancy.hold_start)
        )
        return [tuple(row) for row in rows]


def begin(world: World, lease_id: str) -> None:
    with world.database.write() as session:
        lease = session.get_one(Lease, lease_id)
        advance(
            session,
            lease,
            LeaseState.ACTIVE,
            now=utc_now(),
            reason_code="began",
            message="Yours.",
            actor="test",
        )


def test_several_nodes_are_booked_all_or_none_36(world: World) -> None:
    more_nodes(world, "crate", "drum")
    world.bob.post("/v1/leases", json=block(node="crate"))
    refused = world.ann.post(
        "/v1/leases", json={**block(), "node": None, "nodes": ["box", "crate"]}
    )
    assert (refused.status_code, refused.json()["code"]) == (409, "node_taken")
    assert [name for name, *_ in live_holds(world.database)] == ["crate"]
    class_wide = {"node_class": "cpu2", "count": 2, "start": next_hour(1), "hours": 2}
    first = world.ann.post("/v1/leases", json=class_wide).json()
    assert first["together"] == first["id"]
    assert [name for name, *_ in live_holds(world.database)] == ["box", "crate", "drum"]
    (other,) = [
        one for one in world.ann.get("/v1/leases").json()["data"] if one["id"] != first["id"]
    ]
    assert other["together"] == first["id"]
    three = world.ann.post("/v1/leases", json={**class_wide, "count": 4})
    assert (three.status_code, three.json()["param"]) == (422, "count")


def test_a_taken_block_names_the_three_nearest_starts_7(world: World) -> None:
    taken = world.ann.post("/v1/leases", json=block(more=2, hours=3)).json()
    answer = world.bob.post("/v1/leases", json=block(more=3))
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (409, "node_taken")
    starts = [datetime.fromisoformat(start) for start in problem["choices"]]
    assert len(starts) == 3
    end = datetime.fromisoformat(taken["hold_end"])
    assert datetime.fromisoformat(next_hour(0)) in starts  # 2 hours before the taken block
    assert end in starts
    for start in starts:
        free = world.bob.post("/v1/leases/verdict", json=block(start=start.isoformat()))
        assert free.json()["ok"], free.text


def test_a_range_is_looked_through_at_the_minute_at_which_blocks_begin(world: World) -> None:
    policy = "policy: {id: lab, zone: Asia/Kolkata}\ngrid: {anchor_min: 30, horizon_days: 14}\n"
    kind = {"Content-Type": "application/yaml"}
    assert world.admin.post("/v1/policies", content=policy, headers=kind).status_code == 200
    wanted = {**block(), "start": None, "first_start": next_hour(2), "last_start": next_hour(4)}
    booked = world.ann.post("/v1/leases", json=wanted)
    assert booked.status_code == 201, booked.text
    half_past = datetime.fromisoformat(next_hour(2)) + HOUR / 2
    assert datetime.fromisoformat(booked.json()["hold_start"]) == half_past


def test_any_hours_of_a_range_take_the_first_start_that_is_free(world: World) -> None:
    world.bob.post("/v1/leases", json=block(more=1, hours=4))
    wish = {
        "node": "box",
        "first_start": next_hour(0),
        "last_start": next_hour(9),
        "hours": 3,
    }
    view = world.ann.post("/v1/leases/verdict", json=wish).json()
    lease = world.ann.post("/v1/leases", json=wish).json()
    assert view["ok"]
    assert view["hold_start"] == lease["hold_start"]
    assert datetime.fromisoformat(lease["hold_start"]) == datetime.fromisoformat(next_hour(5))


def test_the_snuggest_start_of_a_range_cuts_up_least_and_the_preview_names_it(
    world: World,
) -> None:
    more_nodes(world, "crate")
    world.bob.post("/v1/leases", json=block(more=3, hours=2))
    world.bob.post("/v1/leases", json=block(more=8, hours=2))  # three free hours on box between
    wish = {
        "node_class": "cpu2",
        "first_start": next_hour(1),
        "last_start": next_hour(20),
        "hours": 3,
    }
    assert world.ann.post("/v1/leases/verdict", json=wish).json()["hold_start"] == next_hour(1)
    snug = {**wish, "prefer": "snuggest"}
    view = world.ann.post("/v1/leases/verdict", json=snug).json()
    lease = world.ann.post("/v1/leases", json=snug).json()
    for told in (view, lease):
        assert datetime.fromisoformat(told["hold_start"]) == datetime.fromisoformat(next_hour(5))
    assert (view["chosen"], lease["node"]) == (["box"], "box")
    both = {**snug, "count": 2, "hours": 1}
    start = world.ann.post("/v1/leases/verdict", json=both).json()["hold_start"]
    assert datetime.fromisoformat(start) in {
        datetime.fromisoformat(next_hour(more)) for more in (1, 2)
    }


def test_any_hours_of_a_day_lie_in_that_day_of_the_zone(world: World) -> None:
    day = (utc_now() + timedelta(days=2)).date()
    wish = {"node_class": "cpu2", "on": day.isoformat(), "zone": "Asia/Tokyo", "hours": 3}
    lease = world.ann.post("/v1/leases", json=wish).json()
    start = datetime.fromisoformat(lease["hold_start"])
    assert (start + 9 * HOUR).date() == day
    assert (start + 9 * HOUR).hour == 0


def test_wrong_wishes_name_their_field(world: World) -> None:
    naive = (hour_ceiling(utc_now()) + HOUR).replace(tzinfo=None).isoformat()
    rows: list[tuple[dict[str, Any], str, str]] = [
        ({"node": "box", "hours": 2}, "start", "start"),
        (block(on="2026-12-01"), "start", "start"),
        ({"node": "box", "start": next_hour()}, "hours", "hours"),
        (block(end=next_hour(5)), "hours", "hours"),
        (block(hours=None, end=next_hour(0)), "end", "after"),
        (block(start=naive), "start", "time zone"),
        (block(start="2026-11-22T23:59:60+00:00"), "start", ""),
        (block(start="infinity"), "start", ""),
        (block(start="9999-01-01T00:00:00+00:00"), "start", "year"),
        (block(start=naive, zone="Mars/Olympus"), "zone", "IANA"),
        (block(nodes=["box"]), "nodes", "nodes"),
        (block(node=None, nodes=["box", "box"]), "nodes", "twice"),
        (block(node_class="h100x8"), "node_class", "cpu2"),
        (
            {**block(), "start": None, "first_start": next_hour(), "last_start": next_hour(800)},
            "last_start",
            "31 days",
        ),
    ]
    for body, param, word in rows:
        answer = world.ann.post("/v1/leases", json=body)
        assert answer.status_code == 422, (body, answer.text)
        problem = answer.json()
        named = [problem.get("param"), *(item["param"] for item in problem["errors"])]
        assert any(name and name.startswith(param) for name in named), (body, answer.text)
        assert word in answer.text
    with world.database.read() as session:
        assert session.scalar(select(func.count()).select_from(Lease)) == 0


def test_clock_times_of_a_zone_that_are_unclear_are_answered_with_choices_19_22(
    world: World,
) -> None:
    zone = {"zone": "America/New_York", "hours": 2, "node": "box"}
    skipped = world.ann.post("/v1/leases/verdict", json={"start": "2027-03-14T02:00", **zone})
    assert (skipped.status_code, skipped.json()["code"]) == (422, "nonexistent_local_time")
    (choice,) = skipped.json()["choices"]
    assert datetime.fromisoformat(choice) == datetime.fromisoformat("2027-03-14T03:00-04:00")
    twice = world.ann.post("/v1/leases/verdict", json={"start": "2027-11-07T01:00", **zone})
    assert (twice.status_code, twice.json()["code"]) == (422, "ambiguous_local_time")
    first, second = (datetime.fromisoformat(choice) for choice in twice.json()["choices"])
    assert second - first == HOUR


def test_one_instant_with_two_offsets_is_taken_once_26(world: World) -> None:
    start = datetime.fromisoformat(next_hour(2))
    assert world.ann.post("/v1/leases", json=block(start=start.isoformat())).status_code == 201
    west = (start - 5 * HOUR).strftime("%Y-%m-%dT%H:%M:%S-05:00")
    assert world.bob.post("/v1/leases", json=block(start=west)).status_code == 409


def test_the_hour_that_runs_may_be_booked_and_the_one_before_not_32(world: World) -> None:
    now = utc_now()
    running = world.ann.post("/v1/leases", json=block(start=next_hour(-1), hours=2))
    assert running.status_code == 201, running.text
    assert running.json()["charge"]["hours"] == 2
    before = (hour_ceiling(now) - 2 * HOUR).isoformat()
    assert world.bob.post("/v1/leases", json=block(start=before)).status_code == 422


def test_other_peoples_leases_are_not_there_34(world: World) -> None:
    lease = world.ann.post("/v1/leases", json=block()).json()["id"]
    later = {"hold_end": next_hour(9)}
    for method, path, body in (
        ("GET", "", None),
        ("DELETE", "", None),
        ("PATCH", "", later),
        ("POST", "/extend", {"hours": 1}),
        ("POST", "/release", None),
        ("POST", "/swap", block()),
        ("POST", "/restore", None),
    ):
        answer = world.bob.request(method, f"/v1/leases/{lease}{path}", json=body)
        assert answer.status_code == 404, (method, path, answer.text)
    assert world.ann.get(f"/v1/leases/{lease}").json()["state"] == "booked"


def test_an_extension_holds_longer_and_voids_the_old_end_45(world: World) -> None:
    lease = world.ann.post("/v1/leases", json=block()).json()
    end = datetime.fromisoformat(lease["hold_end"])
    answer = world.ann.post(f"/v1/leases/{lease['id']}/extend", json={"hours": 1})
    assert answer.status_code == 200, answer.text
    assert datetime.fromisoformat(answer.json()["hold_end"]) == end + HOUR
    assert answer.json()["charge"]["hours"] == 3
    with world.database.read() as session:
        due = session.execute(
            select(Appointment.kind, Appointment.due_at).where(
                Appointment.lease_id == lease["id"], Appointment.state == AppointmentState.DUE
            )
        ).all()
    assert {moment for kind, moment in due if kind == "end"} == {end + HOUR}
    assert {moment for kind, moment in due if kind == "stop"} == {end + HOUR - 5 * HOUR / 60}
    assert end + HOUR == live_holds(world.database)[0][2]
    back = world.ann.patch(f"/v1/leases/{lease['id']}", json={"hold_end": end.isoformat()})
    assert (back.status_code, "release" in back.json()["detail"]) == (409, True)


def test_an_extension_into_the_next_lease_is_refused_and_changes_nothing(world: World) -> None:
    lease = world.ann.post("/v1/leases", json=block()).json()
    world.bob.post("/v1/leases", json=block(more=3))
    answer = world.ann.post(f"/v1/leases/{lease['id']}/extend", json={"hours": 1})
    assert (answer.status_code, answer.json()["code"]) == (409, "node_taken")
    assert world.ann.get(f"/v1/leases/{lease['id']}").json() == lease


def test_a_refunded_lease_gets_no_more_hours_that_nobody_is_charged_for(world: World) -> None:
    lease = world.ann.post("/v1/leases", json=block()).json()
    with world.database.write() as session:
        row = session.get_one(Lease, lease["id"])
        leases.refund(session, row, why="node_fault", message="Refunded.", now=utc_now())
    answer = world.ann.post(f"/v1/leases/{lease['id']}/extend", json={"hours": 1})
    assert (answer.status_code, answer.json()["code"]) == (409, "lease_refunded")
    assert world.ann.post("/v1/leases", json=block(more=3)).status_code == 201


def test_a_moved_lease_is_not_stretched_by_the_rules_of_another_node(world: World) -> None:
    more_nodes(world, "crate")
    lease = world.ann.post("/v1/leases", json=block()).json()
    with world.database.write() as session:
        crate = session.scalars(select(Node).where(Node.name == "crate")).one()
        session.get_one(Lease, lease["id"]).booked_node_id = crate.id  # and is on `box` now
    answer = world.ann.post(f"/v1/leases/{lease['id']}/extend", json={"hours": 1})
    assert (answer.status_code, answer.json()["code"]) == (409, "lease_moved")
    assert world.ann.get(f"/v1/leases/{lease['id']}").json()["hold_end"] == lease["hold_end"]


def test_a_swap_is_all_or_nothing_13(world: World) -> None:
    more_nodes(world, "crate")
    lease = world.ann.post("/v1/leases", json=block()).json()
    job = world.ann.post("/v1/jobs", json=job_spec(lease=lease["id"])).json()["id"]
    world.bob.post("/v1/leases", json=block(node="crate"))
    held = live_holds(world.database)
    refused = world.ann.post(f"/v1/leases/{lease['id']}/swap", json=block(node="crate"))
    assert (refused.status_code, refused.json()["code"]) == (409, "node_taken")
    assert live_holds(world.database) == held
    assert world.ann.get(f"/v1/leases/{lease['id']}").json() == lease

    longer = world.ann.post(f"/v1/leases/{lease['id']}/swap", json=block(hours=3))
    assert longer.status_code == 201, longer.text  # over its own old hours
    old = world.ann.get(f"/v1/leases/{lease['id']}").json()
    assert (old["state"], old["counts"], old["settled_as"]) == ("cancelled", False, "swapped")
    with world.database.read() as session:
        assert session.get_one(Job, job).lease_id == longer.json()["id"]


def test_a_cancelled_block_is_restored_unless_it_is_taken_48(world: World) -> None:
    lease = world.ann.post("/v1/leases", json=block()).json()
    world.ann.delete(f"/v1/leases/{lease['id']}")
    again = world.ann.post(f"/v1/leases/{lease['id']}/restore")
    assert again.status_code == 201, again.text
    assert again.json()["hold_start"] == lease["hold_start"]
    world.ann.delete(f"/v1/leases/{again.json()['id']}")
    world.bob.post("/v1/leases", json=block())
    taken = world.ann.post(f"/v1/leases/{again.json()['id']}/restore")
    assert (taken.status_code, taken.json()["code"]) == (409, "node_taken")


def test_hours_given_back_early_are_free_from_the_next_one_43(world: World) -> None:
    lease = world.ann.post("/v1/leases", json=block(start=next_hour(-1), hours=4)).json()
    begin(world, lease["id"])
    answer = world.ann.post(f"/v1/leases/{lease['id']}/release").json()
    assert (answer["state"], answer["counts"]) == ("ending", True)
    end = datetime.fromisoformat(answer["hold_end"])
    assert end in (hour_ceiling(utc_now()), hour_ceiling(utc_now()) + HOUR)
    assert world.bob.post("/v1/leases", json=block(start=end.isoformat())).status_code == 201


def test_the_running_hour_can_be_booked_when_walk_ins_in_it_have_ended(world: World) -> None:
    now = utc_now()
    running = hour_floor(now)
    if now < running + timedelta(seconds=2) or now > running + timedelta(minutes=59, seconds=30):
        pytest.skip("the hour is about to turn, and with it what runs")
    with world.database.write() as session:
        box = session.scalars(select(Node).where(Node.name == "box")).one()
        ann = session.scalars(select(User).where(User.name == "ann")).one()
        walk_in = leases.take(
            session, user_id=ann.id, node=box, kind=LeaseKind.WALK_IN, start=running,
            end=running + HOUR, grace_s=300, now=running, actor="t", message="Walked in.",
        )  # fmt: skip
    wanted = block(start=running.isoformat(), hours=1)
    assert world.bob.post("/v1/leases", json=wanted).json()["code"] == "node_taken"
    assert world.bob.post("/v1/leases/verdict", json=wanted).json()["ok"] is False
    with world.database.write() as session:
        walk_in = session.get_one(Lease, walk_in.id)
        leases.end(session, walk_in, at=now, now=now, message="Done.", actor="t")
    free = world.bob.get("/v1/leases/availability", params={"start": running.isoformat()})
    assert free.json()["hours"][0]["nodes"] == ["box"]
    assert world.bob.post("/v1/leases/verdict", json=wanted).json()["ok"] is True
    booked = world.bob.post("/v1/leases", json=wanted)
    assert booked.status_code == 201, booked.text
    assert datetime.fromisoformat(booked.json()["hold_start"]) == running
    (_, _, ended), (_, begun, end) = live_holds(world.database)
    assert (ended, end) == (now, running + HOUR)
    assert begun >= now
    with world.database.read() as session:  # and each is charged for its own
        assert session.get_one(Lease, walk_in.id).charged_end == now
    earlier = block(start=(running - HOUR).isoformat(), hours=1)
    assert world.bob.post("/v1/leases", json=earlier).json()["code"] == "in_the_past"


@pytest.mark.parametrize("node", [None, "box"])
def test_a_verdict_changes_nothing_and_says_what_a_booking_would(
    world: World, node: str | None
) -> None:
    wish = block(node=node, node_class="cpu2")
    view = world.ann.post("/v1/leases/verdict", json=wish).json()
    assert (view["ok"], view["chosen"]) == (True, ["box"])
    (one,) = view["nodes"]
    assert (one["charge"]["hours"], one["policy"]) == (2, "default")
    assert live_holds(world.database) == []
    world.bob.post("/v1/leases", json=wish)
    view = world.ann.post("/v1/leases/verdict", json=wish).json()
    assert (view["ok"], view["chosen"]) == (False, [])
    assert [reason["code"] for reason in view["nodes"][0]["reasons"]] == ["node_taken"]


def test_availability_says_why_an_hour_is_not_free(world: World) -> None:
    more_nodes(world, "crate")
    world.staff.post("/v1/admin/nodes/crate/quarantine")
    world.ann.post("/v1/leases", json=block(more=1, hours=1))

    def asked(who: Any, **params: Any) -> list[dict[str, str]]:
        view = who.get(
            "/v1/leases/availability", params={"start": next_hour(), "hours": 2, **params}
        )
        return [{one["node"]: one["why"] for one in hour["taken"]} for hour in view.json()["hours"]]

    assert asked(world.ann) == [{"crate": "quarantined"}, {"box": "yours", "crate": "quarantined"}]
    assert asked(world.bob)[1]["box"] == "leased"
    assert asked(world.bob, block_hours=2)[0]["box"] == "node_taken"
