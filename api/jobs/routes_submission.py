"""POST /v1/jobs: submit a job."""

import re
from collections.abc import Callable, Coroutine
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.routing import APIRoute

from api.jobs.job_answer import answer
from api.jobs.queueing import plan_new, queue
from api.jobs.schemas import JobView
from api.jobs.spec_body import JOB_BODY, SpecBody
from api.jobs.submission import laid_over, read_spec
from api.web.auth import SignedIn, enter_by_token
from api.web.idempotency import KEY, IdempotencyKey, keyed
from api.web.process import Process, ProcessDep
from api.web.text_types import PlainText
from core.base.strict_text import parse

PATH = "/v1/jobs"
Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class OneThreadRoute(APIRoute):
    """Route of which a plain request, with a token and without a query, is answered in one thread
    and one session.

    FastAPI solves one dependency after the other, each in a thread of its own: for the busiest
    write of all that costs more than what is written. Whatever is not plain goes that way, and
    the signature of the handler says what both accept.
    """

    def get_route_handler(self) -> Handler:
        """Return the handler of this route."""
        thorough = super().get_route_handler()

        async def handle(request: Request) -> Response:
            if not _is_plain(request):
                return await thorough(request)
            return await run_in_threadpool(_create, request, await request.body())

        return handle


router = APIRouter(tags=["jobs"], route_class=OneThreadRoute)


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
    return answer(queue(process, new), 201, standing)


def _is_plain(request: Request) -> bool:
    headers = request.headers
    key = headers.get("idempotency-key")
    return (
        "authorization" in headers
        and not request.scope["query_string"]
        and (key is None or re.fullmatch(KEY, key) is not None)
    )


def _create(request: Request, raw: bytes) -> Response:
    """Do what `create_job` does for a plain request."""
    process: Process = request.app.state.process
    with process.read() as session:
        person = enter_by_token(session, request, process)
        spec = read_spec(parse(raw, request.headers.get("content-type", "")))
        standing = process.limits.count_submission(person.id)
        sent = keyed(person, request.headers.get("idempotency-key"), PATH, raw)
        new = plan_new(session, process, person, spec, sent)
    return answer(queue(process, new), 201, standing)
