"""Curves that a job has recorded on rank 0, over all its attempts."""

from collections.abc import Sequence

import numpy as np
from sqlalchemy import select
from sqlalchemy.orm import Session

from api.records import metric_store
from api.records.downsample import newest_of_each_step
from api.records.metric_store import Points
from core.tables.jobs import Attempt, Job
from strategies.plan.trust.certificate import Curve
from strategies.plan.trust.scaling import StepMeasurement

MOST_TIMED_STEPS = 100_000  # of an attempt, the last ones: a median needs no more
LOOK_KEYS = ("forward_time_s", "backward_time_s", "exposed_comm_time_s")


def curve_of(session: Session, job: Job) -> Curve:
    """Return loss and gradient norm by step; of a step that was run twice, the last values. Values
    that are not finite are kept."""
    curve = Curve()
    parts = _by_attempt(session, job, ["loss", "grad_norm"])
    for key, values in (("loss", curve.loss), ("grad_norm", curve.grad_norm)):
        found = [attempt[key] for attempt in parts if key in attempt]
        if found:
            steps, numbers = newest_of_each_step(Points.joined(found))
            values.update(zip(steps.tolist(), numbers.tolist(), strict=True))
    return curve


def step_times_of(session: Session, job: Job) -> list[list[float]]:
    """Return the step times of each attempt in order, in seconds, without the steps that a probe
    measured."""
    parts = _by_attempt(session, job, ["step_time_s"])
    times = [attempt["step_time_s"].values for attempt in parts if "step_time_s" in attempt]
    return [values[np.isfinite(values)][-MOST_TIMED_STEPS:].tolist() for values in times]


def looks_of(session: Session, job: Job) -> list[StepMeasurement]:
    """Return the probe's measurements, one for each step that it measured."""
    looks = []
    for attempt in _by_attempt(session, job, LOOK_KEYS):
        columns = [
            dict(zip(attempt[key].lines.tolist(), attempt[key].values.tolist(), strict=True))
            for key in LOOK_KEYS
            if key in attempt
        ]
        if len(columns) == len(LOOK_KEYS):
            looks += [
                StepMeasurement(*(column[line] for column in columns))
                for line in columns[0]
                if all(line in column for column in columns)
            ]
    return looks


def _by_attempt(session: Session, job: Job, keys: Sequence[str]) -> list[dict[str, Points]]:
    attempts = session.scalars(
        select(Attempt.id).where(Attempt.job_id == job.id).order_by(Attempt.epoch)
    ).all()
    return [
        {
            key: points
            for (key, _), points in metric_store.read(
                session, attempt_id, keys=keys, rank=0
            ).items()
        }
        for attempt_id in attempts
    ]
