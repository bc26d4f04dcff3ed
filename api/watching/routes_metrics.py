"""/v1/jobs/{id}/metrics: the curves of a job."""

from typing import Annotated

from fastapi import APIRouter, Query, Response

from api.jobs.job_views import find_job
from api.nodes.watched import Watched
from api.watching.curves import metrics_view, stored_series
from api.watching.schemas import MetricsView
from api.web.auth import SignedIn
from api.web.process import ProcessDep
from api.web.text_types import PlainText

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
        known, found = stored_series(session, job, keys=wanted, rank=rank)
    process.service(Watched).note_reading(job.id)
    view = metrics_view(job, known, found, resolution=resolution, since_step=since_step)
    return Response(view.model_dump_json(), media_type="application/json")
