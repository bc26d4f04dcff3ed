"""Times as people write them on the command line."""

from datetime import date, datetime

import typer

from trainyard.days import read_days
from trainyard.wording import PastStart, as_moment, as_start


def start_of(text: str) -> datetime | date:
    """Return a start time, or a day for any time on it. Raises BadParameter for other texts."""
    try:
        return date.fromisoformat(text.strip())
    except ValueError:
        pass
    try:
        return as_start(text, now=datetime.now().astimezone())
    except PastStart as error:
        raise typer.BadParameter(f"{error}.") from error
    except ValueError as error:
        raise _no_time(text) from error


def moment_of(text: str, *, now: datetime | None = None) -> datetime:
    """Return a time; a clock time is the next one after `now`.

    Raises BadParameter for other texts.
    """
    try:
        return as_moment(text, now=now or datetime.now().astimezone())
    except ValueError as error:
        raise _no_time(text) from error


def optional_moment(text: str | None) -> datetime | None:
    """Return the time in a text that may be missing. Raises BadParameter for other texts."""
    return None if text is None else moment_of(text)


def days_of(text: str) -> tuple[datetime, datetime]:
    """Return the first moment of the named days and the first one after them, in the local zone.

    Raises BadParameter for a text that names no days.
    """
    try:
        return read_days(text, today=datetime.now().astimezone().date()).span(None)
    except ValueError as error:
        raise typer.BadParameter(f"{error}.") from error


def _no_time(text: str) -> typer.BadParameter:
    return typer.BadParameter(
        f"{text!r} is not a valid time; write 14:00, 2026-11-22, '2026-11-22 14:00' or "
        "2026-11-22T14:00+01:00"
    )
