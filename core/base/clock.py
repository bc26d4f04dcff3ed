"""The only place that reads a clock. Every decision takes `now` as an argument.

The platform's time is the database's: every process follows it (`core.process.timekeeping`), and
between two looks counts on with the machine's boot clock. So a process whose own clock jumps
decides as if nothing had happened, and two machines agree on when a lease ends.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

TRUSTED_STEP = timedelta(seconds=60)  # a usual correction by time servers; more is a mistake
DOUBTED_FOR_S = 600.0  # a larger step that lasts so long is believed: our own clock was wrong


def wall_clock() -> datetime:
    """Return this machine's own time, in UTC. Decisions use `utc_now`."""
    return datetime.now(UTC)


def boot_s() -> float:
    """Return seconds since this machine booted, suspend included; deadlines on a node run on it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True)
class _Anchor:
    at: datetime
    boot_s: float


class FollowingClock:
    """A clock that runs on the boot clock and follows a reference, but not into a sudden leap."""

    def __init__(self, boot: Callable[[], float] = boot_s) -> None:
        self._boot = boot
        self._anchor: _Anchor | None = None
        self._doubted_since: float | None = None

    def now(self) -> datetime:
        """Return the reference's time, as last followed; before that, the machine's."""
        anchor = self._anchor
        if anchor is None:
            return wall_clock()
        return anchor.at + timedelta(seconds=self._boot() - anchor.boot_s)

    def follow(self, reference: datetime) -> timedelta:
        """Follow `reference`, read just now; return how far it is ahead and not yet believed.

        The first reference is believed whatever it says, a small step at once, a large one when it
        has lasted for ten minutes.
        """
        boot = self._boot()
        step = timedelta() if self._anchor is None else reference - self.now()
        if abs(step) > TRUSTED_STEP:
            if self._doubted_since is None:
                self._doubted_since = boot
            if boot - self._doubted_since < DOUBTED_FOR_S:
                return step
        self._anchor = _Anchor(reference, boot)
        self._doubted_since = None
        return timedelta()


_clock = FollowingClock()


def utc_now() -> datetime:
    """Return the present moment, in UTC, with its offset."""
    return _clock.now()


def follow(reference: datetime) -> timedelta:
    """Let this process follow `reference`; see `FollowingClock.follow`."""
    return _clock.follow(reference)
