"""Agendas: their rows, submission and cancellation."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import insert, or_, select
from sqlalchemy.orm import Session

from api.agendas.agenda_submission import (
    PlannedItem,
    block_of_lease,
)
from api.agendas.agenda_views import (
    agenda_views,
    agendas_with_context,
    find_agenda,
    find_readable_agenda,
    plan_view,
)
from api.agendas.schemas import AgendaView, NewAgenda
from api.files.storage_use import require_room
from api.jobs.queueing import check_queue, insert_jobs, job_rows
from api.jobs.steering import want
from api.web.bells import Bells
from api.web.idempotency import KeyedRequest
from api.web.identity import Person
from api.web.owners import listed
from api.web.paging import page
from api.web.process import Process
from api.web.schemas import Page
from core.base.clock import utc_now
from core.base.errors import Conflict
from core.base.ids import IdKind, new_id
from core.states import TERMINAL_JOB, WAITING_JOB, Desired
from core.tables.agendas import Agenda, AgendaJob
from core.tables.jobs import Job
from core.tables.kinds import SharedKind
from core.tables.leases import Lease


def submit_agenda(
    session: Session,
    bells: Bells,
    person: Person,
    process: Process,
    lease: str,
    anyway: bool,
    *,
    sent: KeyedRequest,
    agenda: NewAgenda,
    entries: list[PlannedItem],
    now: datetime,
) -> AgendaView:
    """Insert an agenda with its jobs, once for each key. Raises Conflict, TooMany, StorageFull."""
    agenda_id = sent.begin(session)
    if agenda_id is None:
        check_queue(session, person.id, process.settings.max_queued_jobs, adding=len(entries))
        require_room(session, process.settings, person.id)
        block = block_of_lease(session, lease, user_id=person.id, now=now)  # it may have gone
        _require_free(session, block.leases)
        fit = plan_view(agenda, entries, block, now=now)
        if not (fit.fits or anyway):
            raise Conflict(
                f"Nothing was submitted. {fit.summary} With anyway=true it is submitted "
                "all the same, and jobs that do not end in the lease continue in your "
                "next lease or in the queue.",
                code="over_time",
            )
        bells.scheduler = True
        agenda_id = _insert(session, agenda, entries, lease, person, now)
        sent.remember(session, agenda_id)
    return _show(session, agenda_id, person, now)


def list_agendas(
    session: Session,
    person: Person,
    lease: str | None,
    user: str | None,
    *,
    limit: int,
    after: str | None,
) -> Page[AgendaView]:
    """Return a page of agendas, newest first."""
    query = agendas_with_context().where(
        listed(session, SharedKind.AGENDA, Agenda.user_id, Agenda.id, user, person)
    )
    if lease:
        together = select(Lease.together).where(Lease.id == lease).scalar_subquery()
        query = query.where(or_(Lease.id == lease, Lease.together == together))
    rows = page(session, query, Agenda.id, after=after, limit=limit)
    views = agenda_views(session, rows, now=utc_now())
    return Page[AgendaView](data=views, has_more=rows.has_more)


def show_agenda(session: Session, agenda_id: str, person: Person) -> AgendaView:
    """Return an agenda that a person may read. Raises NotFound."""
    row = find_readable_agenda(session, agenda_id, person)
    return agenda_views(session, [row], now=utc_now())[0]


def cancel_agenda(session: Session, bells: Bells, agenda_id: str, person: Person) -> AgendaView:
    """Cancel the waiting jobs of an agenda. Raises NotFound."""
    agenda = find_agenda(session, agenda_id, person)[0]
    waiting = (
        select(Job)
        .join(AgendaJob, AgendaJob.job_id == Job.id)
        .where(AgendaJob.agenda_id == agenda.id, Job.state.in_(WAITING_JOB))
        .order_by(Job.id)
        .with_for_update(key_share=True, of=Job)
    )
    for job in session.scalars(waiting).all():
        if job.state in WAITING_JOB:  # it may have started while its row was waited for
            want(session, bells, job, Desired.CANCEL, person)
    session.flush()
    return _show(session, agenda_id, person, utc_now())


def _require_free(session: Session, leases: Sequence[str]) -> None:
    """Raise Conflict if another agenda of a lease is not over: their times would mix."""
    other = session.execute(
        select(Agenda.id, Agenda.name)
        .join(AgendaJob, AgendaJob.agenda_id == Agenda.id)
        .join(Job, Job.id == AgendaJob.job_id)
        .where(Agenda.lease_id.in_(leases), Job.state.not_in(TERMINAL_JOB))
        .limit(1)
    ).first()
    if other is not None:
        raise Conflict(
            f"The lease already has the agenda {other.name}, which has not ended. Cancel the "
            f"rest of it first: trainyard agenda cancel {other.id}.",
            code="lease_has_agenda",
            param="lease",
        )


def _insert(
    session: Session,
    agenda: NewAgenda,
    entries: list[PlannedItem],
    lease_id: str,
    owner: Person,
    now: datetime,
) -> str:
    row = Agenda(
        id=new_id(IdKind.AGENDA),
        user_id=owner.id,
        name=agenda.name,
        lease_id=lease_id,
        side_by_side=agenda.side_by_side,
        on_failure=agenda.on_failure,
        created_at=now,
    )
    session.add(row)
    session.flush()
    jobs = [
        job_rows(session, entry.planned, entry.chosen, owner=owner, now=now) for entry in entries
    ]
    insert_jobs(session, jobs)
    positions = [
        {"job_id": job.view.id, "agenda_id": row.id, "position": position}
        for position, job in enumerate(jobs)
    ]
    session.execute(insert(AgendaJob), positions)
    return row.id


def _show(session: Session, agenda_id: str, person: Person, now: datetime) -> AgendaView:
    return agenda_views(session, [find_agenda(session, agenda_id, person)], now=now)[0]
