"""Queueing of planned jobs: the rows that a submission leaves, written in one short transaction.

Submissions that arrive together are written together (`api.web.groups`): their users are locked,
their keys looked up and their open jobs counted by one statement each, and one commit serves all.
One that is refused, such as for a full queue, is refused alone.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import bindparam, func, select
from sqlalchemy.orm import Session

from api.files.storage_use import require_room
from api.jobs.forks import find_fork, insert_fork
from api.jobs.inputs import (
    ResolvedInput,
    find_mixture,
    input_view,
    insert_inputs,
    resolve_inputs,
)
from api.jobs.job_views import show_job
from api.jobs.plan_cache import Offers, PlanCache, PlanOnClass
from api.jobs.schemas import JobView
from api.jobs.submission import PlannedSpec, plan_job, require_code, require_runnable
from api.web.bells import Bells
from api.web.groups import Groups
from api.web.idempotency import KeyedRequest, MadeBefore
from api.web.identity import Person
from api.web.process import Process
from core.base import tracing
from core.base.clock import utc_now
from core.base.errors import ServiceError, TooMany
from core.base.ids import IdKind, new_id
from core.base.reasons import ReasonCode
from core.leases.situation import lock_users
from core.spec.spec import AnyJobSpec, JobSpec, ProgramJobSpec, ScriptJobSpec
from core.states import LIVE_JOB, WAITING_JOB, Desired, JobState
from core.tables.files import Checkpoint
from core.tables.jobs import Job
from core.transitions import enter_jobs

OPEN_JOBS = (  # built once, as each submission asks it
    select(Job.user_id, func.count())
    .where(
        Job.user_id.in_(bindparam("user_ids", expanding=True)),
        Job.state.in_(LIVE_JOB + WAITING_JOB),
    )
    .group_by(Job.user_id)
)


@dataclass(frozen=True)
class NewJob:
    """A planned job that is to be queued, once for each key."""

    owner: Person
    planned: PlannedSpec
    chosen: PlanOnClass
    sent: KeyedRequest
    now: datetime
    cloned_from: str | None = None
    traceparent: str | None = field(default_factory=tracing.here)


@dataclass(frozen=True)
class JobRows:
    """Rows of a job, and its view."""

    values: Mapping[str, Any]
    view: JobView
    inputs: Sequence[ResolvedInput]
    fork: Checkpoint | None


Answer = JobView | ServiceError


class Submissions(Groups[NewJob, Answer]):
    """Submissions of this process that wait to be written."""


def plan_new(
    session: Session,
    process: Process,
    person: Person,
    spec: AnyJobSpec,
    sent: KeyedRequest,
    *,
    cloned_from: str | None = None,
    offers: Offers | None = None,
) -> NewJob:
    """Plan a job that a person submits. Reads only; raises BadRequest if it fits nowhere."""
    cache = process.service(PlanCache)
    planned = plan_job(session, cache, spec, user_id=person.id, offers=offers)
    chosen = require_runnable(planned)
    return NewJob(person, planned, chosen, sent, utc_now(), cloned_from)


async def queue(process: Process, job: NewJob) -> JobView:
    """Queue a job, together with those that others submit at this moment.

    Raises TooMany, StorageFull, and BadRequest if the key was used for another request.
    """

    def write(jobs: Sequence[NewJob]) -> Sequence[Answer]:
        return process.transact(queue_together, process, jobs)

    answer = await process.service(Submissions).write(job, write)
    if isinstance(answer, ServiceError):
        raise answer
    tracing.note(job=answer.id)
    return answer


def queue_one(session: Session, bells: Bells, process: Process, job: NewJob) -> JobView:
    """Queue a job within a transaction that writes more. Raises what `queue` raises."""
    [answer] = queue_together(session, bells, process, [job])
    if isinstance(answer, ServiceError):
        raise answer
    return answer


def queue_together(
    session: Session, bells: Bells, process: Process, jobs: Sequence[NewJob]
) -> Sequence[Answer]:
    """Queue jobs of any owners, in their order; return the view or the refusal of each."""
    settings = process.settings
    owners = {job.owner.id for job in jobs}
    lock_users(session, owners)
    made = MadeBefore(session, [job.sent for job in jobs])
    open_jobs = count_open(session, owners) if settings.max_queued_jobs else {}
    views: dict[str, JobView] = {}  # of this group's jobs, by id
    rows, answers = [], list[Answer]()
    for job in jobs:
        try:
            before = made.by(job.sent)
            if before is not None:
                answers.append(views.get(before) or show_job(session, before, job.owner))
                continue
            waiting = open_jobs.get(job.owner.id, 0)
            require_place(waiting, settings.max_queued_jobs)
            require_room(session, settings, job.owner.id)
            row = job_rows(
                session,
                job.planned,
                job.chosen,
                owner=job.owner,
                cloned_from=job.cloned_from,
                traceparent=job.traceparent,
                now=job.now,
            )
        except ServiceError as refusal:
            answers.append(refusal)
            continue
        rows.append(row)
        open_jobs[job.owner.id] = waiting + 1
        views[row.view.id] = row.view
        made.note(job.sent, row.view.id)
        answers.append(row.view)
    if rows:
        bells.scheduler = True
        insert_jobs(session, rows)
        made.remember()
    return answers


def insert_jobs(session: Session, jobs: Sequence[JobRows]) -> None:
    """Insert jobs with their first events, inputs and forks. The caller writes the rows of a study
    or an agenda."""
    enter_jobs(
        session,
        [job.values for job in jobs],
        reason_code=ReasonCode.SUBMITTED,
        message="Submitted.",
    )
    for job in jobs:
        insert_inputs(session, job.view.id, job.inputs)
        if job.fork is not None:
            insert_fork(session, job.view.id, job.fork)


def job_rows(
    session: Session,
    planned: PlannedSpec,
    chosen: PlanOnClass,
    *,
    owner: Person,
    cloned_from: str | None = None,
    traceparent: str | None = None,
    now: datetime,
) -> JobRows:
    """Return the rows of a new job. Raises BadRequest if what it names has been deleted since it
    was planned."""
    spec = planned.spec
    inputs: Sequence[ResolvedInput] = ()
    fork = None
    if isinstance(spec, ScriptJobSpec):
        require_code(session, spec, user_id=owner.id)
    if isinstance(spec, ProgramJobSpec):
        inputs = resolve_inputs(session, spec, user_id=owner.id)
    if isinstance(spec, JobSpec):
        inputs = find_mixture(session, spec, user_id=owner.id)
        fork = find_fork(session, spec, user_id=owner.id)
    steps = spec.training.steps if isinstance(spec, JobSpec) else 0
    values: dict[str, Any] = {
        "id": new_id(IdKind.JOB),
        "user_id": owner.id,
        "name": spec.name,
        "spec": spec.model_dump(mode="json"),
        "plan": chosen.document,
        "dataset_id": planned.dataset_id,
        "model_id": planned.model_id,
        "tokenizer_id": planned.tokenizer_id,
        "code_sha256": spec.script.code if isinstance(spec, ScriptJobSpec) else None,
        "lease_id": next(iter(spec.named_leases), None),
        "cloned_from": cloned_from,
        "tags": list(spec.tags),
        "report_when_ended": spec.report_when_ended,
        "traceparent": traceparent or tracing.here(),
        "state": JobState.QUEUED,
        "desired": Desired.RUN,
        "epoch": 0,
        "reason_code": ReasonCode.SUBMITTED,
        "reason": "Submitted; waiting for the scheduler's next cycle.",
        "wall_time_s": spec.resources.wall_time,
        "used_s": 0,
        "infrastructure_failures": 0,
        "interruptions": 0,
        "steps": steps,
        "last_step": 0,
        "created_at": now,
    }
    view = JobView(
        id=values["id"],
        name=spec.name,
        user=owner.name,
        state=JobState.QUEUED,
        desired=Desired.RUN,
        reason_code=ReasonCode.SUBMITTED,
        reason=values["reason"],
        predicted_start=None,
        spec=spec,
        plan=chosen.plan,
        lease=next(iter(spec.named_leases), None),
        cloned_from=cloned_from,
        tags=list(spec.tags),
        report_when_ended=spec.report_when_ended,
        study=None,
        agenda=None,
        epoch=0,
        node=None,
        nodes=[],
        steps=steps,
        step=0,
        loss=None,
        tokens_per_s=None,
        stops_at=None,
        wall_time_s=spec.resources.wall_time,
        used_s=0,
        certificate=None,
        result=None,
        inputs=[input_view(one) for one in inputs] if isinstance(spec, ProgramJobSpec) else [],
        created_at=now,
        started_at=None,
        finished_at=None,
    )
    return JobRows(values, view, inputs, fork)


def count_open(session: Session, user_ids: Collection[str]) -> dict[str, int]:
    """Return the number of waiting and running jobs by user; those without are left out. Call it
    under `lock_users`."""
    found = session.execute(OPEN_JOBS, {"user_ids": sorted(user_ids)})
    return {user_id: number for user_id, number in found}


def check_queue(session: Session, user_id: str, max_jobs: int, *, adding: int) -> None:
    """Raise TooMany if a user may not have `adding` more jobs. Call it under `lock_user`."""
    if max_jobs:
        require_place(count_open(session, [user_id]).get(user_id, 0), max_jobs, adding=adding)


def require_place(open_jobs: int, max_jobs: int, *, adding: int = 1) -> None:
    """Raise TooMany if `adding` more jobs exceed `max_jobs` waiting and running ones (0: no
    limit)."""
    if max_jobs and open_jobs + adding > max_jobs:
        more = "" if adding == 1 else f", so {adding} more would be too many"
        raise TooMany(
            f"You have {open_jobs} jobs waiting or running and the limit is {max_jobs}{more}. "
            "Cancel some, or wait until some have ended.",
            code="queue_full",
        )
