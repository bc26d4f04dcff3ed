"""Pace of heartbeats, on a large cluster and beside trainings: the API says when it wants the next.

News and doorbells do not wait for it: a node that has something to report, or is rung, sends a
heartbeat at once.
"""

import threading
import time
from collections.abc import Callable

from sqlalchemy import func, select

from core.database.database import Database
from core.states import NodeState, Phase
from core.tables.nodes import Node
from core.wire.messages import Heartbeat

BEATS_PER_S = 100  # of all nodes together: a third of a core for the API and the database
MISSED = 3  # heartbeats after which a node counts as unreachable
COUNTED_EVERY_S = 30.0


def pause_s(num_nodes: int, unreachable_after_s: float, *, is_at_work: bool) -> float:
    """Return the seconds between two heartbeats of one of so many nodes.

    It is so short that MISSED heartbeats fit into the silence after which a node is unreachable;
    as long as that allows if the node `is_at_work`: each takes 10 ms of a core, which are the
    ranks' where API and node are one machine.
    """
    longest_s = unreachable_after_s / MISSED
    return longest_s if is_at_work else min(num_nodes / BEATS_PER_S, longest_s)


def is_at_work(beat: Heartbeat) -> bool:
    """Return True if the node trains, and nothing on it begins or ends."""
    return bool(beat.attempts) and all(one.phase is Phase.RUNNING for one in beat.attempts)


class NodeCount:
    """Number of nodes that report; counted again every COUNTED_EVERY_S. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._counted_at: float | None = None
        self.number = 0
        """As of the last count."""

    def look(self, database: Database) -> None:
        """Count the nodes, if the last count is too old and nobody else counts them now."""
        now = self._clock()
        with self._lock:
            at = self._counted_at
            if at is not None and now - at < COUNTED_EVERY_S:
                return
            self._counted_at = now  # the others take the last number meanwhile
        query = select(func.count()).where(Node.state != NodeState.RETIRED)
        with database.read() as session:
            self.number = int(session.scalar(query) or 0)
