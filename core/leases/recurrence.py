"""Recurrence: an RFC 5545 rule, expanded by the clock of a zone. Pure.

`every Sunday at 02:00` stays at 02:00 when the clocks change; a clock time that is skipped on a day
moves to the first moment after the gap, and one that comes twice means the first.
"""

from datetime import datetime
from itertools import islice
from zoneinfo import ZoneInfo

from dateutil.rrule import rrulestr

from core.base.errors import BadRequest
from core.policy.local_time import edge

MAX_OCCURRENCES = 400
FREQUENCIES = ("DAILY", "WEEKLY", "MONTHLY", "YEARLY")


def occurrences(rule: str | None, first: datetime, zone: ZoneInfo) -> list[datetime]:
    """Return the starts in UTC, `first` among them if the rule says so. Raises BadRequest.

    The rule must end, by COUNT or UNTIL, after at most 400 of them.
    """
    local = first.astimezone(zone).replace(tzinfo=None, fold=0)
    if rule is None:
        return [edge(local, zone)]
    text = rule.strip().upper().removeprefix("RRULE:")
    parts = dict(part.partition("=")[::2] for part in text.split(";"))
    if parts.get("FREQ") not in FREQUENCIES:
        raise _bad(f"FREQ must be one of {', '.join(FREQUENCIES)}")
    if "COUNT" not in parts and "UNTIL" not in parts:
        raise _bad("it must have an end: COUNT or UNTIL")
    try:
        # Clock times are expanded: an UNTIL in UTC is read as one, which is a day off at most.
        found = list(islice(rrulestr(text.replace("Z", ""), dtstart=local), MAX_OCCURRENCES + 1))
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise _bad(str(error)) from error
    if not found:
        raise _bad("it has no occurrences")
    if len(found) > MAX_OCCURRENCES:
        raise _bad(f"it has more than {MAX_OCCURRENCES} occurrences")
    return [edge(moment, zone) for moment in found]


def _bad(why: str) -> BadRequest:
    return BadRequest(
        f"rule: {why}. Write it like FREQ=WEEKLY;BYDAY=SU;COUNT=10.", param="rule", code="bad_rule"
    )
