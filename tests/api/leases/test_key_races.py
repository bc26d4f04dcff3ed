"""Bookings that are sent again: by many at once, and after the database was killed in a commit.

A number at the end of a name is that of the case in the list of edge cases.
"""

import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import func, select
from sqlalchemy.exc import DBAPIError

from api.leases import booking
from api.leases.schemas import Block
from api.web.idempotency import KeyedRequest
from api.web.identity import Person
from core.base.clock import utc_now
from core.base.errors import HourTaken
from core.database.database import Database
from core.database.schema import upgrade
from core.policy.grid import HOUR
from core.tables.leases import Lease
from core.tables.processes import IdempotentAnswer
from tests.api.yard import ROUNDS, THREADS, Yard, make_yard, winners
from tests.core.holds import OVERBOOKED
from tests.postgresql import Server

pytestmark = pytest.mark.race

BLOCKS = 4  # that each of 32 people books while the server is killed
PATIENCE_S = 60.0


def send(yard: Yard, person: Person, node: str, more: int, key: str) -> str:
    """What POST /v1/leases does in its transaction, with an Idempotency-Key."""
    block = Block(node=node, start=yard.start + more * HOUR, hours=1)
    sent = KeyedRequest(person.id, key, f"{node} {more}")
    with yard.database.write() as session:
        lease_id = sent.begin(session)
        if lease_id is None:
            lease_id = booking.book(session, person, block, now=utc_now())
            sent.remember(session, lease_id)
        return lease_id


@pytest.mark.parametrize("rounds", ROUNDS)
def test_one_key_sent_by_32_at_once_is_one_lease_38(yard: Yard, rounds: int) -> None:
    ann = yard.people[0]
    for number in range(rounds):
        got = yard.race(lambda number=number: send(yard, ann, "n-00", 0, f"key-{number}"))  # type: ignore[misc]
        assert len(winners(got)) == THREADS
        assert len(set(winners(got))) == 1
        with yard.database.read() as session:
            rows = session.scalars(select(Lease.id).where(Lease.hold_start == yard.start)).all()
        assert rows == [winners(got)[0]]
        yard.next_round()


@pytest.fixture
def server() -> Iterator[Server]:
    folder = Path(tempfile.mkdtemp(prefix="ty-pg-", dir="/tmp"))
    server = Server(folder)
    try:
        server.create()
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.db
@pytest.mark.parametrize(
    "rounds", [1, pytest.param(50, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])]
)
def test_a_database_killed_in_mid_commit_has_lost_no_lease_and_made_none_twice_38(
    server: Server, rounds: int
) -> None:
    """Of every two who want one block one gets it; each asks with its key until it has an answer,
    and the key decides whether the commit that nobody saw the end of has happened."""
    database = Database(server.url, pool_size=20)
    upgrade(database)
    yard = make_yard(database)
    for number in range(rounds):
        killed = kill_amid(server, yard, number)
        assert killed.answers == THREADS * BLOCKS
        with database.read() as session:
            rows = session.execute(select(IdempotentAnswer.key, IdempotentAnswer.subject))
            kept = {row.key: row.subject for row in rows}
            leases = set(session.scalars(select(Lease.id)))
            assert session.scalar(OVERBOOKED) == 0
        assert {key: kept.get(key) for key in killed.granted} == killed.granted
        assert set(kept.values()) == leases
        assert len(kept) == len(leases) == (number + 1) * THREADS * BLOCKS // 2
        yard.next_round()
    database.close()


class Killed:
    """What 32 people were answered while the server was killed and came back."""

    def __init__(self) -> None:
        self.granted: dict[str, str] = {}
        """Lease by key."""
        self.refused: list[str] = []
        self.lost: list[str] = []
        """Requests whose end nobody saw."""
        self.under_way = threading.Event()

    @property
    def answers(self) -> int:
        return len(self.granted) + len(self.refused)


def kill_amid(server: Server, yard: Yard, number: int) -> Killed:
    """Everybody books four blocks, two people each; amid it the server dies and is started."""
    seen = Killed()
    deadline = time.monotonic() + PATIENCE_S
    gate = threading.Barrier(THREADS + 1)

    def ask(person: int) -> None:
        gate.wait(60)
        for turn in range(BLOCKS):
            key = f"round-{number}-person-{person}-block-{turn}"
            while True:
                try:
                    node = yard.nodes[person // 2 % 8]
                    more = turn + BLOCKS * (person // 16)
                    seen.granted[key] = send(yard, yard.people[person], node, more, key)
                except HourTaken:
                    seen.refused.append(key)
                except DBAPIError:
                    seen.lost.append(key)
                    assert time.monotonic() < deadline
                    time.sleep(0.2)  # the server needs the cores to come back
                    continue
                if seen.answers >= THREADS:
                    seen.under_way.set()
                break

    with ThreadPoolExecutor(THREADS) as pool:
        asking = [pool.submit(ask, person) for person in range(THREADS)]
        gate.wait(60)
        assert seen.under_way.wait(60)
        server.kill()
        server.start()
        for one in asking:
            one.result()
    assert seen.lost, "the server was killed too late"
    with yard.database.read() as session:
        assert session.scalar(select(func.count()).select_from(Lease))
    return seen
