"""A word for each list, which is another one whenever the list may read differently.

Whoever shows a list learns from it when to read the list again. It does not say what is in it,
which depends on who reads.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256
from threading import Lock

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from core.database import Database
from core.states import LIVE_LEASE, TERMINAL_JOB
from core.tables.jobs import Event, Job
from core.tables.leases import Lease, Occupancy
from core.tables.nodes import Node

FRESH_S = 1.0


class ListName(StrEnum):
    """A list that can be watched."""

    JOBS = "jobs"
    LEASES = "leases"
    NODES = "nodes"


Words = dict[ListName, str]


@dataclass
class Lists:
    """The words of all lists, read at most once a second for everybody who watches."""

    database: Database
    clock: Callable[[], float] = time.monotonic
    _lock: Lock = field(default_factory=Lock)
    _words: Words = field(default_factory=dict)
    _read_at: float = float("-inf")

    def words(self) -> Words:
        """As they are now, or were less than a second ago. From any thread."""
        with self._lock:
            if self.clock() >= self._read_at + FRESH_S:
                self._read_at = self.clock()
                with self.database.read() as session:
                    self._words = _read(session)
            return self._words


def _read(session: Session) -> Words:
    last_event = session.scalar(select(func.max(Event.id)))
    # What waits is told anew why, and what runs moves on, without an event.
    alive = select(Job.id, Job.state, Job.reason, Job.predicted_start, Job.last_step)
    jobs = session.execute(alive.where(Job.state.not_in(TERMINAL_JOB)).order_by(Job.id)).all()
    held = session.execute(select(func.count(), func.max(Occupancy.id)).where(Occupancy.live)).one()
    leases = session.execute(
        select(func.count(), func.sum(Lease.generation)).where(Lease.state.in_(LIVE_LEASE))
    ).one()
    seen = select(Node.id, Node.state, Node.clean, Node.last_seen_at, Node.unreachable_since)
    nodes = session.execute(seen.order_by(Node.id)).all()
    return {
        ListName.JOBS: _word(last_event, jobs),
        ListName.LEASES: _word(last_event, held, leases),
        ListName.NODES: _word(last_event, held, leases, nodes),
    }


def _word(*found: object) -> str:
    return sha256(repr(found).encode()).hexdigest()[:16]
