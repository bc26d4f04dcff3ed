"""The waitlist costs so much a round, however many wait, and still serves who can be served."""

import time
from datetime import timedelta

import pytest

from core.base.ids import IdKind, new_id
from core.database.database import Database
from core.leases import leases
from core.leases.waitlist import SearchBudget
from core.policy.grid import HOUR
from core.tables.kinds import LeaseKind, Role, WaitState
from core.tables.leases import Lease, Wait
from core.tables.nodes import Node
from core.tables.people import User
from core.tables.policies import AppliedPolicy
from scheduler.leases import offers
from tests.scheduler.world import World, at

MONTH = timedelta(days=31)
RULES = """policy: {id: lab, zone: UTC}
grid: {horizon_days: 60}
pools: {every: {class: cpu2, hours: [2]}}
quotas: {main: {one_of: [{name: one, slots: [{pool: every, hours: 2}]}]}}
"""


@pytest.fixture
def world(migrated_database: Database) -> World:
    """Seven free nodes, a quota of one block each, and 40 people who have booked theirs."""
    world = World(migrated_database, at(10))
    nodes = [world.node(f"n-{number}") for number in range(7)]
    with world.database.write() as session:
        session.add(
            AppliedPolicy(
                policy_id="lab",
                version=1,
                document=RULES,
                sha256="x",
                active=True,
                applied_by="user_ada",
                applied_at=world.now,
            )
        )
        for number in range(40):
            user_id = f"user_{number}"
            session.add(
                User(
                    id=user_id, name=f"p{number}", role=Role.USER, password_hash=None,
                    created_at=world.now,
                )
            )  # fmt: skip
            session.flush()
            start = at(12) + 4 * (number // 7) * HOUR
            leases.take(
                session, user_id=user_id, node=session.get_one(Node, nodes[number % 7]),
                kind=LeaseKind.BOOKED, start=start, end=start + 2 * HOUR, grace_s=300,
                now=world.now, actor="t", message="Booked.",
            )  # fmt: skip
            for _ in range(10):
                session.add(wish(world, user_id))
    return world


def wish(world: World, user_id: str) -> Wait:
    return Wait(
        id=new_id(IdKind.WAIT), user_id=user_id, node_class="cpu2", node_id=None, hours=2,
        first_start=world.now, last_start=world.now + MONTH, priority=False,
        state=WaitState.WAITING, queued_at=world.now, created_at=world.now,
    )  # fmt: skip


def look(world: World) -> tuple[int, int]:
    """A round of the scheduler, 5 s later: the offers it made and the blocks it judged."""
    world.now += timedelta(seconds=5)
    budget = SearchBudget(offers.ROUND)
    scheduler = world.scheduler
    begun = time.process_time()
    made = offers.serve(scheduler.database, scheduler.leadership, world.now, scheduler.line, budget)
    assert time.process_time() - begun < 10, "a leader lives for 15 s without a word"
    return made, offers.ROUND - budget.left


@pytest.mark.slow
def test_400_wishes_cost_a_bounded_round_and_who_can_be_served_is(world: World) -> None:
    with world.database.write() as session:
        last = wish(world, "user_bob")  # alone has booked nothing
        last.queued_at += timedelta(seconds=1)
        session.add(last)
    rounds = []
    while not rounds or rounds[-1][1] > 0:
        rounds.append(look(world))
    costs = [judged for _, judged in rounds]
    assert max(costs) <= offers.ROUND + offers.SHARE
    assert len(costs) <= 24  # two minutes for a line that nobody has looked at before
    assert sum(made for made, _ in rounds) == 1
    with world.database.read() as session:
        assert session.get_one(Wait, last.id).state is WaitState.OFFERED

    with world.database.write() as session:  # somebody gives theirs back: served in one round
        lease = session.query(Lease).filter_by(user_id="user_0").one()
        leases.cancel(session, lease, now=world.now, message="No.", actor="t")
    made, _ = look(world)
    assert made == 1
    with world.database.read() as session:
        offered = session.query(Wait).filter_by(state=WaitState.OFFERED)
        assert {wait.user_id for wait in offered} == {"user_bob", "user_0"}
