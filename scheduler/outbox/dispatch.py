"""Doorbells rung after the commit: nodes fetch orders, live streams fetch news.

Any of them may be lost.
"""

import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

from core.states import AttemptState
from core.wire.doorbell import Topic
from scheduler.snapshot import Snapshot

AGAIN_S = 5.0  # between two rings for an attempt that its node has not taken up
SLOW_S = 0.2  # a ring that takes longer means that the broker hangs: no more for a while
QUIET_S = 10.0
MANY = 100  # with more jobs no viewer is woken: they look by themselves once a second


class Bell(Protocol):
    """Methods of `core.wire.doorbell.Doorbell` that a scheduler uses."""

    def ring_node(self, node_name: str) -> None:
        """Tell a node that there may be new orders for it."""

    def ring_live(self, job_id: str, news: dict[str, object]) -> None:
        """Send news of a job to its live streams."""

    def ring_topic(self, topic: Topic) -> None:
        """Tell the streams that the rows of a topic may have changed."""


class Dispatcher:
    """Ringer of doorbells; rings again for attempts that their nodes have not taken up."""

    def __init__(self, bell: Bell, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._bell = bell
        self._monotonic = monotonic
        self._rung_at: dict[str, float] = {}
        self._quiet_until = 0.0

    def ring_nodes(self, names: Iterable[str]) -> None:
        """Tell these nodes that new orders wait for them."""
        for name in sorted(set(names)):
            self._rung_at[name] = self._monotonic()
            self._ring(partial(self._bell.ring_node, name))

    def ring_again(self, world: Snapshot) -> None:
        """Ring once more at nodes that have not taken up an attempt for some seconds."""
        late = {
            world.nodes[attempt.node_id].name
            for attempt in world.attempts
            if attempt.phase is None and attempt.state is AttemptState.ASSIGNED
        }
        now = self._monotonic()
        self.ring_nodes(name for name in late if now - self._rung_at.get(name, now) >= AGAIN_S)
        for name in late - self._rung_at.keys():
            self._rung_at[name] = now
        self._rung_at = {name: at for name, at in self._rung_at.items() if name in late}

    def tell_viewers(self, job_ids: Iterable[str]) -> None:
        """Wake the live streams of these jobs; of none if there are more than `MANY`."""
        wanted = sorted(set(job_ids))
        for job_id in wanted if len(wanted) <= MANY else []:
            self._ring(partial(self._bell.ring_live, job_id, {"kind": "job"}))

    def tell_everybody(self, topics: Iterable[Topic]) -> None:
        """Wake all streams that show these topics."""
        for topic in topics:
            self._ring(partial(self._bell.ring_topic, topic))

    def _ring(self, ring: Callable[[], None]) -> None:
        begun = self._monotonic()
        if begun < self._quiet_until:
            return
        ring()
        ended = self._monotonic()
        if ended - begun > SLOW_S:
            self._quiet_until = ended + QUIET_S
