"""/v1/studies: one training as several jobs, and their joint result."""

from functools import partial
from typing import Annotated, Literal

import anyio
from fastapi import APIRouter, Query, Response
from fastapi.responses import StreamingResponse
from starlette.requests import Request

from api.jobs.plan_cache import PlanCache
from api.jobs.spec_body import JOB_BODY, SpecBody
from api.jobs.submission import read_spec
from api.studies import studies
from api.studies.schemas import StudyReport, StudyView
from api.studies.study_submission import asked_for, plan_study
from api.watching.hub import Hub
from api.watching.routes_stream import STREAM, event_stream
from api.web.auth import SignedIn
from api.web.idempotency import IdempotencyKey, keyed
from api.web.owners import Whose
from api.web.process import ProcessDep
from api.web.schemas import Page
from api.web.text_types import After, Limit, PlainText
from core.base.clock import utc_now

router = APIRouter(prefix="/v1/studies", tags=["jobs"])

Texts = list[PlainText] | None


@router.post("", status_code=201, openapi_extra=JOB_BODY, summary="Submit a study")
def create_study(
    body: SpecBody,
    request: Request,
    response: Response,
    person: SignedIn,
    process: ProcessDep,
    ranks: Annotated[
        Texts,
        Query(description="Numbers of ranks, such as `1,2,4`; repeated or separated by commas."),
    ] = None,
    scaling: Annotated[
        Literal["strong", "weak"] | None,
        Query(
            description="strong (default): the batch size stays. weak: it grows with the "
            "number of ranks."
        ),
    ] = None,
    schedules: Annotated[
        Texts, Query(description="Instead of ranks: pipeline schedules, such as `naive,1F1B`.")
    ] = None,
    key: IdempotencyKey = None,
) -> StudyView:
    """Queue one job for each size, or for each pipeline schedule. The body is a job as JSON or
    YAML; the ranks go to its strategy's own axis. All jobs are planned first, on one node class: if
    one of them cannot run, none is submitted."""
    text, raw = body
    spec = read_spec(text)
    asked = asked_for(spec, ranks=ranks, scaling=scaling, schedules=schedules)
    standing = process.limits.count_submission(person.id, jobs=len(asked.specs))
    response.headers.update(standing.headers)
    with process.read() as session:
        variants = plan_study(session, process.service(PlanCache), asked, user_id=person.id)
    now = utc_now()
    sent = keyed(person, key, f"/v1/studies?{request.url.query}", raw)
    return process.transact(
        studies.submit_study,
        person,
        process,
        sent=sent,
        variants=variants,
        now=now,
        name=spec.name,
        asked=asked,
    )


@router.get("", summary="List studies")
def list_studies(
    person: SignedIn,
    process: ProcessDep,
    user: Whose = None,
    limit: Limit = 50,
    after: After = None,
) -> Page[StudyView]:
    """List your studies, newest first."""
    with process.read() as session:
        return studies.list_studies(session, person, user, limit=limit, after=after)


@router.get("/{study_id}", summary="Get a study")
def get_study(study_id: PlainText, person: SignedIn, process: ProcessDep) -> StudyReport:
    """Return the jobs of a study and their results so far: step times, speed-up, efficiency, the
    limiting factor, and whether the loss curve stayed the same. Numbers that are not known are
    null; `missing` says why."""
    with process.read() as session:
        return studies.show_report(session, study_id, person)


@router.get(
    "/{study_id}/stream",
    summary="Watch a study",
    response_class=StreamingResponse,
    responses=STREAM,
)
async def stream_study(
    study_id: PlainText, person: SignedIn, process: ProcessDep
) -> StreamingResponse:
    """Stream server-sent events: `study` (`StudyReport`) at the start and after every new finding,
    `end` with the same data once all jobs of the study have ended."""
    read = partial(get_study, study_id, person, process)
    study = await anyio.to_thread.run_sync(read)
    job_ids = [one.job for one in study.jobs]
    pieces = process.service(Hub).stream_document("study", study.id, job_ids, read)
    return event_stream(pieces, person, process)


@router.post("/{study_id}/cancel", summary="Cancel a study's jobs")
def cancel_study(study_id: PlainText, person: SignedIn, process: ProcessDep) -> StudyView:
    """Cancel every job of the study that has not ended."""
    return process.transact(studies.cancel_study, study_id, person)
