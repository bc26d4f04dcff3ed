"""Clock of a workbench: what a terminal's title says about its end. Pure."""

from datetime import datetime, timedelta

from trainyard.wording import clock_time

NOTICES = (timedelta(minutes=15), timedelta(minutes=5))


def title_at(name: str, ends_at: datetime | None, now: datetime) -> str:
    """Return the title of a terminal: its name, and the minutes that are left."""
    if ends_at is None:
        return name
    left_min = max(0, -((now - ends_at) // timedelta(minutes=1)))
    clock = f"ends {clock_time(ends_at)}, {left_min} min left"
    return f"! {clock} · {name}" if ends_at - now <= NOTICES[0] else f"{name} · {clock}"


def rings_between(ends_at: datetime | None, before: datetime, now: datetime) -> bool:
    """Return True if a notice has become due after `before`, until `now`."""
    return ends_at is not None and any(before < ends_at - each <= now for each in NOTICES)


def next_change(ends_at: datetime | None, now: datetime) -> timedelta:
    """Return the time until the title changes, at most a minute."""
    minute = timedelta(minutes=1)
    if ends_at is None or ends_at <= now:
        return minute
    return (ends_at - now) % minute or minute
