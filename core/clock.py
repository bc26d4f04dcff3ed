"""The only place that reads a clock. Everything that decides takes `now` as an argument."""

import time
from datetime import UTC, datetime


def utc_now() -> datetime:
    """Now, in UTC, with its offset."""
    return datetime.now(UTC)


def boot_s() -> float:
    """Seconds since this machine booted, suspend included; deadlines on a node run on it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
