"""Curves of a job over all of its attempts, thinned to a number of points."""

from collections.abc import Sequence

import numpy as np
from sqlalchemy import select
from sqlalchemy.orm import Session

from api.records import metric_store
from api.records.downsample import downsample, newest_of_each_step
from api.records.metric_store import Floats, Integers, Points
from api.records.schemas import Series
from api.watching.schemas import MetricsView
from core.tables.jobs import Attempt, Job

Stored = dict[tuple[str, int], list[Points]]
"""Points of each key and rank, an element for each attempt."""


def stored_series(
    session: Session, job: Job, *, keys: Sequence[str], rank: int | None
) -> tuple[list[str], Stored]:
    """Return the keys of all series of a job, and the points of those asked for; without `keys` of
    all."""
    attempts = session.scalars(
        select(Attempt.id).where(Attempt.job_id == job.id).order_by(Attempt.epoch)
    ).all()
    known = metric_store.known_keys(session, attempts)
    found: Stored = {}
    for attempt_id in attempts:
        read = metric_store.read(session, attempt_id, keys=keys or None, rank=rank)
        for series, points in read.items():
            found.setdefault(series, []).append(points)
    return known, found


def metrics_view(
    job: Job, known: list[str], found: Stored, *, resolution: int, since_step: int
) -> MetricsView:
    """Return the steps after `since_step` of each series, `resolution` points of each at most."""
    return MetricsView(
        job=job.id,
        keys=known,
        series=[
            _series(key, of_rank, Points.joined(parts), resolution, since_step)
            for (key, of_rank), parts in sorted(found.items())
        ],
    )


def _series(key: str, rank: int, points: Points, resolution: int, since_step: int) -> Series:
    steps, values = newest_of_each_step(points)
    if since_step >= 0:
        first = int(np.searchsorted(steps, since_step, side="right"))
        steps, values = steps[first:], values[first:]
    return series_view(key, rank, steps, values, resolution)


def series_view(key: str, rank: int, steps: Integers, values: Floats, resolution: int) -> Series:
    """Return a series with each step once and at most `resolution` points."""
    curve = downsample(steps, values, resolution)
    return Series(
        key=key,
        rank=rank,
        steps=curve.steps.tolist(),
        values=_plain(curve.values),
        min=_plain(curve.low),
        max=_plain(curve.high),
        points=len(steps),
    )


def _plain(values: Floats) -> list[float | None]:
    finite = np.isfinite(values)
    if bool(finite.all()):
        return list(values.tolist())
    return [value if ok else None for value, ok in zip(values.tolist(), finite, strict=True)]
