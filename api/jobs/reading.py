"""Audit of reading: staff, and readers of a shared job, may read files and logs of other people's
jobs, which the audit log records."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import bindparam, select
from sqlalchemy.orm import load_only

from api.jobs.job_views import find_job
from api.web import audit
from api.web.audit import Act
from api.web.groups import Groups, attempt
from api.web.identity import Person
from api.web.process import Process
from core.base.clock import utc_now
from core.base.errors import ServiceError
from core.tables.jobs import Job

OWNERS = (
    select(Job)
    .where(Job.id.in_(bindparam("job_ids", expanding=True)))
    .options(load_only(Job.id, Job.user_id))
)
ONCE_IN = timedelta(hours=1)  # a page that is open asks every few seconds


@dataclass(frozen=True)
class Reading:
    """A job whose logs a person wants to read."""

    person: Person
    job_id: str


class Readings(Groups[Reading, Job | ServiceError]):
    """Readings of this process that wait to be allowed."""


async def require_readable(process: Process, person: Person, job_id: str) -> None:
    """Record that a person reads the logs of a job, together with what others read at this moment.

    A class opens its streams at once, each of another job, and each was a write. Raises NotFound if
    there is no job that the person may read.
    """

    def allow(readings: Sequence[Reading]) -> Sequence[Job | ServiceError]:
        return allow_together(process, readings)

    answer = await process.service(Readings).write(Reading(person, job_id), allow)
    if isinstance(answer, ServiceError):
        raise answer


def allow_together(process: Process, readings: Sequence[Reading]) -> Sequence[Job | ServiceError]:
    """Return each job, or the refusal; what is read of other people's jobs is recorded."""
    with process.read() as session:
        rows = session.scalars(OWNERS, {"job_ids": sorted({one.job_id for one in readings})})
        known = {job.id: job for job in rows}  # `find_job` finds them in the session
        jobs = [attempt(find_job, session, one.job_id, one.person) for one in readings]
    acts = [
        _act(one.person, known[one.job_id], "logs", one.job_id)
        for one, job in zip(readings, jobs, strict=True)
        if isinstance(job, Job) and job.user_id != one.person.id
    ]
    _record(process, acts)
    return jobs


def record_reading(process: Process, person: Person, job: Job, what: str, subject: str) -> None:
    """Record that `person` reads `what` of somebody else's job: one row an hour for each subject.

    While the platform is read-only, reading is allowed all the same, without a row.
    """
    if person.id != job.user_id:
        _record(process, [_act(person, job, what, subject)])


def _act(person: Person, job: Job, what: str, subject: str) -> Act:
    return Act(person.id, f"job.read_{what}", subject, {"owner": job.user_id})


def _record(process: Process, acts: Sequence[Act]) -> None:
    since = utc_now() - ONCE_IN
    with process.read() as session:
        new = audit.not_recorded(session, acts, since=since)
    if new:
        process.record(audit.record_once, new, since=since, now=utc_now())
