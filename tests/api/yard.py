"""A yard for races: 32 people, eight nodes, and a block that moves on a day with every round."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import select

from api.leases import booking
from api.leases.schemas import Block
from api.web.identity import Person
from core.base.clock import utc_now
from core.base.errors import ServiceError
from core.database.database import Database
from core.leases import leases, node_slots
from core.leases.situation import lock_user
from core.policy.grid import HOUR, hour_ceiling
from core.states import LeaseState
from core.tables.kinds import Role, Scope
from core.tables.leases import Lease
from core.tables.nodes import Node, NodeClass
from core.tables.people import Grant, User
from tests.core.holds import OVERBOOKED
from tests.core.people import add_node
from tests.scheduler.world import CPU2

THREADS = 32
ROUNDS = [2, pytest.param(50, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])]


@dataclass
class Yard:
    """People and nodes, and a block that moves on a day with every round."""

    database: Database
    people: list[Person]
    nodes: list[str]
    start: datetime

    def book(
        self, person: Person, *nodes: str, more: int = 0, hours: int = 2, **fields: Any
    ) -> str:
        """What POST /v1/leases does in its transaction."""
        block = Block(nodes=list(nodes), start=self.start + more * HOUR, hours=hours, **fields)
        with self.database.write() as session:
            lock_user(session, person.id)
            return booking.book(session, person, block, now=utc_now())

    def race(self, *works: Callable[[], object]) -> list[object]:
        """What each of many at once got, 32 of them in turns: an answer or a refusal."""
        gate = threading.Barrier(THREADS)

        def run(number: int) -> object:
            gate.wait(60)
            try:
                return works[number % len(works)]()
            except ServiceError as error:
                return error

        with ThreadPoolExecutor(THREADS) as pool:
            got = list(pool.map(run, range(THREADS)))
        assert all(one.status < 500 for one in got if isinstance(one, ServiceError))
        with self.database.read() as session:
            assert session.scalar(OVERBOOKED) == 0
        return got

    def next_round(self) -> None:
        """Go on to a later block. No lease that has begun keeps its slots till then."""
        self.start += 8 * HOUR
        with self.database.write() as session:
            for lease in session.scalars(select(Lease).where(Lease.state == LeaseState.ACTIVE)):
                node_slots.release(session, lease)

    def lease(self, lease_id: str) -> Lease:
        with self.database.read() as session:
            return session.get_one(Lease, lease_id)

    def give_all_back(self) -> None:
        """Cancel every booked lease, so that its hours can be raced for again."""
        with self.database.write() as session:
            for lease in session.scalars(select(Lease).where(Lease.state == LeaseState.BOOKED)):
                leases.cancel(session, lease, now=utc_now(), message="Round.", actor="t")

    def node_id(self, name: str) -> str:
        with self.database.read() as session:
            return session.scalars(select(Node.id).where(Node.name == name)).one()


def winners(got: list[object]) -> list[str]:
    return [one for one in got if isinstance(one, str)]


def make_yard(database: Database) -> Yard:
    """Nobody has booked anything yet; each may have as many open leases as they like."""
    now = utc_now()
    people = [
        Person(
            id=f"user_{number}",
            name=f"p{number}",
            role=Role.USER,
            zone="UTC",
            token_id="t",
            scopes=frozenset(Scope),
        )
        for number in range(THREADS)
    ]
    nodes = [f"n-{number:02}" for number in range(8)]
    with database.write() as session:
        session.add(NodeClass(name="cpu2", hardware=CPU2.model_dump(mode="json")))
        for person in people:
            session.add(
                User(
                    id=person.id,
                    name=person.name,
                    role=Role.USER,
                    password_hash=None,
                    created_at=now,
                )
            )
        session.flush()
        for person in people:  # the rule of five open leases is not what most of these are about
            session.add(
                Grant(
                    id=f"grant_{person.name}",
                    user_id=person.id,
                    rule="too_many_open",
                    extra=1000,
                    starts_at=now - HOUR,
                    ends_at=now + timedelta(days=99),
                    granted_by=person.id,
                    why="Races.",
                    created_at=now,
                )
            )
        for name in nodes:
            add_node(session, name, last_seen_at=now, created_at=now)
    return Yard(database, people, nodes, hour_ceiling(now) + HOUR)
