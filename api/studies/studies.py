"""Studies: their rows, submission and results."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import ColumnElement, Select, insert, literal, select
from sqlalchemy.orm import Session

from api.files.storage_use import require_room
from api.jobs.job_views import UNREAD
from api.jobs.queueing import check_queue, insert_jobs, job_rows
from api.jobs.steering import want
from api.studies.job_curves import curve_of, looks_of, step_times_of
from api.studies.schemas import StudyJobView, StudyReport, StudyView
from api.studies.study_submission import StudySpecs, Variant
from api.web.bells import Bells
from api.web.idempotency import KeyedRequest
from api.web.identity import Person
from api.web.owners import listed, read_by
from api.web.paging import page
from api.web.process import Process
from api.web.schemas import Page
from core.base.errors import NotFound
from core.base.ids import IdKind, new_id
from core.jobs.jobs_in_order import jobs_in_order
from core.spec.spec import JobSpec, stored_plan, stored_spec
from core.states import TERMINAL_JOB, Desired, JobState
from core.tables.jobs import Job, Study, StudyJob
from core.tables.kinds import SharedKind
from core.tables.people import User
from strategies.plan.planner import Plan
from strategies.plan.trust.scaling import StudyRun, label_of, measure, summary


def submit_study(
    session: Session,
    bells: Bells,
    person: Person,
    process: Process,
    *,
    sent: KeyedRequest,
    variants: Sequence[Variant],
    now: datetime,
    name: str,
    asked: StudySpecs,
) -> StudyView:
    """Insert a study with its jobs, once for each key. Raises TooMany, StorageFull."""
    study_id = sent.begin(session)
    if study_id is None:
        check_queue(session, person.id, process.settings.max_queued_jobs, adding=len(variants))
        require_room(session, process.settings, person.id)
        bells.scheduler = True
        study = Study(
            id=new_id(IdKind.STUDY),
            user_id=person.id,
            name=name,
            kind=asked.kind,
            created_at=now,
        )
        session.add(study)
        session.flush()
        _insert_jobs(session, study, variants, person, now)
        study_id = study.id
        sent.remember(session, study_id)
    return _view(session, *_find(session, study_id, person))


def list_studies(
    session: Session, person: Person, user: str | None, *, limit: int, after: str | None
) -> Page[StudyView]:
    """Return a page of studies, newest first."""
    query = _studies().where(
        listed(session, SharedKind.STUDY, Study.user_id, Study.id, user, person)
    )
    rows = page(session, query, Study.id, after=after, limit=limit)
    jobs = jobs_in_order(session, StudyJob.study_id, [study.id for study, _ in rows])
    views = [_study_view(study, owner, jobs[study.id]) for study, owner in rows]
    return Page[StudyView](data=views, has_more=rows.has_more)


def show_report(session: Session, study_id: str, person: Person) -> StudyReport:
    """Return a study that a person may read with its results so far. Raises NotFound."""
    study, owner = _find_readable(session, study_id, person)
    jobs = jobs_in_order(session, StudyJob.study_id, [study.id])[study.id]
    unread = next((job for job in jobs if not (_spec(job) and _plan(job))), None)
    runs = [] if unread else [_run(session, job) for job in jobs]
    view = _study_view(study, owner, jobs)
    if unread:
        return StudyReport(**dict(view), summary=f"{unread.name}: {UNREAD}", points=[])
    points = measure(study.kind, runs)
    return StudyReport(**dict(view), summary=summary(study.kind, points), points=points)


def cancel_study(session: Session, bells: Bells, study_id: str, person: Person) -> StudyView:
    """Cancel every job of a study that has not ended. Raises NotFound."""
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
    jobs = [
        job_rows(session, variant.planned, variant.chosen, owner=owner, now=now)
        for variant in variants
    ]
    insert_jobs(session, jobs)
    rows = [
        {"job_id": job.view.id, "study_id": study.id, "position": position}
        for position, job in enumerate(jobs)
    ]
    session.execute(insert(StudyJob), rows)


def _studies() -> Select[Study, str]:
    return select(Study, User.name).join(User, User.id == Study.user_id)


def _find(session: Session, study_id: str, person: Person) -> tuple[Study, str]:
    """Return a study and its owner's name. Somebody else's study is NotFound, except for staff."""
    return _required(session, study_id, (Study.user_id == person.id) | literal(person.is_staff))


def _find_readable(session: Session, study_id: str, person: Person) -> tuple[Study, str]:
    """Return the same for a person who only reads: the study may be shared with them."""
    allowed = read_by(session, SharedKind.STUDY, Study.user_id, Study.id, person)
    return _required(session, study_id, allowed)


def _required(session: Session, study_id: str, allowed: ColumnElement[bool]) -> tuple[Study, str]:
    row = session.execute(_studies().where(Study.id == study_id, allowed)).one_or_none()
    if row is None:
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


def _run(session: Session, job: Job) -> StudyRun:
    failed = job.state in (JobState.FAILED, JobState.CANCELLED)
    return StudyRun(
        spec=JobSpec.model_validate(job.spec),
        plan=Plan.model_validate(job.plan),
        step_times_s=step_times_of(session, job),
        looks=looks_of(session, job),
        curve=curve_of(session, job),
        failure=f"{job.state.capitalize()}: {job.reason}" if failed else None,
    )
