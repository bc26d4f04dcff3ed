"""Matching of leases to the slots of an alternative, each to one of its own. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from math import inf

ALL = "all"


@dataclass(frozen=True)
class CountedLease:
    """A lease, or several that touch, as a quota sees it."""

    pools: tuple[str, ...]
    """Names of its node's pools."""
    hours: int
    start: datetime
    end: datetime
    gpus: int = 1


@dataclass(frozen=True)
class Room:
    """Room for one lease of at most `hours` and `gpus` on a node of one of the pools."""

    pools: tuple[str, ...]
    hours: int
    gpus: int | None = None
    """Most GPUs that the lease may have; None for no limit."""

    def takes(self, lease: CountedLease) -> bool:
        """Return True if the lease fits in here."""
        return (
            lease.hours <= self.hours
            and (self.gpus is None or lease.gpus <= self.gpus)
            and (ALL in self.pools or any(pool in self.pools for pool in lease.pools))
        )


def rooms_left(
    leases: Sequence[CountedLease], rooms: Sequence[Room], *, distinct_times: bool, extra: int = 0
) -> tuple[Room, ...] | None:
    """Return the rooms that stay free if each lease gets its own; None if they don't all fit.

    `extra` leases may stay without a room. With `distinct_times` those that have one do not overlap
    in time; which of two that overlap is left out is then chosen by time alone.
    """
    housed = _one_at_a_time(leases) if distinct_times else list(leases)
    left_out = len(leases) - len(housed)
    if left_out > extra or len(leases) > len(rooms) + extra:
        return None
    unhoused, free = _match(housed, rooms)
    return free if left_out + unhoused <= extra else None


def _one_at_a_time(leases: Sequence[CountedLease]) -> list[CountedLease]:
    """Choose as many of them as possible without two at one time, by earliest end."""
    chosen: list[CountedLease] = []
    for lease in sorted(leases, key=lambda lease: lease.end):
        if not chosen or lease.start >= chosen[-1].end:
            chosen.append(lease)
    return chosen


def _match(leases: Sequence[CountedLease], rooms: Sequence[Room]) -> tuple[int, tuple[Room, ...]]:
    """Return the number of leases that find no room, and the rooms that stay free.

    Uses augmenting paths (Kuhn 1955), tightest room first, so that the widest stay free.
    """
    order = sorted(range(len(rooms)), key=lambda at: _tightness(rooms[at]))
    guest: dict[int, int] = {}

    def settle(lease: int, tried: set[int]) -> bool:
        for at in order:
            if at in tried or not rooms[at].takes(leases[lease]):
                continue
            tried.add(at)
            if at not in guest or settle(guest[at], tried):
                guest[at] = lease
                return True
        return False

    unhoused = sum(not settle(lease, set()) for lease in range(len(leases)))
    return unhoused, tuple(room for at, room in enumerate(rooms) if at not in guest)


def _tightness(room: Room) -> tuple[float, int, int]:
    width = 1_000 if ALL in room.pools else len(room.pools)
    return inf if room.gpus is None else room.gpus, room.hours, width
