"""Notices to the owners of agendas: each finding of `core.agendas.news` is sent once."""

from datetime import datetime, timedelta

import structlog
from sqlalchemy import bindparam, or_, select
from sqlalchemy.orm import Session

from core.agendas.news import AgendaNews, news
from core.agendas.reading import AgendaSnapshot, read_agendas
from core.database.database import Database
from core.notices.notices import NoticeKind, notify
from core.states import LIVE_JOB, WAITING_JOB, JobState, LeaseState, Outcome
from core.tables.agendas import Agenda, AgendaJob
from core.tables.jobs import Job
from core.tables.leases import Lease
from core.tables.nodes import Node, NodeClass
from core.tables.notices import Notice
from scheduler.leases.offers import Leader

KINDS = (NoticeKind.AGENDA_LATE, NoticeKind.AGENDA_CUT)
LOOKED_BACK = timedelta(days=1)  # to find jobs that were cut while no scheduler ran

LEFT = Job.state.in_((*WAITING_JOB, *LIVE_JOB))
CUT = (Job.state == JobState.FAILED) & (Job.reason_code == Outcome.TIME_LIMIT)
AGENDAS_OF = select(AgendaJob.agenda_id).join(Job, Job.id == AgendaJob.job_id)
UNDER_WAY = (  # built once: the scheduler asks it every few seconds
    select(Agenda, Lease, NodeClass)
    .join(Lease, Lease.id == Agenda.lease_id)
    .join(Node, Node.id == Lease.node_id)
    .join(NodeClass, NodeClass.name == Node.class_name)
    .where(
        Lease.state != LeaseState.CANCELLED,
        Lease.hold_start <= bindparam("now"),
        or_(
            Agenda.id.in_(AGENDAS_OF.where(LEFT)),
            (Lease.hold_end > bindparam("since")) & Agenda.id.in_(AGENDAS_OF.where(CUT)),
        ),
    )
    .order_by(Agenda.id)
)

log = structlog.get_logger()


def serve(database: Database, leader: Leader, now: datetime) -> int:
    """Send the notices about agendas that have not been sent yet; return their number.

    The stored notices are the record of the findings that have been sent.
    """
    with database.read() as session:
        due = [found for found in _under_way(session, now) if _untold(session, found)]
    told = 0
    for found in due:
        with leader.write() as session:
            for one in _untold(session, found):  # another scheduler may have sent it meanwhile
                _tell(session, found, one, now)
                log.info("agenda_told", agenda=found.agenda.id, kind=one.kind, about=one.about)
                told += 1
    return told


def _under_way(session: Session, now: datetime) -> list[AgendaSnapshot]:
    """Return the agendas whose lease has begun and that have unfinished jobs, or a job that failed
    at its time limit and a lease that did not end more than LOOKED_BACK ago."""
    rows = session.execute(UNDER_WAY, {"now": now, "since": now - LOOKED_BACK})
    return read_agendas(session, [(agenda, lease, of) for agenda, lease, of in rows], now=now)


def _untold(session: Session, found: AgendaSnapshot) -> list[AgendaNews]:
    agenda = found.agenda
    notices = session.execute(
        select(Notice.kind, Notice.facts).where(
            Notice.user_id == agenda.user_id, Notice.subject == agenda.id, Notice.kind.in_(KINDS)
        )
    )
    return news(
        found.outlook,
        called=f"{agenda.name} ({agenda.id})",
        last_leases=[lease.id for lease in found.hours.last],
        job_ids=[job.id for job in found.jobs],
        told={(kind, str(facts["about"])) for kind, facts in notices},
    )


def _tell(session: Session, found: AgendaSnapshot, one: AgendaNews, now: datetime) -> None:
    facts: dict[str, object] = {
        "message": one.message,
        "about": one.about,
        "lease": found.agenda.lease_id,
        "usable_end": found.outlook.usable_end.isoformat(),
    }
    notify(session, found.agenda.user_id, one.kind, found.agenda.id, facts, now=now)
