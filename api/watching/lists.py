"""Words that stand for lists: a list's word changes whenever the list may have changed.

Whoever shows a list learns from its word when to read the list again. All words are read once for
everybody who watches; the word of the list of jobs is each person's own, for a person's list shows
their jobs.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from hashlib import sha256

import anyio
from sqlalchemy import bindparam, func, select
from sqlalchemy.orm import Session

from api.watching.news import message
from api.watching.reader import Reader
from api.web.identity import Person
from core.base.clock import utc_now
from core.database.database import Database
from core.states import LIVE_ATTEMPT, LIVE_LEASE, TERMINAL_JOB, NodeState
from core.tables.jobs import Attempt, AttemptPart, Job
from core.tables.leases import Lease, Occupancy
from core.tables.nodes import Node

POLL_S = 2.0
REST_S = 1.0

# What waits is told anew why, and what runs moves on, without an event.
ALIVE = (
    select(Job.user_id, Job.id, Job.state, Job.desired, Job.reason, Job.predicted_start)
    .add_columns(Job.epoch, Job.last_step, Job.last_loss, Job.lease_id)
    .where(Job.state.not_in(TERMINAL_JOB))
    .order_by(Job.id)
)
NEWEST = select(Job.user_id, func.max(Job.id)).group_by(Job.user_id).order_by(Job.user_id)
HELD = (  # when a job is stopped at the latest
    select(Lease.user_id, Lease.id, Lease.state, Lease.generation)
    .where(Lease.state.in_(LIVE_LEASE))
    .order_by(Lease.id)
)
NODES = (
    select(Node.id, Node.name, Node.class_name, Node.state, Node.reason, Node.telemetry)
    .add_columns(Node.last_seen_at, Node.unreachable_since)
    .where(Node.state != NodeState.RETIRED)
    .order_by(Node.id)
)
HOLDS = (
    select(Occupancy.id, Occupancy.node_id, Occupancy.hold_start, Occupancy.hold_end)
    .where(
        Occupancy.live,
        Occupancy.hold_start <= bindparam("now"),
        Occupancy.hold_end > bindparam("now"),
    )
    .order_by(Occupancy.id)
)
RUNNING = (
    select(AttemptPart.node_id, AttemptPart.attempt_id)
    .join(Attempt, Attempt.id == AttemptPart.attempt_id)
    .where(AttemptPart.ended_at.is_(None), Attempt.state.in_(LIVE_ATTEMPT))
    .order_by(AttemptPart.node_id, AttemptPart.attempt_id)
)


class ListName(StrEnum):
    """A list that can be watched."""

    JOBS = "jobs"
    NODES = "nodes"


Words = dict[ListName, str]


@dataclass(frozen=True)
class ListWords:
    """The words of all lists, as they were last read."""

    jobs: Mapping[str, str]
    """Words of the lists of jobs, by the user's id."""
    all_jobs: str
    nodes: str


class Lists(Reader):
    """The words of all lists."""

    def __init__(self, database: Database) -> None:
        super().__init__(POLL_S, REST_S)
        self._database = database
        self._limiter = anyio.CapacityLimiter(1)
        self._known = ListWords({}, "", "")

    def __str__(self) -> str:
        return "lists"

    def follow(self, person: Person, names: Collection[ListName]) -> Callable[[], bytes]:
        """Return a function that gives the words of these lists as a message, or nothing if none
        has changed since its last call."""
        shown: Words | None = None

        def news() -> bytes:
            nonlocal shown
            before, shown = shown, self._words(person, names)
            return message("changes", json.dumps({"words": shown})) if shown != before else b""

        return news

    def _words(self, person: Person, names: Collection[ListName]) -> Words:
        known = self._known
        jobs = known.all_jobs if person.is_staff else known.jobs.get(person.id, "")
        words = {ListName.JOBS: jobs, ListName.NODES: known.nodes}
        return {name: words[name] for name in names}

    async def _read(self) -> None:
        before = self._known
        self._known = await anyio.to_thread.run_sync(self._ask, limiter=self._limiter)
        if self._known != before:
            self.tell()

    def _ask(self) -> ListWords:
        with self._database.read() as session:
            return read_words(session, utc_now())


def read_words(session: Session, now: datetime) -> ListWords:
    """Read the present words from the database."""
    of_jobs: dict[str, list[tuple[object, ...]]] = defaultdict(list)
    for query in (ALIVE, NEWEST, HELD):
        for row in session.execute(query):
            of_jobs[row[0]].append(tuple(row))
    jobs = {user_id: _word(rows) for user_id, rows in of_jobs.items()}
    nodes = [session.execute(query, {"now": now}).all() for query in (NODES, HOLDS, RUNNING)]
    return ListWords(
        jobs=jobs,
        all_jobs=_word(sorted(jobs.items())),
        nodes=_word(nodes),
    )


def _word(found: object) -> str:
    return sha256(repr(found).encode()).hexdigest()[:16]
