"""What a node is told about the end of a lease: the timetable of the policy it was booked under."""

from typing import Any

import pytest
from sqlalchemy import select

from core.base.clock import utc_now
from core.jobs import attempts
from core.leases import node_slots
from core.tables.jobs import Job
from core.tables.leases import Lease
from core.tables.nodes import Node
from tests.api.conftest import World
from tests.api.policies.test_policies import book, document, post
from tests.api.shapes import heartbeat, job_spec, place

LATE = """grid: {grace_min: 10}
end_of_lease:
  - {at_min: -45, do: notify}
  - {at_min: -25, do: checkpoint}
  - {at_min: -10, do: stop, kill_after_s: 90}
"""


def long_job(world: World) -> str:
    resources = {"nodes": 1, "ranks_per_node": 2, "wall_time": "20h"}
    answer = world.ann.post("/v1/jobs", json=job_spec(resources=resources))
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def told(world: World) -> dict[str, Any]:
    """The deadlines in the order that `box` gets."""
    answer = world.node.post("/v1/node/heartbeat", json=heartbeat())
    (order,) = answer.raise_for_status().json()["attempts"]
    return dict(order["deadlines"])


def start_in(world: World, lease_id: str) -> Lease:
    """Place a job in a lease, as the scheduler does when its hour has come."""
    job_id = long_job(world)
    with world.database.write() as session:
        job, lease = session.get_one(Job, job_id), session.get_one(Lease, lease_id)
        node = session.scalars(select(Node).where(Node.name == "box")).one()
        assert node_slots.assign(session, lease)
        places = [attempts.NodeAssignment(node, lease, (0, 1))]
        assert attempts.assign(session, job, places, now=utc_now(), actor="test")
    return lease


def test_a_node_checkpoints_stops_and_kills_by_the_timetable_of_the_policy(world: World) -> None:
    post(world, document(more=LATE))
    lease = start_in(world, book(world)["id"])
    left_s = (lease.hold_end - utc_now()).total_seconds()
    deadlines = told(world)
    assert deadlines["stop_reason"] == "lease_ended"
    assert deadlines["checkpoint_in_s"] == pytest.approx(left_s - 25 * 60, abs=5)
    assert deadlines["stop_in_s"] == pytest.approx(left_s - 10 * 60, abs=5)
    assert deadlines["kill_in_s"] == pytest.approx(deadlines["stop_in_s"] + 90)


def test_another_policy_does_not_move_what_was_booked(world: World) -> None:
    post(world, document(more=LATE))
    lease = start_in(world, book(world)["id"])
    post(world, document(2))  # the usual: checkpoint 10, stop 5 minutes before the end
    left_s = (lease.hold_end - utc_now()).total_seconds()
    assert told(world)["checkpoint_in_s"] == pytest.approx(left_s - 25 * 60, abs=5)
    later = book(world, more=4)["id"]
    with world.database.read() as session:
        found = session.get_one(Lease, later)
        assert (found.grace_s, found.checkpoint_s, found.kill_after_s) == (300, 600, 30)


def test_without_a_policy_the_usual_timetable_holds(world: World) -> None:
    place(world.database, long_job(world))
    deadlines = told(world)
    assert deadlines["stop_in_s"] - deadlines["checkpoint_in_s"] == pytest.approx(300, abs=0.1)
    assert deadlines["kill_in_s"] - deadlines["stop_in_s"] == pytest.approx(30)
