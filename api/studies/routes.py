"""/v1/studies: one training as several jobs, and their joint result."""

from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import Annotated, Literal

import anyio
from fastapi import APIRouter, Query, Response
from fastapi.responses import StreamingResponse
from sqlalchemy import Select, insert, select
from sqlalchemy.orm import Session
from starlette.requests import Request

from api.files.storage_use import require_room
from api.jobs.job_views import UNREAD
from api.jobs.plan_cache import PlanCache
from api.jobs.spec_body import JOB_BODY, SpecBody
from api.jobs.steering import want
from api.jobs.submission import check_queue, insert_job, read_spec
from api.studies.job_curves import curve_of, looks_of, step_times_of
from api.studies.schemas import StudyJobView, StudyReport, StudyView
from api.studies.study_submission import Variant, asked_for, plan_study
from api.watching.hub import Hub
from api.watching.routes_stream import STREAM, event_stream
from api.web.auth import SignedIn
from api.web.idempotency import IdempotencyKey, fingerprint, once
from api.web.identity import Person
from api.web.owners import Whose, of_whom
from api.web.paging import page
from api.web.process import ProcessDep
from api.web.schemas import Page
from api.web.text_types import After, Limit, PlainText
from core.base.clock import utc_now
from core.base.errors import NotFound
from core.base.ids import Kind, new_id
from core.jobs.jobs_in_order import jobs_in_order
from core.spec.spec import JobSpec, stored_plan, stored_spec
from core.states import TERMINAL_JOB, Desired, JobState
from core.tables.jobs import Job, Study, StudyJob
from core.tables.people import User
from strategies.plan.planner import Plan
from strategies.plan.trust.scaling import Run, label_of, measure, summary

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
    with process.write() as (session, bells):

        def make() -> str:
            check_queue(session, person.id, process.settings.max_queued_jobs, adding=len(variants))
            require_room(session, process.settings, person.id)
            bells.scheduler = True
            study = Study(
                id=new_id(Kind.STUDY),
                user_id=person.id,
                name=spec.name,
                kind=asked.kind,
                created_at=now,
            )
            session.add(study)
            session.flush()
            _insert_jobs(session, study, variants, person, now)
            return study.id

        study_id = once(
            session,
            user_id=person.id,
            key=key,
            body_sha256=fingerprint("POST", f"/v1/studies?{request.url.query}", raw),
            now=now,
            make=make,
        )
        return _view(session, *_find(session, study_id, person))


@router.get("", summary="List studies")
def list_studies(
    person: SignedIn,
    process: ProcessDep,
    user: Whose = None,
    limit: Limit = 50,
    after: After = None,
) -> Page[StudyView]:
    """List your studies, newest first."""
    query = _studies().where(of_whom(Study.user_id, user, person))
    with process.read() as session:
        rows = page(session, query, Study.id, after=after, limit=limit)
        jobs = jobs_in_order(session, StudyJob.study_id, [study.id for study, _ in rows])
    views = [_study_view(study, owner, jobs[study.id]) for study, owner in rows]
    return Page[StudyView](data=views, has_more=rows.has_more)


@router.get("/{study_id}", summary="Get a study")
def get_study(study_id: PlainText, person: SignedIn, process: ProcessDep) -> StudyReport:
    """Return the jobs of a study and their results so far: step times, speed-up, efficiency, the
    limiting factor, and whether the loss curve stayed the same. Numbers that are not known are
    null; `missing` says why."""
    with process.read() as session:
        study, owner = _find(session, study_id, person)
        jobs = jobs_in_order(session, StudyJob.study_id, [study.id])[study.id]
        unread = next((job for job in jobs if not (_spec(job) and _plan(job))), None)
        runs = [] if unread else [_run(session, job) for job in jobs]
    view = _study_view(study, owner, jobs)
    if unread:
        return StudyReport(**dict(view), summary=f"{unread.name}: {UNREAD}", points=[])
    points = measure(study.kind, runs)
    return StudyReport(**dict(view), summary=summary(study.kind, points), points=points)


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
    with process.write() as (session, bells):
        study, owner = _find(session, study_id, person)
        locked = (
            select(Job)
            .join(StudyJob, StudyJob.job_id == Job.id)
            .where(StudyJob.study_id == study.id)
            .order_by(Job.id)
            .with_for_update(key_share=True, of=Job)
        )
        for job in session.scalars(locked).all():
            if job.state not in TERMINAL_JOB and job.desired is not Desired.CANCEL:
                want(session, bells, job, Desired.CANCEL, person)
        session.flush()
        return _view(session, study, owner)


def _insert_jobs(
    session: Session, study: Study, variants: Sequence[Variant], owner: Person, now: datetime
) -> None:
    for position, variant in enumerate(variants):
        job = insert_job(session, variant.planned, variant.chosen, owner=owner, now=now)
        row = {"job_id": job.id, "study_id": study.id, "position": position}
        session.execute(insert(StudyJob).values(**row))


def _studies() -> Select[Study, str]:
    return select(Study, User.name).join(User, User.id == Study.user_id)


def _find(session: Session, study_id: str, person: Person) -> tuple[Study, str]:
    """Return a study and its owner's name. Somebody else's study is NotFound, except for staff."""
    row = session.execute(_studies().where(Study.id == study_id)).one_or_none()
    if row is None or not (row[0].user_id == person.id or person.is_staff):
        raise NotFound(f"You have no study {study_id!r}.")
    return row[0], row[1]


def _view(session: Session, study: Study, owner: str) -> StudyView:
    return _study_view(
        study, owner, jobs_in_order(session, StudyJob.study_id, [study.id])[study.id]
    )


def _study_view(study: Study, owner: str, jobs: Sequence[Job]) -> StudyView:
    return StudyView(
        id=study.id,
        name=study.name,
        user=owner,
        kind=study.kind,
        jobs=[_job_view(study, job) for job in jobs],
        is_final=all(job.state in TERMINAL_JOB for job in jobs),
        created_at=study.created_at,
    )


def _job_view(study: Study, job: Job) -> StudyJobView:
    spec, plan = _spec(job), _plan(job)
    return StudyJobView(
        job=job.id,
        label=label_of(study.kind, spec, plan) if spec and plan else "unknown",
        ranks=plan.world_size if plan else 0,
        state=job.state,
        reason=job.reason,
        step=job.last_step,
        steps=job.steps,
    )


def _spec(job: Job) -> JobSpec | None:
    spec = stored_spec(job.spec)
    return spec if isinstance(spec, JobSpec) else None


def _plan(job: Job) -> Plan | None:
    plan = stored_plan(job.plan)
    return plan if isinstance(plan, Plan) else None


def _run(session: Session, job: Job) -> Run:
    failed = job.state in (JobState.FAILED, JobState.CANCELLED)
    return Run(
        spec=JobSpec.model_validate(job.spec),
        plan=Plan.model_validate(job.plan),
        step_times_s=step_times_of(session, job),
        looks=looks_of(session, job),
        curve=curve_of(session, job),
        failure=f"{job.state.capitalize()}: {job.reason}" if failed else None,
    )
