"""Forecast of the load of the days before a window closes, if everybody spends their quota. Pure.

It does not guess at people's behaviour: it is the most that the quotas allow, spread over the free
hours of the days on which it can be spent, so that a last day of one hour is not given the part of
a whole day. Hours that find no room on a day move to the days after it, as long as its week, day or
night is not over.
"""

import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True)
class FreeDay:
    """A day, or the rest of one, and its node-hours that nobody has booked."""

    start: datetime
    free_hours: float


@dataclass
class Budget:
    """Node-hours left of a quota, for the days from `first` to before `end`."""

    hours: float
    first: int
    end: int

    def share(self, day: int, free: Sequence[float]) -> float:
        """Return the part of the remaining hours that falls to a day, in proportion to its share of
        the free hours on all remaining days; where there are none, evenly to each of them."""
        total = sum(free[day : self.end])
        return self.hours * (free[day] / total if total else 1 / (self.end - day))


@dataclass(frozen=True)
class Spender:
    """People who spend from the same budgets: those of a lab, and those without one."""

    purses: Sequence[Budget] = ()
    """Budgets that are spent beside each other: a quota by day, another one by night."""
    caps: Sequence[Budget] = ()
    """Limits on all that is spent; each of them holds."""

    def share(self, day: int, free: Sequence[float]) -> float:
        """Return the hours that they spend on a day."""
        bounds = [cap.share(day, free) for cap in _on(self.caps, day)]
        if self.purses:
            bounds.append(sum(purse.share(day, free) for purse in _on(self.purses, day)))
        return min(bounds, default=0.0)

    def spend(self, day: int, free: Sequence[float], part: float) -> None:
        """Spend this part of the day's share."""
        hours = part * self.share(day, free)
        purses = _on(self.purses, day)
        in_purses = sum(purse.share(day, free) for purse in purses)
        for purse in purses:
            taken = hours * purse.share(day, free) / in_purses if in_purses else 0.0
            purse.hours = max(0.0, purse.hours - taken)  # rounding must not leave less than nothing
        for cap in _on(self.caps, day):
            cap.hours = max(0.0, cap.hours - hours)


@dataclass(frozen=True)
class ForecastDay:
    """A day with the node-hours of it that would be booked."""

    start: datetime
    free_hours: float
    wanted_hours: float


@dataclass(frozen=True)
class Forecast:
    """The days in order."""

    days: tuple[ForecastDay, ...]
    unspent_hours: float
    """Node-hours that quotas still allow on these days."""

    @property
    def unmet_hours(self) -> float:
        """Unspent hours for which there would be no room."""
        return max(0.0, self.unspent_hours - sum(day.wanted_hours for day in self.days))

    @property
    def free_hours(self) -> float:
        return sum(day.free_hours for day in self.days)

    @property
    def full_from(self) -> datetime | None:
        """First day from which on every day would be full; None: there is room to the end."""
        found = None
        for day in reversed(self.days):
            if day.wanted_hours < day.free_hours:
                return found
            found = day.start
        return found


def forecast(days: Sequence[FreeDay], spenders: Sequence[Spender]) -> Forecast:
    """Forecast `days`, in order, if all spend their budgets in proportion to the free hours.

    Budgets name days by their index. People without a limit are left out.
    """
    free = [day.free_hours for day in days]
    wanted = _spent(free, free, spenders)
    allowed = _spent([math.inf] * len(days), free, spenders)
    return Forecast(
        tuple(
            ForecastDay(day.start, day.free_hours, hours)
            for day, hours in zip(days, wanted, strict=True)
        ),
        sum(allowed),
    )


def _spent(
    room: Sequence[float], free: Sequence[float], spenders: Sequence[Spender]
) -> list[float]:
    """Return the hours spent on each day, at most its `room`, shared out by the `free` hours."""
    left = deepcopy(spenders)
    found = []
    for day, most in enumerate(room):
        shares = sum(one.share(day, free) for one in left)
        spent = min(most, shares)
        for one in left:
            one.spend(day, free, spent / shares if shares else 0.0)
        found.append(spent)
    return found


def _on(budgets: Sequence[Budget], day: int) -> list[Budget]:
    return [budget for budget in budgets if budget.first <= day < budget.end]
