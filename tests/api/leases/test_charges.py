"""Hours that were given back too late, over HTTP: whose quota they are taken from, and when."""

from datetime import datetime
from typing import Any

import pytest

from api.watching.holds import Facts, changed_people, read_calendar
from core.base.clock import utc_now
from core.leases import leases
from core.policy.grid import HOUR, hour_floor
from core.states import LeaseState
from core.tables.leases import Lease
from core.transitions import advance
from tests.api.conftest import World

COURSE = """policy: {id: course, zone: UTC}
grid: {max_block_hours: 8}
quotas:
  main: {period: window, max_node_hours: {all: 8}}
cancel:
  refund_if_before_start_min: %d
  late_cancel: charge_unless_rebooked
  early_release: {charge: block, refund_if_rebooked: true}
"""


def apply(world: World, *, free_until_min: int) -> None:
    yaml = {"Content-Type": "application/yaml"}
    answer = world.staff.post("/v1/policies", content=COURSE % free_until_min, headers=yaml)
    assert answer.status_code == 200, answer.text


def book(who: Any, start: datetime, hours: int) -> str:
    wanted = {"node": "box", "start": start.isoformat(), "hours": hours}
    answer = who.post("/v1/leases", json=wanted)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def charged(who: Any, lease_id: str) -> tuple[int, str]:
    lease = who.get(f"/v1/leases/{lease_id}").json()
    return lease["charged_hours"], lease["settled_as"]


def may_book(who: Any, start: datetime, hours: int) -> bool:
    wanted = {"node": "box", "start": start.isoformat(), "hours": hours}
    answer: dict[str, Any] = who.post("/v1/leases/verdict", json=wanted).json()
    codes = {reason["code"] for reason in answer["nodes"][0]["reasons"]}
    assert codes <= {"user_cap"}, codes
    return bool(answer["ok"])


def facts(world: World) -> Facts:
    with world.database.read() as session:
        return read_calendar(session, utc_now()).own


def test_a_friend_who_books_and_cancels_takes_no_charge_away(world: World) -> None:
    apply(world, free_until_min=0)
    now = utc_now()
    start = hour_floor(now)
    if now > start + HOUR * 0.99:
        pytest.skip("the hour is about to turn")
    given_back = book(world.ann, start, 8)
    with world.database.write() as session:
        lease = session.get_one(Lease, given_back)
        advance(session, lease, LeaseState.ACTIVE, now=now, reason_code="t", message="t", actor="t")
    world.ann.delete(f"/v1/leases/{given_back}")
    assert charged(world.ann, given_back) == (8, "released")
    assert not may_book(world.ann, start + 10 * HOUR, 1)
    friends = book(world.bob, start + 4 * HOUR, 3)
    assert charged(world.bob, friends) == (3, "")
    assert charged(world.ann, given_back) == (5, "released")  # with the hour after bob's
    assert may_book(world.ann, start + 10 * HOUR, 3)
    assert not may_book(world.ann, start + 10 * HOUR, 4)
    world.bob.delete(f"/v1/leases/{friends}")
    assert charged(world.bob, friends) == (0, "cancelled")
    assert charged(world.ann, given_back) == (8, "released")
    assert not may_book(world.ann, start + 10 * HOUR, 1)


def test_a_refunded_lease_is_given_back_for_nothing_and_says_so(world: World) -> None:
    apply(world, free_until_min=24 * 60)
    lease_id = book(world.ann, hour_floor(utc_now()) + 2 * HOUR, 3)
    with world.database.write() as session:
        lease = session.get_one(Lease, lease_id)
        leases.refund(session, lease, why="node_fault", message="Broken.", now=utc_now())
    world.ann.delete(f"/v1/leases/{lease_id}")
    assert charged(world.ann, lease_id) == (0, "node_fault")
    reason = world.ann.get(f"/v1/leases/{lease_id}").json()["reason"]
    assert reason == "Cancelled by ann. It was already refunded, so its hours do not count."


def test_two_who_cancel_too_late_are_charged_in_turn(world: World) -> None:
    apply(world, free_until_min=24 * 60)
    start = hour_floor(utc_now()) + 2 * HOUR
    first = book(world.ann, start, 3)
    world.ann.delete(f"/v1/leases/{first}")
    assert charged(world.ann, first) == (3, "late_cancel")
    before = facts(world)
    second = book(world.bob, start, 3)
    assert len(changed_people(before, facts(world))) == 2  # ann's calendar is told, too
    assert charged(world.ann, first) == (0, "rebooked")
    world.bob.delete(f"/v1/leases/{second}")
    assert charged(world.bob, second) == (3, "late_cancel")
    assert charged(world.ann, first) == (0, "rebooked")
    again = world.bob.post(f"/v1/leases/{second}/restore").json()["id"]
    assert (charged(world.bob, again), charged(world.bob, second)[0]) == ((3, ""), 0)
    world.bob.delete(f"/v1/leases/{again}")
    assert charged(world.ann, first) == (0, "rebooked")
