"""Numbers, sizes and spans as the pages write them. Pure. Unknown is an en dash, never 0."""

import math
import re

UNKNOWN = "\u2013"
# Control characters, and marks that turn the direction of the text around them.
INVISIBLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]")


def count(number: int | float | None) -> str:
    """`3118` -> `3,118`."""
    return UNKNOWN if number is None or not math.isfinite(number) else f"{number:,.0f}"


def decimal(number: float | None, digits: int = 4) -> str:
    """`digits` significant ones: `1.021`, `12.30`; small and large ones as `3.0e-4`.

    Below 1 the zero counts as one: `0.641`.
    """
    if number is None or math.isnan(number):
        return UNKNOWN if number is None else "nan"
    if number == 0:
        return "0"
    if abs(number) < 1e-2 or abs(number) >= 1e6:
        mantissa, exponent = f"{number:.{max(1, digits - 3)}e}".split("e")
        return f"{mantissa}e{int(exponent)}"
    places = digits - 1 - max(0, math.floor(math.log10(abs(number))))
    return f"{number:,.{max(0, places)}f}"


def hours(number: float | None) -> str:
    """Hours used or booked, with three digits; a trace of them as `< 0.01`."""
    return "< 0.01" if number is not None and 0 < number < 0.01 else decimal(number, 3)


def gib(number: float | None) -> tuple[str, str]:
    """A size given in GiB as number and unit: `63.0`, `GiB`, or `512`, `MiB`."""
    if number is None:
        return UNKNOWN, ""
    if abs(number) >= 0.1:
        return (f"{number:.1f}" if number >= 10 else f"{number:.2f}"), "GiB"
    return f"{number * 1024:.1f}", "MiB"


def size(num_bytes: int | None) -> tuple[str, str]:
    """A size given in bytes as number and unit."""
    if num_bytes is None:
        return UNKNOWN, ""
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if num_bytes >= 1024**power:
            return f"{num_bytes / 1024**power:.1f}", unit
    return str(num_bytes), "bytes" if num_bytes != 1 else "byte"


def span(seconds: float | None) -> str:
    """`6360` -> `1 h 46 min`; the two largest units."""
    if seconds is None:
        return UNKNOWN
    if seconds < 0:
        return "0 s"
    if 0 < seconds < 1:
        return f"{seconds * 1000:.{1 if seconds < 0.01 else 0}f} ms"
    whole = round(seconds)
    days, hours, minutes, rest = whole // 86400, whole // 3600 % 24, whole // 60 % 60, whole % 60
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (rest, "s")]
    first = next((index for index, (number, _) in enumerate(parts) if number), 3)
    shown = parts[first : first + 2]
    return " ".join(f"{number} {unit}" for number, unit in shown if number) or "0 s"


def percent(part: float, whole: float) -> int:
    """Whole per cent, 100 only when all of it is done."""
    return 0 if whole <= 0 else max(0, min(100, math.floor(100 * part / whole)))


def share(part: float | None) -> tuple[str, str]:
    """`0.853` as number and unit: `85.3`, `%`."""
    return (UNKNOWN, "") if part is None else (f"{100 * part:.1f}", "%")


def counted(number: int, one: str, many: str | None = None) -> str:
    """`1 job`, `2 jobs`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def visible(text: str) -> str:
    """Text that others wrote, with its control and direction characters spelled out."""
    return INVISIBLE.sub(lambda found: f"[U+{ord(found[0]):04X}]", text)
