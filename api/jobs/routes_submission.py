"""POST /v1/jobs: submit a job."""

import re
from typing import Annotated

from anyio import from_thread
from fastapi import APIRouter, Query, Request, Response

from api.jobs.job_answer import answer
from api.jobs.plain_submissions import SentJob, submit
from api.jobs.queueing import plan_new, queue
from api.jobs.schemas import JobView
from api.jobs.spec_body import JOB_BODY, SpecBody
from api.jobs.submission import laid_over, read_spec
from api.web.auth import SignedIn
from api.web.idempotency import KEY, IdempotencyKey, keyed
from api.web.process import Process, ProcessDep
from api.web.short_way import short_way
from api.web.text_types import PlainText
from core.base.strict_text import parse

PATH = "/v1/jobs"


async def _create_plain(request: Request) -> Response | None:
    """Do what `create_job` does for a request with a token and without a query; None for others."""
    if not _is_plain(request):
        return None
    process: Process = request.app.state.process
    view, standing = await submit(process, SentJob(request, await request.body()))
    return answer(view, 201, standing)


router = APIRouter(tags=["jobs"], route_class=short_way(_create_plain))


@router.post(
    PATH, status_code=201, response_model=JobView, openapi_extra=JOB_BODY, summary="Submit a job"
)
def create_job(
    body: SpecBody,
    person: SignedIn,
    process: ProcessDep,
    changes: Annotated[
        PlainText | None,
        Query(
            description="Fields that replace those of the body, as a JSON object; null "
            "removes a field."
        ),
    ] = None,
    key: IdempotencyKey = None,
) -> Response:
    """Queue a training job. The body is a job as JSON or YAML.

    The job is planned first. If it cannot run anywhere it is refused, with every reason.
    """
    text, raw = body
    if changes is not None:
        over = changes.encode()
        text, raw = laid_over(text, parse(over, "application/json").value), raw + over
    spec = read_spec(text)
    standing = process.limits.count_submission(person.id)
    with process.read() as session:
        new = plan_new(session, process, person, spec, keyed(person, key, PATH, raw))
    return answer(from_thread.run(queue, process, new), 201, standing)


def _is_plain(request: Request) -> bool:
    headers = request.headers
    key = headers.get("idempotency-key")
    return (
        "authorization" in headers
        and not request.scope["query_string"]
        and (key is None or re.fullmatch(KEY, key) is not None)
    )
