"""Clock times of a zone, with its days of 23 and 25 hours. Pure."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

HOUR_S = 3600
YEARS = range(2024, 2038)  # in which a zone's clock may only be moved by whole hours


class UnclearTime(ValueError):
    """A clock time that a zone skips or shows twice; `choices` are the moments it may mean."""

    def __init__(self, code: str, message: str, choices: tuple[datetime, ...]) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.choices = choices


def zone_named(name: str) -> ZoneInfo:
    """Return the zone. ValueError if there is none, or if its clock moves by parts of an hour."""
    try:
        zone = ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ValueError(
            f"there is no time zone {name!r}; write an IANA name such as Europe/Berlin"
        ) from error
    offsets_s = {
        offset.total_seconds()
        for year in YEARS
        for month in range(1, 13)
        if (offset := datetime(year, month, 1, tzinfo=zone).utcoffset()) is not None
    }
    if len({offset_s % HOUR_S for offset_s in offsets_s}) > 1:
        raise ValueError(
            f"the clock of {name} changes by a fraction of an hour, which blocks of an hour "
            "cannot follow. Use UTC or a neighbouring zone"
        )
    return zone


def resolve(wall: datetime, zone: ZoneInfo) -> datetime:
    """Return the moment (UTC) at which clocks in `zone` show `wall`, which has no offset.

    Raises UnclearTime: nonexistent_local_time with the first moment after the gap, or
    ambiguous_local_time with both.
    """
    first, second = _both(wall, zone)
    if first == second:
        return first
    if first < second:
        choices = (first, second)
        shown = " or ".join(show(choice, zone) for choice in choices)
        raise UnclearTime(
            "ambiguous_local_time",
            f"{wall:%Y-%m-%d %H:%M} occurs twice in {zone.key}. Write it with its offset: {shown}.",
            choices,
        )
    following = _end_of_gap(second, first, zone)
    raise UnclearTime(
        "nonexistent_local_time",
        f"{wall:%Y-%m-%d %H:%M} does not exist in {zone.key}, because clocks go forward. The "
        f"next valid time is {show(following, zone)}.",
        (following,),
    )


def edge(wall: datetime, zone: ZoneInfo) -> datetime:
    """Return the moment (UTC) of a band's edge: of two the first; in a gap the first after it."""
    first, second = _both(wall, zone)
    return first if first <= second else _end_of_gap(second, first, zone)


def read_moment(text: str, zone: ZoneInfo) -> datetime:
    """Read `2025-02-10T00:00` in `zone`, or any RFC 3339 moment, as UTC. ValueError if unclear."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError(
            f'{text!r} is not a valid time. Write it like "2025-02-10T00:00"'
        ) from error
    if not 2000 <= moment.year <= 9000:
        raise ValueError(f"the year {moment.year} is out of range")
    return resolve(moment, zone) if moment.tzinfo is None else moment.astimezone(UTC)


def has_moved(shown: str, zone: ZoneInfo) -> bool:
    """Return True if a moment once shown as `shown` (RFC 3339) has another clock time now."""
    moment = datetime.fromisoformat(shown)
    return moment.utcoffset() != moment.astimezone(zone).utcoffset()


def stamp(moment: datetime, zone: ZoneInfo) -> str:
    """Format as `2025-03-09T03:00-04:00`: RFC 3339 with the zone's offset."""
    return moment.astimezone(zone).isoformat(timespec="minutes")


def show(moment: datetime, zone: ZoneInfo) -> str:
    """Format as `Sun 2025-03-09 03:00 -04:00`, for people."""
    local = moment.astimezone(zone)
    offset = local.isoformat(timespec="minutes")[16:]
    return f"{local:%a %Y-%m-%d %H:%M} {offset}"


def _both(wall: datetime, zone: ZoneInfo) -> tuple[datetime, datetime]:
    """Resolve with the offsets before and after a clock change; the same moment on other days."""
    first = wall.replace(tzinfo=zone, fold=0).astimezone(UTC)
    second = wall.replace(tzinfo=zone, fold=1).astimezone(UTC)
    return first, second


def _end_of_gap(before: datetime, after: datetime, zone: ZoneInfo) -> datetime:
    """Return the moment in (before, after] at which the clock goes forward."""
    late = after.astimezone(zone).utcoffset()
    while after - before > timedelta(seconds=1):
        middle = before + (after - before) / 2
        if middle.astimezone(zone).utcoffset() == late:
            after = middle
        else:
            before = middle
    return after.replace(microsecond=0)
