"""Times to book."""

from datetime import timedelta

from core.base.clock import utc_now
from core.policy.grid import HOUR, hour_ceiling


def next_hour(more: int = 0) -> str:
    """A full hour to come, at least a minute away, as RFC 3339."""
    return (hour_ceiling(utc_now() + timedelta(minutes=1)) + more * HOUR).isoformat()
