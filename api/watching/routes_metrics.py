"""/v1/jobs/{id}/metrics: the curves of a job."""

from typing import Annotated

import numpy as np
from fastapi import APIRouter, Query, Response
from sqlalchemy import select
from sqlalchemy.orm import Session

from api.jobs.job_views import find_job
from api.records import metric_store
from api.records.downsample import downsample, newest_of_each_step
from api.records.metric_store import Floats, Integers, Points
from api.records.schemas import Series
from api.watching.schemas import MetricsView
from api.web.auth import SignedIn
from api.web.process import ProcessDep
from api.web.text_types import PlainText
from core.tables.jobs import Attempt
from core.tables.telemetry import MetricChunk

router = APIRouter(prefix="/v1/jobs", tags=["metrics and logs"])


@router.get("/{job_id}/metrics", response_model=MetricsView, summary="Get the curves of a job")
def get_metrics(
    job_id: PlainText,
    person: SignedIn,
    process: ProcessDep,
    keys: Annotated[
        list[PlainText] | None,
        Query(
            description="Names of metrics, such as `loss,lr`; repeated or separated by "
            "commas. Default: all."
        ),
    ] = None,
    resolution: Annotated[
        int, Query(ge=2, le=100_000, description="Largest number of points per series.")
    ] = 500,
    since_step: Annotated[
        int, Query(ge=-1, le=2**62, description="Only points of later steps.")
    ] = -1,
    rank: Annotated[int | None, Query(ge=0, le=100_000)] = None,
) -> Response:
    """Return the series of a job over all its attempts; a step that was run twice has its last
    value."""
    wanted = [key for item in keys or [] for key in item.split(",") if key]
    with process.read() as session:
        job = find_job(session, job_id, person)
        attempts = session.scalars(
            select(Attempt.id).where(Attempt.job_id == job.id).order_by(Attempt.epoch)
        ).all()
        known = _keys(session, list(attempts))
        found: dict[tuple[str, int], list[Points]] = {}
        for attempt_id in attempts:
            chosen = wanted or None
            for series, points in metric_store.read(
                session, attempt_id, keys=chosen, rank=rank
            ).items():
                found.setdefault(series, []).append(points)
    view = MetricsView(
        job=job.id,
        keys=known,
        series=[
            _series(key, of_rank, Points.joined(parts), resolution, since_step)
            for (key, of_rank), parts in sorted(found.items())
        ],
    )
    return Response(view.model_dump_json(), media_type="application/json")


def _keys(session: Session, attempts: list[str]) -> list[str]:
    query = select(MetricChunk.key).where(MetricChunk.attempt_id.in_(attempts)).distinct()
    return sorted(session.scalars(query))


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
