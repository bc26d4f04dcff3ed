"""Who is next. Pure.

Every waiting job has points, in hours: as many as it has waited, and some more for a person and a
lab that have used little lately, for a lab of weight, and for a short job. So everybody's turn
comes: points grow without end while one waits, and what is added to them is bounded.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from scheduler.snapshot import Waiting

SHORT_S = 3600  # wall time up to which a job counts as short


@dataclass(frozen=True)
class Weights:
    """What counts as how many hours of waiting."""

    fair_share_h: float = 4.0
    """For somebody who has used nothing; half of it for one who has used the fair share."""
    lab_h: float = 1.0
    """For the lab of the most weight."""
    short_h: float = 1.0
    """For a wall time of an hour or less."""


@dataclass(frozen=True)
class Standing:
    """How a person stands."""

    usage: float = 0.0
    """What person and lab have used lately, as a multiple of their fair share."""
    lab_weight: float = 1.0
    """Of the person's lab, as a share of the heaviest lab's."""


NEWCOMER = Standing()
DEFAULT_WEIGHTS = Weights()


def points(
    waited_s: float, wall_time_s: float, standing: Standing, weights: Weights = DEFAULT_WEIGHTS
) -> float:
    """How far up the line a job is, in hours."""
    return (
        waited_s / 3600
        + weights.fair_share_h * math.exp2(-standing.usage)
        + weights.lab_h * standing.lab_weight
        + weights.short_h * (wall_time_s <= SHORT_S)
    )


def next_first(
    waiting: Iterable[Waiting], now: datetime, standings: Mapping[str, Standing]
) -> list[Waiting]:
    """Most points first; of equals who came first. Who is queued again keeps the age it had.

    `standings` by user id; who is missing there has used nothing.
    """

    def key(job: Waiting) -> tuple[float, datetime, str]:
        waited_s = (now - job.queued_at).total_seconds()
        mine = points(waited_s, job.wall_time_s, standings.get(job.user_id, NEWCOMER))
        return -mine, job.queued_at, job.id

    return sorted(waiting, key=key)
