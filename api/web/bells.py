"""Doorbells of a request: collected while its transaction runs, rung by one thread after it.

An answer never waits for Redis; with Redis down nothing piles up, because equal bells are one.
"""

import threading
import time
from dataclasses import dataclass, field

from core.wire.doorbell import Doorbell, Topic

REST_S = 0.02  # between two rings; what is rung meanwhile is rung together


@dataclass
class Bells:
    """Doorbells to ring once the transaction is committed."""

    scheduler: bool = False
    nodes: set[str] = field(default_factory=set)
    """Names of nodes."""
    jobs: set[str] = field(default_factory=set)
    """Ids of jobs with new rows."""
    topics: set[Topic] = field(default_factory=set)
    """Topics that everybody is shown and that the transaction wrote about; set by
    `Process.write`."""

    def merge(self, other: "Bells") -> None:
        """Add the bells of `other`."""
        self.scheduler = self.scheduler or other.scheduler
        self.nodes |= other.nodes
        self.jobs |= other.jobs
        self.topics |= other.topics

    def __bool__(self) -> bool:
        return self.scheduler or bool(self.nodes or self.jobs or self.topics)


class Ringer:
    """Thread that rings the bells."""

    def __init__(self, doorbell: Doorbell) -> None:
        self._doorbell = doorbell
        self._pending = Bells()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="ringer", daemon=True)
        self._thread.start()

    def ring(self, bells: Bells) -> None:
        """Ring soon; returns at once."""
        if not bells:
            return
        with self._changed:
            self._pending.merge(bells)
            self._changed.notify()

    def close(self) -> None:
        """Ring what is left, then end."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._pending and not self._closed:
                    self._changed.wait()
                bells, self._pending = self._pending, Bells()
                if not bells:
                    return
            for name in bells.nodes:
                self._doorbell.ring_node(name)
            if bells.scheduler:
                self._doorbell.ring_scheduler()
            for job_id in bells.jobs:
                self._doorbell.ring_live(job_id, {})
            for topic in bells.topics:
                self._doorbell.ring_topic(topic)
            time.sleep(REST_S)
