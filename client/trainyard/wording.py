"""Wording of numbers, times and sizes. Moments are shown in the local zone, with the offset."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from math import isfinite

BLOCKS = "▁▂▃▄▅▆▇█"


def moment(at: datetime | None, *, now: datetime | None = None) -> str:
    """Return `2026-11-21 14:05:09 +0100`; only time and offset if it is today; `-` for None."""
    if at is None:
        return "-"
    local = at.astimezone()
    today = (now or datetime.now().astimezone()).astimezone().date()
    return local.strftime("%H:%M:%S %z" if local.date() == today else "%Y-%m-%d %H:%M %z")


def clock_time(at: datetime) -> str:
    """Return `14:05:09`, for lines below a heading that names the zone."""
    return at.astimezone().strftime("%H:%M:%S")


def duration(seconds: float | None) -> str:
    """Return `45 s`, `3 min 05 s`, `2 h 07 min`, `1 d 3 h`; `-` for None."""
    if seconds is None:
        return "-"
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def reference(name: str, owner: str | None, reader: str) -> str:
    """Return the name by which a reader's jobs name a thing: with its owner, if it is another's."""
    return name if owner in (None, reader) else f"{owner}/{name}"


def size(num_bytes: float) -> str:
    """Return a size such as `512 B`, `3.4 MiB`, `1.2 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.1f} TiB"


def counted(number: int, one: str, many: str | None = None) -> str:
    """Return a number with its noun: `1 job`, `2 jobs`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def part_of(node: str, gpus: int | None) -> str:
    """Return `1 GPU of north-01`, or the node alone for None, which stands for all of it."""
    return node if gpus is None else f"{counted(gpus, 'GPU')} of {node}"


def steps_text(step: int, steps: int, *, separator: str = " of ") -> str:
    """Return `120 of 400`, or `120` for a script, whose number of steps is unknown."""
    return f"{step:,}{separator}{steps:,}" if steps else f"{step:,}"


def number(value: float | None, *, digits: int = 4) -> str:
    """Return `12,345`, `1.834`, `2.000e-05`; `-` for None."""
    if value is None:
        return "-"
    if not isfinite(value):
        return str(value)
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    if abs(value) < 1e-3:
        return f"{value:.{digits - 1}e}"
    return f"{value:.{digits}g}"


def sparkline(values: Sequence[float | None], *, width: int = 24) -> str:
    """Return a line of blocks, lowest to highest; with too many values, means of equal parts."""
    known = [value for value in values if value is not None and isfinite(value)]
    if len(known) < 2:
        return ""
    parts = min(width, len(known))
    edges = [round(i * len(known) / parts) for i in range(parts + 1)]
    pairs = list(pairwise(edges))
    means = [sum(known[a:b]) / (b - a) for a, b in pairs]
    low, high = min(means), max(means)
    scale = (len(BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(BLOCKS[round((mean - low) * scale)] for mean in means)


def as_moment(text: str, *, now: datetime) -> datetime:
    """Return the moment of `14:00` (today, or tomorrow if past), `2026-11-22 14:00` or RFC 3339.

    Without an offset it is in the local zone. Raises ValueError.
    """
    words = text.strip()
    try:
        parsed = datetime.strptime(words, "%H:%M")
    except ValueError:
        given = datetime.fromisoformat(words)
        return given if given.tzinfo else given.astimezone()
    local = now.astimezone()
    at = datetime.combine(local.date(), parsed.time()).astimezone()
    if at <= local:
        at = datetime.combine(local.date() + timedelta(days=1), parsed.time()).astimezone()
    return at


def as_start(text: str, *, now: datetime) -> datetime:
    """Return the moment at which something shall begin, from the same forms as in `as_moment`.

    A past clock time never means tomorrow's: within the hour before `now` it means today's, because
    that hour still runs. Raises ValueError; PastStart if the hour is over.
    """
    moment = as_moment(text, now=now)
    midnight = now.astimezone().replace(hour=0, minute=0, second=0, microsecond=0)
    today = as_moment(text, now=midnight - timedelta(seconds=1))
    if today == moment:
        return moment
    if today <= now - timedelta(hours=1):
        raise PastStart(f"{text} is over today; for tomorrow write '{moment:%Y-%m-%d %H:%M}'")
    return today


class PastStart(ValueError):
    """Error for a clock time whose hour is over today."""
