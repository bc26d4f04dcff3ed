"""Audit of reading: staff, and readers of a shared job, may read files and logs of other people's
jobs, which the audit log records."""

from datetime import timedelta

from api.web import audit
from api.web.identity import Person
from api.web.process import Process
from core.base.clock import utc_now
from core.tables.jobs import Job

ONCE_IN = timedelta(hours=1)  # a page that is open asks every few seconds


def record_reading(process: Process, person: Person, job: Job, what: str, subject: str) -> None:
    """Record that `person` reads `what` of somebody else's job: one row an hour for each subject.

    While the platform is read-only, reading is allowed all the same, without a row.
    """
    if person.id == job.user_id:
        return
    now, action = utc_now(), f"job.read_{what}"
    with process.read() as session:
        if audit.is_recorded(session, person.id, action, subject, since=now - ONCE_IN):
            return
    process.record(
        audit.record_once,
        person.id,
        action,
        subject,
        within=ONCE_IN,
        now=now,
        owner=job.user_id,
    )
