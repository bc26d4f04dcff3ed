"""Reports that are written by themselves when a job has ended, because its owner asked for one.

Every API process looks for them. The job's row says whether one is due, and is changed in the
transaction that adds the report: a process that dies before its end has written nothing, and of two
that write only one succeeds.
"""

import asyncio
from datetime import datetime, timedelta

import anyio
import structlog
from sqlalchemy import bindparam, or_, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from api.studies.reports import add_report, content_of, report_of
from api.studies.schemas_reports import NewReport
from api.web.bells import Bells
from api.web.identity import Person
from api.web.process import Process
from core.base.clock import utc_now
from core.base.errors import Conflict
from core.jobs.handing_over import has_handed_over
from core.notices.notices import NoticeKind, notify
from core.process import read_only
from core.states import TERMINAL_JOB
from core.tables.files import Report
from core.tables.jobs import Job
from core.tables.kinds import Role
from core.tables.people import User
from core.transitions import note

ACTOR = "api"
EVERY_S = 10.0
BROKEN = (
    "The server failed while it wrote it, and its log says why. Tell whoever runs the server, then "
    "write the report from the job's page."
)
PATIENCE = timedelta(minutes=10)  # for files, curves and logs that a node has not handed over

DUE = (  # built once: every API process sends it every few seconds
    select(Job.id, User)
    .join(User, User.id == Job.user_id)
    .where(
        Job.report_when_ended,
        Job.state.in_(TERMINAL_JOB),
        or_(has_handed_over(), Job.finished_at < bindparam("overdue")),
    )
    .order_by(Job.id)
)

log = structlog.get_logger()


async def keep_reporting(process: Process) -> None:
    """Write the reports that are due, every few seconds, until cancelled."""
    while True:
        try:
            await anyio.to_thread.run_sync(write_due, process, utc_now())
        except (SQLAlchemyError, read_only.ReadOnly) as error:
            log.warning("reports_wait", error=str(error).splitlines()[0])
        await asyncio.sleep(EVERY_S)


def write_due(process: Process, now: datetime) -> int:
    """Write the reports of jobs that have ended; return the number written."""
    with process.read() as session:
        if read_only.state(session, now=now) is not None:
            return 0
        due = _due(session, now)
    return sum(_write(process, job_id, owner, now) for job_id, owner in due)


def _due(session: Session, now: datetime) -> list[tuple[str, Person]]:
    """Return the jobs that have ended and whose report is due, with their owners."""
    rows = session.execute(DUE, {"overdue": now - PATIENCE})
    return [(job_id, _owner(user)) for job_id, user in rows]


def _owner(user: User) -> Person:
    """Return the owner of a job as the one who asks, with no rights over the things of others."""
    return Person(
        id=user.id,
        name=user.name,
        role=Role.USER,
        zone=user.zone,
        token_id="",
        scopes=frozenset(),
    )


def _write(process: Process, job_id: str, owner: Person, now: datetime) -> bool:
    """Write the report of one job, or tell its owner why it is not written; return True if this
    process has written it."""
    try:
        with process.read() as session:
            content = content_of(session, NewReport(jobs=[job_id]), owner, process.url, now)
        report = report_of(content, user_id=owner.id)
        return process.transact(_add, job_id, owner, report, now=now)
    except Conflict as refusal:  # too many reports
        process.transact(_give_up, job_id, str(refusal), now=now)
    except (SQLAlchemyError, read_only.ReadOnly):
        raise
    except Exception:  # given up, or it would hold up the others for ever
        log.exception("report_not_written", job=job_id)
        process.transact(_give_up, job_id, BROKEN, now=now)
    return False


def _add(
    session: Session, bells: Bells, job_id: str, owner: Person, report: Report, *, now: datetime
) -> bool:
    job = _locked(session, job_id)
    if not job.report_when_ended:
        return False  # no longer wanted, or another process was faster
    add_report(session, bells, owner, report=report)
    session.flush()
    job.report_when_ended, job.report_sha256 = False, report.sha256
    message = f"{job.name} has ended, and its report is written."
    _tell(session, bells, job, NoticeKind.REPORT_WRITTEN, report.sha256, message, now)
    return True


def _give_up(session: Session, bells: Bells, job_id: str, why: str, *, now: datetime) -> None:
    job = _locked(session, job_id)
    if job.report_when_ended:
        job.report_when_ended = False
        message = f"{job.name} has ended, but its report is not written. {why}"
        _tell(session, bells, job, NoticeKind.REPORT_REFUSED, job.id, message, now)


def _tell(
    session: Session,
    bells: Bells,
    job: Job,
    kind: NoticeKind,
    subject: str,
    message: str,
    now: datetime,
) -> None:
    """Record what became of the report of a job, and notify the job's owner."""
    note(session, job.id, kind, now=now, message=message, actor=ACTOR)
    facts: dict[str, object] = {"message": message, "job": job.id}
    notify(session, job.user_id, kind, subject, facts, now=now)
    bells.jobs.add(job.id)


def _locked(session: Session, job_id: str) -> Job:
    locked = select(Job).where(Job.id == job_id).with_for_update(key_share=True)
    return session.scalars(locked).one()
