"""Priority order of the waiting jobs. Pure.

Every waiting job has points, in hours: its hours of waiting, plus a bonus for a person and a lab
with little recent use, for the lab's weight, and for a short job. Points grow without limit while a
job waits and every bonus is bounded, so no job waits for ever.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from scheduler.snapshot import WaitingJob

SHORT_S = 3600  # wall time up to which a job counts as short


@dataclass(frozen=True)
class Weights:
    """Bonuses, as hours of waiting."""

    fair_share_h: float = 4.0
    """Bonus of a person without recent use; half of it for one who has used the fair share."""
    lab_h: float = 1.0
    """Bonus of a job in the heaviest lab; of other labs in proportion to their weight."""
    short_h: float = 1.0
    """Bonus of a job with a wall time of `SHORT_S` or less."""


@dataclass(frozen=True)
class UserShare:
    """Recent use and lab weight of a person."""

    usage: float = 0.0
    """Recent use as a multiple of the fair share, the mean of the person's and the lab's."""
    lab_weight: float = 1.0
    """Weight of the person's lab divided by that of the heaviest lab."""


NEWCOMER = UserShare()
DEFAULT_WEIGHTS = Weights()


def points(
    waited_s: float, wall_time_s: float, standing: UserShare, weights: Weights = DEFAULT_WEIGHTS
) -> float:
    """Return a job's points, in hours; the job with the most is served first."""
    return (
        waited_s / 3600
        + weights.fair_share_h * math.exp2(-standing.usage)
        + weights.lab_h * standing.lab_weight
        + weights.short_h * (wall_time_s <= SHORT_S)
    )


def next_first(
    waiting: Iterable[WaitingJob], now: datetime, standings: Mapping[str, UserShare]
) -> list[WaitingJob]:
    """Return the waiting jobs sorted by points, most first; equal ones by the time of queueing.

    A job that is queued again keeps its age. `standings` maps user id -> standing; a user who is
    missing there has used nothing.
    """

    def key(job: WaitingJob) -> tuple[float, datetime, str]:
        waited_s = (now - job.queued_at).total_seconds()
        mine = points(waited_s, job.wall_time_s, standings.get(job.user_id, NEWCOMER))
        return -mine, job.queued_at, job.id

    return sorted(waiting, key=key)
