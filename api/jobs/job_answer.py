"""Answer of a route that returns a job."""

from fastapi import Response

from api.jobs.schemas import JobView
from api.web.rate_limits import LimitState


def answer(view: JobView, status: int, standing: LimitState | None = None) -> Response:
    """Return the view unchanged; to validate it a second time would cost as much as the
    database."""
    return Response(
        view.model_dump_json(),
        status_code=status,
        media_type="application/json",
        headers=standing.headers if standing else None,
    )
