"""How long it takes 32 people who ask for the same hour at once to hear who has got it.

In turn with the race the same requests are made one by one: what waiting for each other costs is
the quotient. Each round has an hour of its own; its winner gives it back before the next.
"""

import http.client
import json
import multiprocessing
import statistics
import threading
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from multiprocessing.synchronize import Barrier

from api.idempotency import lock_user
from api.identity import Person
from api.leases import booking
from api.leases.lease_schemas import Block
from api.people.credentials import issue_token
from benchmarks.ratios import percentile
from benchmarks.service import Served, serving
from core import leases
from core.clock import utc_now
from core.database import Database
from core.errors import HourTaken
from core.ids import Kind, new_id
from core.policy.grid import HOUR, hour_ceiling
from core.tables.kinds import Role, Scope, TokenKind
from core.tables.leases import Lease
from core.tables.people import User

CLIENTS, PROCESSES = 32, 4
NODE = "bench"  # as benchmarks.service enrols it
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
    """Over HTTP on both databases, and the function alone on PostgreSQL."""
    found = []
    for kind in ("sqlite", "postgresql"):
        with serving(kind) as served:
            database = Database(served.database_url)
            try:
                people, tokens = add_people(database)
                times = over_http(served, tokens, rounds)
                what = f"{CLIENTS} clients at once for one hour over HTTP, {kind}"
                found.append((what, str(times), HTTP_GOAL))
                if kind == "postgresql":
                    times = of_the_function(database, people, rounds)
                    found.append(
                        (f"the same, the function alone, {kind}", str(times), FUNCTION_GOAL)
                    )
            finally:
                database.close()
    return found


def add_people(database: Database) -> tuple[list[Person], list[str]]:
    """CLIENTS users, and a token of each."""
    people, tokens, now = [], [], utc_now()
    with database.write() as session:
        for number in range(CLIENTS):
            user = User(
                id=new_id(Kind.USER), name=f"booker{number}", role=Role.USER, created_at=now
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


# ---------------------------------------------------------------------------------------- over HTTP


def over_http(served: Served, tokens: Sequence[str], rounds: int) -> Times:
    """POST /v1/leases, by 32 clients in four processes."""
    start = hour_ceiling(utc_now()) + HOUR
    total = rounds + WARM_UP
    gate = multiprocessing.get_context("spawn").Barrier(CLIENTS)
    results = multiprocessing.get_context("spawn").SimpleQueue()
    share = CLIENTS // PROCESSES
    processes = [
        multiprocessing.get_context("spawn").Process(
            target=_ask_together,
            args=(served, tokens[first : first + share], start, total, gate, results),
        )
        for first in range(0, CLIENTS, share)
    ]
    for process in processes:
        process.start()
    parts = [results.get() for _ in processes]
    for process in processes:
        process.join()
    won = sum(wins for _, wins in parts)
    assert won == total, f"{won} of {total} rounds were won"
    one_by_one = []
    for number in range(total):
        at = start + (total + number) * HOUR
        wins = []
        for offset in range(CLIENTS):
            client = Client(served, tokens[(number + offset) % CLIENTS])
            elapsed, lease = client.book(at)
            wins += [(client, lease)] if lease else []
            if number >= WARM_UP:
                one_by_one.append(elapsed)
            if not lease:
                client.close()
        [(winner, lease)] = wins
        winner.give_back(lease)
        winner.close()
    return Times([one for part, _ in parts for one in part], one_by_one)


def _ask_together(
    served: Served,
    tokens: Sequence[str],
    start: datetime,
    rounds: int,
    gate: Barrier,
    results: "multiprocessing.SimpleQueue[tuple[list[float], int]]",
) -> None:
    """In a process of its own: some of the clients, through all rounds."""

    def one(token: str) -> tuple[list[float], int]:
        times, won = [], 0
        client = Client(served, token)
        for number in range(rounds):
            gate.wait(120)
            elapsed, lease = client.book(start + number * HOUR)
            if number >= WARM_UP:
                times.append(elapsed)
            gate.wait(120)
            if lease:
                won += 1
                client.give_back(lease)
        client.close()
        return times, won

    with ThreadPoolExecutor(len(tokens)) as pool:
        parts = list(pool.map(one, tokens))
    results.put(([time for times, _ in parts for time in times], sum(won for _, won in parts)))


class Client:
    """One person's connection."""

    def __init__(self, served: Served, token: str) -> None:
        self._token = token
        self._connection = http.client.HTTPConnection(served.url_host, served.port, timeout=60)
        self._connection.connect()

    def book(self, start: datetime) -> tuple[float, str]:
        """Seconds until the answer, and the lease; empty if somebody else has the hour."""
        body = {"node": NODE, "start": start.isoformat(), "hours": 1}
        begun = time.perf_counter()
        status, answer = self._ask("POST", "/v1/leases", body)
        elapsed = time.perf_counter() - begun
        assert status == 201 or answer["code"] == "node_taken", answer
        return elapsed, str(answer["id"]) if status == 201 else ""

    def give_back(self, lease: str) -> None:
        status, answer = self._ask("DELETE", f"/v1/leases/{lease}", None)
        assert status in (200, 204), answer

    def close(self) -> None:
        self._connection.close()

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


# ------------------------------------------------------------------------------------- the function


def of_the_function(database: Database, people: Sequence[Person], rounds: int) -> Times:
    """`booking.book` in its transaction, by 32 threads of one process."""
    first = hour_ceiling(utc_now()) + 100 * HOUR  # behind those of over_http, within 21 days
    at_once: list[float] = []
    one_by_one: list[float] = []
    gate = threading.Barrier(CLIENTS)

    def one(person: Person, hour: datetime, *, together: bool) -> float:
        if together:
            gate.wait(60)
        begun = time.perf_counter()
        _book(database, person, hour)
        return time.perf_counter() - begun

    with ThreadPoolExecutor(CLIENTS) as pool:
        for number in range(rounds + WARM_UP):
            hour = first + 2 * number * HOUR
            raced = list(pool.map(partial(one, hour=hour, together=True), people))
            turn = [*people[number % CLIENTS :], *people[: number % CLIENTS]]
            alone = [one(person, hour + HOUR, together=False) for person in turn]
            _free(database, hour)
            _free(database, hour + HOUR)
            if number >= WARM_UP:
                at_once += raced
                one_by_one += alone
    return Times(at_once, one_by_one)


def _book(database: Database, person: Person, hour: datetime) -> None:
    block = Block(nodes=[NODE], start=hour, hours=1)
    try:
        with database.write() as session:
            lock_user(session, person.id)
            booking.book(session, person, block, now=utc_now())
    except HourTaken:
        return


def _free(database: Database, hour: datetime) -> None:
    """Take the lease of that hour back; there must be exactly one."""
    with database.write() as session:
        lease = session.query(Lease).filter_by(hold_start=hour, cancelled_at=None).one()
        leases.cancel(session, lease, now=utc_now(), message="Given back.", actor="bench")
