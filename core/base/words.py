"""Names, moments and sizes in a sentence. Pure."""

from collections.abc import Sequence
from datetime import UTC, datetime


def in_words(names: Sequence[str]) -> str:
    """Join names: `north-01`, `north-01 and north-02`, `north-01, north-02 and 6 more`."""
    if len(names) > 3:
        return f"{names[0]}, {names[1]} and {len(names) - 2} more"
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def clock(moment: datetime, now: datetime) -> str:
    """Format as `15:00 UTC` today, `Sat 22 Nov 15:00 UTC` on another day."""
    moment, now = moment.astimezone(UTC), now.astimezone(UTC)
    return f"{moment:%H:%M} UTC" if moment.date() == now.date() else f"{moment:%a %d %b %H:%M} UTC"


def size_text(size: int) -> str:
    """Format bytes for a person."""
    value = float(size)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "bytes" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
