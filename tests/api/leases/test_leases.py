"""Booking hours over HTTP."""

from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from threading import Barrier

import pytest
from icalendar import Calendar
from sqlalchemy import func, select

from core.base.clock import utc_now
from core.jobs import attempts
from core.leases import node_slots
from core.policy.grid import HOUR, hour_floor
from core.process.settings import ApiSettings
from core.states import LeaseState
from core.tables.jobs import Job
from core.tables.kinds import LeaseKind, Role
from core.tables.leases import Lease, Occupancy
from core.tables.nodes import Node
from core.transitions import advance
from tests.api.conftest import World, add_person, client, enrol, running_world
from tests.api.shapes import heartbeat, job_spec, place
from tests.api.times import next_hour

pytestmark = pytest.mark.race


def block(more: int = 0, hours: int = 1, **changes: object) -> dict[str, object]:
    return {"node_class": "cpu2", "start": next_hour(more), "hours": hours, **changes}


def test_a_booked_block_is_held_and_the_next_free_start_is_told(world: World) -> None:
    lease = world.ann.post("/v1/leases", json=block(hours=2)).json()
    assert (lease["node"], lease["state"], lease["kind"]) == ("box", "booked", "booked")
    end = datetime.fromisoformat(lease["hold_end"])
    assert end - datetime.fromisoformat(lease["hold_start"]) == 2 * HOUR
    assert end - datetime.fromisoformat(lease["usable_end"]) == timedelta(minutes=5)

    taken = world.bob.post("/v1/leases", json=block(more=1))
    assert (taken.status_code, taken.json()["code"]) == (409, "node_taken")
    assert end.isoformat() in taken.json()["detail"]
    after = world.bob.post("/v1/leases", json=block(more=2))
    assert after.status_code == 201  # touching is not overlapping

    assert [one["id"] for one in world.ann.get("/v1/leases").json()["data"]] == [lease["id"]]
    assert world.bob.get(f"/v1/leases/{lease['id']}").status_code == 404
    assert len(world.staff.get("/v1/leases", params={"user": "all"}).json()["data"]) == 2
    assert world.ann.get("/v1/me").json()["lease"]["id"] == lease["id"]


def test_a_cancelled_lease_is_free_again(world: World) -> None:
    lease = world.ann.post("/v1/leases", json=block()).json()
    assert world.bob.delete(f"/v1/leases/{lease['id']}").status_code == 404
    assert world.ann.delete(f"/v1/leases/{lease['id']}").status_code == 204
    assert world.ann.delete(f"/v1/leases/{lease['id']}").status_code == 204
    assert world.ann.get(f"/v1/leases/{lease['id']}").json()["state"] == "cancelled"
    assert world.bob.post("/v1/leases", json=block()).status_code == 201


def test_wrong_bookings_are_refused_by_rule(world: World) -> None:
    now = utc_now()
    naive = (hour_floor(now) + 2 * HOUR).replace(tzinfo=None).isoformat()
    rows = [
        (block(start=naive), "start", "time zone"),
        (block(start="tomorrow"), "start", "tomorrow"),
        (block(start=(hour_floor(now) - HOUR).isoformat()), "start", "has passed"),
        (block(start=(hour_floor(now) + 1.5 * HOUR).isoformat()), "start", "full hour"),
        (block(start=(hour_floor(now) + timedelta(days=40)).isoformat()), "start", "21 days"),
        (block(start="0001-01-01T00:00:00+00:00"), "start", "year"),
        (block(hours=0), "hours", "0"),
        (block(hours=13), "hours", "12"),
        (block(hours="two"), "hours", "two"),
        (block(node_class="h100x8"), "node_class", "cpu2"),
        (block(node="nowhere"), "node", "box"),
        (block(node_class=None), "node_class", "node"),
        (block(colour="red"), "colour", "does not exist"),
    ]
    for body, param, word in rows:
        answer = world.ann.post("/v1/leases", json=body)
        assert answer.status_code == 422, (body, answer.text)
        problem = answer.json()
        assert param in [problem.get("param"), *(item["param"] for item in problem["errors"])]
        assert word in answer.text, answer.text
    with world.database.read() as session:
        assert session.scalar(select(func.count()).select_from(Lease)) == 0


def test_one_user_has_only_so_many_open_leases(world: World) -> None:
    answers = [world.ann.post("/v1/leases", json=block(more=n)) for n in range(6)]
    assert [answer.status_code for answer in answers] == [201] * 5 + [422]
    assert answers[-1].json()["code"] == "too_many_open"


def test_a_local_time_with_its_offset_is_the_same_hour(world: World) -> None:
    start = datetime.fromisoformat(next_hour())
    local = (start + timedelta(hours=5)).strftime("%Y-%m-%dT%H:%M:%S+05:00")
    lease = world.ann.post("/v1/leases", json=block(start=local)).json()
    assert datetime.fromisoformat(lease["hold_start"]) == start


def test_a_draining_node_is_not_booked(world: World) -> None:
    assert world.staff.post("/v1/admin/nodes/box/drain").json()["state"] == "draining"
    answer = world.ann.post("/v1/leases", json=block())
    assert (answer.status_code, answer.json()["code"]) == (409, "node_not_ready")
    assert world.staff.post("/v1/admin/nodes/box/resume").json()["state"] == "ready"
    assert world.ann.post("/v1/leases", json=block()).status_code == 201


def test_availability_tells_the_free_nodes_of_every_hour(world: World) -> None:
    other = client(world.app, enrol(world.app, world.database, "crate"))
    other.post("/v1/node/heartbeat", json=heartbeat())
    world.ann.post("/v1/leases", json=block(more=1, node="box"))
    view = world.bob.get(
        "/v1/leases/availability", params={"node_class": "cpu2", "start": next_hour(), "hours": 3}
    ).json()
    assert view["nodes"] == 2
    assert [hour["nodes"] for hour in view["hours"]] == [
        ["box", "crate"],
        ["crate"],
        ["box", "crate"],
    ]
    assert [hour["free"] for hour in view["hours"]] == [2, 1, 2]


def test_a_class_books_whichever_of_its_nodes_is_free(world: World) -> None:
    other = client(world.app, enrol(world.app, world.database, "crate"))
    other.post("/v1/node/heartbeat", json=heartbeat())
    got = [world.ann.post("/v1/leases", json=block()).json()["node"] for _ in range(2)]
    assert got == ["box", "crate"]
    assert world.ann.post("/v1/leases", json=block()).status_code == 409


def test_an_active_lease_given_back_stops_its_job_and_waits_for_the_clean_node(
    world: World,
) -> None:
    lease = world.ann.post("/v1/leases", json=block()).json()
    job = world.ann.post("/v1/jobs", json=job_spec(lease=lease["id"])).json()["id"]
    run_in(world, lease["id"], job)
    assert world.ann.delete(f"/v1/leases/{lease['id']}").status_code == 204
    assert world.ann.get(f"/v1/leases/{lease['id']}").json()["state"] == "ending"
    shown = world.ann.get(f"/v1/jobs/{job}").json()
    assert (shown["state"], shown["reason_code"]) == ("stopping", "lease_ended")
    with world.database.read() as session:
        assert session.scalar(select(Occupancy.live)) is True


def run_in(world: World, lease_id: str, job_id: str) -> None:
    """Do what the scheduler does when a booked lease begins."""
    now = utc_now()
    with world.database.write() as session:
        lease = session.get_one(Lease, lease_id)
        node = session.get_one(Node, lease.node_id)
        advance(
            session,
            lease,
            LeaseState.ACTIVE,
            now=now,
            reason_code="active",
            message="Active.",
            actor="test",
        )
        assert node_slots.assign(session, lease)
        job = session.get_one(Job, job_id)
        place = attempts.NodeAssignment(node, lease, (0, 1))
        assert attempts.assign(session, job, [place], now=now, actor="test")


def test_a_walk_in_is_not_given_back_but_its_job_is_cancelled(world: World) -> None:
    job = world.ann.post("/v1/jobs", json=job_spec()).json()["id"]
    place(world.database, job)
    (lease,) = world.ann.get("/v1/leases").json()["data"]
    assert (lease["kind"], lease["job"]) == (LeaseKind.WALK_IN, job)
    answer = world.ann.delete(f"/v1/leases/{lease['id']}")
    assert (answer.status_code, "job" in answer.json()["detail"]) == (409, True)
    (node,) = world.bob.get("/v1/nodes").json()["data"]
    assert (node["user"], node["job"]) == ("ann", job)
    assert node["free_at"] == lease["hold_end"]


def test_of_32_clients_that_book_one_hour_one_wins(settings: ApiSettings) -> None:
    with running_world(settings) as world:
        clients = [
            client(world.app, add_person(world.database, f"user{n}", Role.USER)) for n in range(32)
        ]
        start = Barrier(len(clients))
        body = block()

        def book(number: int) -> int:
            start.wait()
            return clients[number].post("/v1/leases", json=body).status_code

        with ThreadPoolExecutor(len(clients)) as pool:
            answers = sorted(pool.map(book, range(len(clients))))
        assert answers == [201] + [409] * 31
        with world.database.read() as session:
            assert session.scalar(select(func.count()).select_from(Lease)) == 1
            assert session.scalar(select(func.count()).select_from(Occupancy)) == 1


def test_a_lease_is_added_to_ones_own_calendar_and_to_nobody_elses(world: World) -> None:
    start = (utc_now() + timedelta(hours=3)).replace(minute=0, second=0, microsecond=0)
    body = {"node": "box", "start": start.isoformat(), "hours": 2}
    lease = world.ann.post("/v1/leases", json=body).json()
    answer = world.ann.get(f"/v1/leases/{lease['id']}/calendar")
    assert answer.headers["content-type"].startswith("text/calendar")
    [event] = Calendar.from_ical(answer.text).walk("VEVENT")
    assert event["dtstart"].dt == start
    assert event["dtend"].dt == datetime.fromisoformat(lease["usable_end"])
    assert "box" in event["summary"]
    assert world.bob.get(f"/v1/leases/{lease['id']}/calendar").status_code == 404
