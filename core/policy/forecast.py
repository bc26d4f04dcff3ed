"""How full the days before a window closes become, if everybody spends what is left. Pure.

This is no guess at what people will do: it is the most that the quotas let them do, spread evenly
over the days that are left. What finds no room on a day goes on to the days after it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True)
class FreeDay:
    """A day, or what is left of it, and its node-hours that nobody has booked."""

    start: datetime
    free_hours: float


@dataclass(frozen=True)
class ForecastDay:
    """A day with the node-hours that would be booked of it."""

    start: datetime
    free_hours: float
    wanted_hours: float


@dataclass(frozen=True)
class Forecast:
    """The days in order."""

    days: tuple[ForecastDay, ...]
    unmet_hours: float
    """Node-hours of quota for which there would be no room."""

    @property
    def free_hours(self) -> float:
        return sum(day.free_hours for day in self.days)

    @property
    def full_from(self) -> datetime | None:
        """The first day from which on every day would be full; None: there is room to the end."""
        found = None
        for day in reversed(self.days):
            if day.wanted_hours < day.free_hours:
                return found
            found = day.start
        return found


def forecast(days: Sequence[FreeDay], unspent_hours: float) -> Forecast:
    """What becomes of `days`, in order, if `unspent_hours` of quota are spent evenly over them."""
    rest = unspent_hours
    found = []
    for index, day in enumerate(days):
        wanted = min(day.free_hours, rest / (len(days) - index))
        rest -= wanted
        found.append(ForecastDay(day.start, day.free_hours, wanted))
    return Forecast(tuple(found), rest)
