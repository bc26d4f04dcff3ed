"""Who is next. Pure."""

from collections.abc import Iterable

from scheduler.snapshot import Waiting


def next_first(waiting: Iterable[Waiting]) -> list[Waiting]:
    """First come, first served. What the platform has queued again keeps the place it had."""
    return sorted(waiting, key=lambda job: (job.queued_at, job.id))
