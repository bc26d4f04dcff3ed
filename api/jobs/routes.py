"""/v1/jobs: submit, look at and steer jobs."""

import json
from typing import Annotated, Any, Literal

from anyio import from_thread
from fastapi import APIRouter, Body, Query, Response
from sqlalchemy import ColumnElement, Text, cast, false, or_, select

from api.jobs import job_events, steering
from api.jobs.inputs import fetch_seconds, recipe_bytes
from api.jobs.job_answer import answer
from api.jobs.job_order import JobOrder, in_order
from api.jobs.job_views import (
    JOBS_WITH_CONTEXT,
    attempt_views,
    find_job,
    job_views,
    show_job,
    spec_document,
)
from api.jobs.plan_cache import PlanCache
from api.jobs.plan_views import plan_view
from api.jobs.queueing import plan_new, queue
from api.jobs.schemas import AttemptView, JobReport, JobTags, JobView, PlanView
from api.jobs.spec_body import PLAN_BODY, SpecBody
from api.jobs.submission import (
    overridden,
    plan_job,
    read_spec,
)
from api.nodes.watched import Watched
from api.web.auth import SignedIn
from api.web.idempotency import IdempotencyKey, keyed
from api.web.identity import Person
from api.web.owners import Whose, listed, of_whom
from api.web.paging import cut
from api.web.process import Process, ProcessDep
from api.web.schemas import AskedMoment, EventView, Page
from api.web.text_types import After, Limit, PlainText
from core.base.clock import utc_now
from core.base.ids import IdKind
from core.base.strict_text import Json, SpecText
from core.leases.adjacent import stopped_with
from core.spec.spec import ProgramJobSpec
from core.states import JobState
from core.tables.jobs import Attempt, AttemptPart, Job
from core.tables.kinds import SharedKind
from core.tables.leases import Lease
from core.tables.people import User
from core.workspaces import writers

LEAST_OF_ID = 4  # characters, so that a search for a word finds no ids by chance

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])


@router.post("/plan", response_model=PlanView, openapi_extra=PLAN_BODY, summary="Plan a job")
def plan(body: SpecBody, person: SignedIn, process: ProcessDep) -> PlanView:
    """Plan a job on every node class without submitting it.

    The body is `{"spec": {...}}`, or the job itself, as JSON or YAML.
    """
    text = _unwrapped(body[0])
    process.limits.count_plan(person.id)
    spec = read_spec(text)
    with process.read() as session:
        planned = plan_job(session, process.service(PlanCache), spec, user_id=person.id)
        lease = session.get(Lease, spec.lease) if spec.lease else None
        last = stopped_with(session, lease) if lease else None
        size = sum(one.size for one in planned.inputs) + recipe_bytes(
            session,
            dataset_id=planned.dataset_id,
            model_id=planned.model_id,
            tokenizer_id=planned.tokenizer_id,
        )
        fetch_s = None
        if size and planned.chosen is not None:
            fetch_s = fetch_seconds(session, size, planned.chosen.offer.name)
        workspace = ""
        if isinstance(spec, ProgramJobSpec) and spec.workspace:
            workspace = writers.expectation(session, person.id, now=utc_now())
    return plan_view(
        planned, lease, last, size=size, fetch_s=fetch_s, workspace=workspace, now=utc_now()
    )


@router.get("", summary="List jobs")
def list_jobs(
    person: SignedIn,
    process: ProcessDep,
    state: Annotated[
        list[JobState] | None, Query(description="Only those in these states.")
    ] = None,
    name: Annotated[
        PlainText | None, Query(description="Only jobs whose name contains this text.")
    ] = None,
    search: Annotated[
        PlainText | None,
        Query(
            description="Only jobs with this text in their name or at the beginning or end of "
            "their id, or with this tag, or of this owner."
        ),
    ] = None,
    lease: Annotated[
        PlainText | None, Query(description="Only jobs that name this lease or have run in it.")
    ] = None,
    tag: Annotated[PlainText | None, Query(description="Only jobs with this tag.")] = None,
    since: Annotated[
        AskedMoment | None, Query(description="Only jobs submitted at this moment or later.")
    ] = None,
    until: Annotated[
        AskedMoment | None, Query(description="Only jobs submitted before this moment.")
    ] = None,
    user: Whose = None,
    shared: Annotated[
        bool, Query(description="Only jobs of others that they share with you.")
    ] = False,
    order: JobOrder = JobOrder.NEWEST,
    limit: Limit = 50,
    after: After = None,
) -> Page[JobView]:
    """List your jobs, newest first or in another order."""
    query = in_order(JOBS_WITH_CONTEXT, order, after=after)
    if state:
        query = query.where(Job.state.in_(state))
    if name:
        query = query.where(Job.name.icontains(name, autoescape=True))
    if search:
        part = Job.name.icontains(search, autoescape=True)
        query = query.where(or_(part, _has_in_id(search), _has_tag(search), User.name == search))
    if tag:
        query = query.where(_has_tag(tag))
    if since:
        query = query.where(Job.created_at >= since)
    if until:
        query = query.where(Job.created_at < until)
    if lease:
        has_run_in = select(Attempt.job_id).join(AttemptPart, AttemptPart.attempt_id == Attempt.id)
        has_run_in = has_run_in.where(AttemptPart.lease_id == lease)
        query = query.where(or_(Job.lease_id == lease, Job.id.in_(has_run_in)))
    with process.read() as session:
        if shared:
            readable = listed(session, SharedKind.JOB, Job.user_id, Job.id, None, person)
            query = query.where(readable, Job.user_id != person.id)
        else:
            query = query.where(of_whom(Job.user_id, user, person))
        rows = cut(session, query, limit=limit)
        data = job_views(session, rows)
    return Page[JobView](data=data, has_more=rows.has_more)


def _has_tag(tag: str) -> ColumnElement[bool]:
    """Return the condition that a job has a tag. Tags hold no quotes, so that one in quotes is
    found in the list's JSON nowhere else."""
    return cast(Job.tags, Text).contains(f'"{tag.lower()}"', autoescape=True)


def _has_in_id(text: str) -> ColumnElement[bool]:
    """Return the condition that a job's id begins or ends with a text of some length."""
    own = text.removeprefix(f"{IdKind.JOB}_")
    if len(own) < LEAST_OF_ID:
        return false()
    begins = Job.id.startswith(f"{IdKind.JOB}_{own}", autoescape=True)
    return or_(begins, Job.id.endswith(own, autoescape=True))


@router.get("/{job_id}", response_model=JobView, summary="One job")
def get_job(job_id: PlainText, person: SignedIn, process: ProcessDep) -> Response:
    """Return a job: its state with the reason, plan, progress and result."""
    with process.read() as session:
        job = show_job(session, job_id, person)
    if not job.is_final:
        process.service(Watched).note_reading(job.id)
    return answer(job, 200)


@router.put("/{job_id}/tags", summary="Tag a job")
def tag_job(job_id: PlainText, body: JobTags, person: SignedIn, process: ProcessDep) -> JobView:
    """Set the tags of a job, in place of those that it has. Its spec stays as it is."""
    return process.transact(steering.put_tags, job_id, person, body.tags)


@router.put("/{job_id}/report", summary="Have a report written when a job has ended")
def report_job(
    job_id: PlainText, body: JobReport, person: SignedIn, process: ProcessDep
) -> JobView:
    """Choose whether a report is written by itself when the job has ended, with all that it leaves
    behind. Of a job that has ended it is written at once.

    It belongs to the job's owner, who gets a notice. `report` is its hash.
    """
    return process.transact(steering.put_report, job_id, person, when_ended=body.when_ended)


@router.post("/{job_id}/cancel", summary="Cancel a job")
def cancel_job(job_id: PlainText, person: SignedIn, process: ProcessDep) -> JobView:
    """End a job for good. A running job stops within seconds; what it has saved is kept."""
    return process.transact(steering.cancel, job_id, person)


@router.post("/{job_id}/pause", summary="Pause a job")
def pause_job(job_id: PlainText, person: SignedIn, process: ProcessDep) -> JobView:
    """Stop a job with a checkpoint and keep it until it is resumed."""
    return process.transact(steering.pause, job_id, person)


@router.post("/{job_id}/resume", summary="Resume a paused job")
def resume_job(job_id: PlainText, person: SignedIn, process: ProcessDep) -> JobView:
    """Queue a paused job again. It continues from its newest checkpoint."""
    now = utc_now()
    return process.transact(steering.resume, job_id, person, now=now)


@router.post("/{job_id}/requeue", summary="Make a job give up its node")
def requeue_job(job_id: PlainText, person: SignedIn, process: ProcessDep) -> JobView:
    """Stop a starting or running job with a checkpoint and put it back into the queue."""
    return process.transact(steering.requeue, job_id, person)


@router.post("/{job_id}/profile", summary="Profile a job")
def profile_job(job_id: PlainText, person: SignedIn, process: ProcessDep) -> JobView:
    """Record the next three steps of every rank of a running job. Once the attempt has ended, a
    Chrome trace is among the job's artifacts."""
    return _request(process, job_id, person, "profile")


@router.post("/{job_id}/snapshot", summary="Take a memory snapshot of a job")
def snapshot_job(job_id: PlainText, person: SignedIn, process: ProcessDep) -> JobView:
    """Record the contents of every rank's memory in the next step of a running job. Once the
    attempt has ended, a table is among the job's artifacts."""
    return _request(process, job_id, person, "snapshot")


@router.post("/{job_id}/release", summary="Release the sandbox of a failed job")
def release_job(job_id: PlainText, person: SignedIn, process: ProcessDep) -> JobView:
    """End the hold of a sandbox (`hold_on_failure`) before its time. The job fails then, as it
    would have without the hold."""
    return process.transact(steering.release, job_id, person)


@router.post("/{job_id}/clone", status_code=201, response_model=JobView, summary="Clone a job")
def clone_job(
    job_id: PlainText,
    person: SignedIn,
    process: ProcessDep,
    overrides: Annotated[
        dict[str, Any] | None,
        Body(description="Fields that replace those of the job's spec; null removes a field."),
    ] = None,
    key: IdempotencyKey = None,
) -> Response:
    """Submit a new job with the spec of this one, unchanged or with some fields changed. Leases
    that this job names are not taken over; name one to use one."""
    with process.read() as session:
        original = find_job(session, job_id, person)
    changes: dict[str, Json] = overrides or {}
    old = dict(spec_document(original))
    for field in ("lease", "leases"):
        old.pop(field, None)  # its hours are the old job's; name one to use one
    merged = overridden(old, changes)
    sent = keyed(
        person, key, f"/v1/jobs/{job_id}/clone", json.dumps(changes, sort_keys=True).encode()
    )
    spec = read_spec(SpecText(value=merged, lines={}))
    standing = process.limits.count_submission(person.id)
    with process.read() as session:
        new = plan_new(session, process, person, spec, sent, cloned_from=original.id)
    job = from_thread.run(queue, process, new)
    return answer(job, 201, standing)


@router.get("/{job_id}/events", summary="List a job's events")
def list_events(
    job_id: PlainText,
    person: SignedIn,
    process: ProcessDep,
    limit: Limit = 100,
    after: Annotated[int, Query(ge=0, le=2**63 - 1, description="Id of the last event seen.")] = 0,
) -> Page[EventView]:
    """List every change of state and every other event of a job, oldest first."""
    with process.read() as session:
        return job_events.events_of(session, job_id, person, limit=limit, after=after)


@router.get("/{job_id}/attempts", summary="List a job's attempts")
def list_attempts(job_id: PlainText, person: SignedIn, process: ProcessDep) -> Page[AttemptView]:
    """List all attempts of a job, first one first, each with the reason of its end."""
    with process.read() as session:
        job = find_job(session, job_id, person)
        return Page[AttemptView](data=list(attempt_views(session, job)))


def _request(
    process: Process, job_id: str, person: Person, action: Literal["profile", "snapshot"]
) -> JobView:
    return process.transact(steering.ask, job_id, person, action)


def _unwrapped(text: SpecText) -> SpecText:
    inner = text.value.get("spec")
    if len(text.value) == 1 and isinstance(inner, dict):
        lines = {path[1:]: line for path, line in text.lines.items() if len(path) > 1}
        return SpecText(value=inner, lines=lines)
    return text
