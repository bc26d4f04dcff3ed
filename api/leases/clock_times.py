"""Times as people send them: with their offset, or as the clock of a zone that they name.

A clock time alone does not determine a moment: in spring an hour is skipped, in autumn one comes
twice. The platform does not guess: the error lists the possible moments.
"""

from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

from core.base.errors import BadRequest
from core.policy.local_time import UnclearTime, edge, resolve, zone_named


class BadClockTime(BadRequest):
    """A clock time that is skipped on that day, or comes twice; `choices` are moments."""

    title = "No such clock time"

    def __init__(self, unclear: UnclearTime, zone: ZoneInfo, *, param: str) -> None:
        super().__init__(f"{param}: {unclear.message}", code=unclear.code, param=param)
        self.choices = [choice.astimezone(zone) for choice in unclear.choices]


def zone_of(name: str, *, param: str = "zone") -> ZoneInfo:
    """Return the zone of an IANA name. Raises BadRequest."""
    try:
        return zone_named(name)
    except ValueError as error:
        raise BadRequest(f"{param}: {error}.", param=param) from error


def moment_of(given: datetime, zone_name: str | None, *, param: str) -> datetime:
    """Return the moment in UTC that `given` means. Raises BadRequest, or BadClockTime with choices.

    A time with an offset is a moment by itself; a time without one needs the zone, and must occur
    there exactly once.
    """
    if not 2000 <= given.year <= 9000:
        raise BadRequest(
            f"{param}: the year {given.year} is out of range. Choose an earlier time.", param=param
        )
    if given.tzinfo is not None:
        return given.astimezone(UTC)
    if zone_name is None:
        raise BadRequest(
            f"{param}: the time has no offset. Write it like 2026-11-22T14:00:00+01:00, or "
            "name its time zone as `zone`.",
            code="naive_time",
            param=param,
        )
    zone = zone_of(zone_name)
    try:
        return resolve(given, zone)
    except UnclearTime as unclear:
        raise BadClockTime(unclear, zone, param=param) from unclear


def day_of(day: date, zone: ZoneInfo) -> tuple[datetime, datetime]:
    """Return the first moment of a civil day and of the next, in UTC: 23, 24 or 25 hours apart."""
    midnight = datetime.combine(day, time())
    return edge(midnight, zone), edge(midnight + timedelta(days=1), zone)
