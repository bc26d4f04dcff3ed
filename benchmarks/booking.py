"""Answer times of 32 people who ask for the same hour at once.

The same requests are also made one by one: the quotient is the cost of waiting for each other. Each
round has an hour of its own; the winner gives it back before the next round. The 32 people are
threads of four processes, which call the API, or the function that the API calls.
"""

import http.client
import json
import multiprocessing
import statistics
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from functools import cache, partial
from multiprocessing.synchronize import Barrier
from typing import Protocol

from api.leases import booking
from api.leases.schemas import Block
from api.web.credentials import issue_token
from api.web.identity import Person
from benchmarks.ratios import percentile
from benchmarks.service import ServedApi, serving
from core.base.clock import utc_now
from core.base.errors import HourTaken
from core.base.ids import IdKind, new_id
from core.database.database import Database
from core.leases import leases
from core.leases.situation import lock_user
from core.policy.grid import HOUR, hour_ceiling
from core.tables.kinds import Role, Scope, TokenKind
from core.tables.leases import Lease
from core.tables.people import User

CLIENTS, PROCESSES = 32, 4
NODE = "bench"  # the name under which benchmarks.service enrols it
WARM_UP = 2  # rounds that are not counted
HTTP_GOAL, FUNCTION_GOAL = "p99 < 400 ms", "p99 < 150 ms"
Row = tuple[str, str, str]


@dataclass(frozen=True)
class Times:
    """Seconds that each request took."""

    at_once: Sequence[float]
    one_by_one: Sequence[float]

    def __str__(self) -> str:
        p99, alone = percentile(self.at_once, 0.99), percentile(self.one_by_one, 0.99)
        medians = statistics.median(self.at_once), statistics.median(self.one_by_one)
        return (
            f"p99 {1000 * p99:.0f} ms, median {1000 * medians[0]:.0f} ms; one by one "
            f"{1000 * alone:.0f} and {1000 * medians[1]:.0f} ms"
        )


def rows(rounds: int) -> list[Row]:
    """Measure over HTTP on both databases, and the function alone on PostgreSQL.

    Returns rows for docs/benchmarks.md: name, measured value, goal.
    """
    found = []
    for kind in ("sqlite", "postgresql"):
        with serving(kind) as served:
            database = Database(served.database_url)
            try:
                people, tokens = add_people(database)
                clients = [partial(Client, served, token) for token in tokens]
                times = measured(clients, rounds, first_h=1)
                what = f"{CLIENTS} clients at once for one hour over HTTP, {kind}"
                found.append((what, str(times), HTTP_GOAL))
                if kind == "postgresql":
                    callers = [partial(Caller, served.database_url, person) for person in people]
                    times = measured(callers, rounds, first_h=100)
                    what = f"the same, the function alone, {kind}"
                    found.append((what, str(times), FUNCTION_GOAL))
            finally:
                database.close()
    return found


def add_people(database: Database) -> tuple[list[Person], list[str]]:
    """Add CLIENTS users; return them and a token of each."""
    people, tokens, now = [], [], utc_now()
    with database.write() as session:
        for number in range(CLIENTS):
            user = User(
                id=new_id(IdKind.USER), name=f"booker{number}", role=Role.USER, created_at=now
            )
            session.add(user)
            session.flush()
            _, secret = issue_token(
                session,
                kind=TokenKind.API,
                name="bench",
                now=now,
                user_id=user.id,
                scopes=[Scope.ALL],
            )
            people.append(Person(user.id, user.name, Role.USER, "UTC", "bench", frozenset(Scope)))
            tokens.append(secret)
    return people, tokens


class Booker(Protocol):
    """Person who wants an hour."""

    def book(self, start: datetime) -> tuple[float, str]:
        """Book an hour; return the seconds until the answer, and the lease's id.

        The id is empty if another person has the hour.
        """

    def give_back(self, lease: str) -> None:
        """Give a lease back, so that others can book its hour."""


def measured(bookers: Sequence[Callable[[], Booker]], rounds: int, *, first_h: int) -> Times:
    """Let all book at once, in PROCESSES processes, and then one by one; return the times.

    The booked hours begin `first_h` hours from now.
    """
    start = hour_ceiling(utc_now()) + first_h * HOUR
    total = rounds + WARM_UP
    spawn = multiprocessing.get_context("spawn")
    gate, results = spawn.Barrier(CLIENTS), spawn.SimpleQueue()
    share = CLIENTS // PROCESSES
    processes = [
        spawn.Process(
            target=_ask_together, args=(bookers[at : at + share], start, total, gate, results)
        )
        for at in range(0, CLIENTS, share)
    ]
    for process in processes:
        process.start()
    parts = [results.get() for _ in processes]
    for process in processes:
        process.join()
    won = sum(wins for _, wins in parts)
    assert won == total, f"{won} of {total} rounds were won"
    at_once = [time for part, _ in parts for time in part]
    return Times(at_once, _ask_in_turn(bookers, start + total * HOUR, total))


def _ask_together(
    bookers: Sequence[Callable[[], Booker]],
    start: datetime,
    rounds: int,
    gate: Barrier,
    results: "multiprocessing.SimpleQueue[tuple[list[float], int]]",
) -> None:
    """Run some of the bookers, in a process of their own, through all rounds."""

    def one(make: Callable[[], Booker]) -> tuple[list[float], int]:
        times, won = [], 0
        booker = make()
        for number in range(rounds):
            gate.wait(120)
            elapsed, lease = booker.book(start + number * HOUR)
            if number >= WARM_UP:
                times.append(elapsed)
            gate.wait(120)
            if lease:
                won += 1
                booker.give_back(lease)
        return times, won

    with ThreadPoolExecutor(len(bookers)) as pool:
        parts = list(pool.map(one, bookers))
    results.put(([time for times, _ in parts for time in times], sum(won for _, won in parts)))


def _ask_in_turn(
    bookers: Sequence[Callable[[], Booker]], start: datetime, rounds: int
) -> list[float]:
    everyone = [make() for make in bookers]
    times = []
    for number in range(rounds):
        leases = []
        for offset in range(CLIENTS):
            booker = everyone[(number + offset) % CLIENTS]
            elapsed, lease = booker.book(start + number * HOUR)
            leases += [(booker, lease)] if lease else []
            if number >= WARM_UP:
                times.append(elapsed)
        [(winner, lease)] = leases
        winner.give_back(lease)
    return times


class Client:
    """Connection of one person to the API."""

    def __init__(self, served: ServedApi, token: str) -> None:
        self._token = token
        self._connection = http.client.HTTPConnection(served.url_host, served.port, timeout=60)
        self._connection.connect()

    def book(self, start: datetime) -> tuple[float, str]:
        """Call POST /v1/leases."""
        body = {"node": NODE, "start": start.isoformat(), "hours": 1}
        begun = time.perf_counter()
        status, answer = self._ask("POST", "/v1/leases", body)
        elapsed = time.perf_counter() - begun
        assert status == 201 or answer["code"] == "node_taken", answer
        return elapsed, str(answer["id"]) if status == 201 else ""

    def give_back(self, lease: str) -> None:
        """Call DELETE /v1/leases/ID."""
        status, answer = self._ask("DELETE", f"/v1/leases/{lease}", None)
        assert status in (200, 204), answer

    def _ask(
        self, method: str, path: str, body: dict[str, object] | None
    ) -> tuple[int, dict[str, object]]:
        headers = {
            "Content-Type": "application/json",
            "Authorization": f"Bearer {self._token}",
            "Idempotency-Key": uuid.uuid4().hex,
        }
        self._connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = self._connection.getresponse()
        content = answer.read()
        return answer.status, dict(json.loads(content)) if content else {}


class Caller:
    """One person, for whom `booking.book` is called in a transaction."""

    def __init__(self, database_url: str, person: Person) -> None:
        self._database, self._person = _database(database_url), person

    def book(self, start: datetime) -> tuple[float, str]:
        """Change the database as POST /v1/leases does."""
        block = Block(nodes=[NODE], start=start, hours=1)
        begun = time.perf_counter()
        try:
            with self._database.write() as session:
                lock_user(session, self._person.id)
                lease = booking.book(session, self._person, block, now=utc_now())
        except HourTaken:
            lease = ""
        return time.perf_counter() - begun, lease

    def give_back(self, lease: str) -> None:
        """Cancel the lease."""
        with self._database.write() as session:
            row = session.get_one(Lease, lease)
            leases.cancel(session, row, now=utc_now(), message="Given back.", actor="bench")


@cache
def _database(url: str) -> Database:
    return Database(url)  # one of each process
