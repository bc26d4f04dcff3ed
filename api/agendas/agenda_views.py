"""Views of agendas for the public API, with their progress and delays."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ColumnElement, Row, Select, literal, select
from sqlalchemy.orm import Session

from api.agendas.agenda_submission import AgendaBlock, PlannedItem
from api.agendas.schemas import AgendaJobView, AgendaPlanView, AgendaView, NewAgenda
from api.web.identity import Person
from api.web.owners import read_by
from core.agendas.agenda import (
    Outlook,
    OutlookLine,
    outlook,
)
from core.agendas.reading import AgendaSnapshot, read_agendas
from core.agendas.words import rules, summary
from core.base.errors import NotFound
from core.spec.spec import JobSpec
from core.tables.agendas import Agenda
from core.tables.kinds import OnFailure, SharedKind
from core.tables.leases import Lease
from core.tables.nodes import Node, NodeClass
from core.tables.people import User

AgendaRow = Row[Agenda, str, Lease, str, NodeClass]


@dataclass(frozen=True)
class ItemProgress:
    """Fields of a job's line beside those of the outlook."""

    job: str | None
    reason: str
    step: int
    steps: int


def plan_view(
    agenda: NewAgenda, entries: Sequence[PlannedItem], block: AgendaBlock, *, now: datetime
) -> AgendaPlanView:
    """Return the timetable of planned jobs in the block, before they are submitted."""
    told = []
    for entry in entries:
        spec = entry.planned.spec
        steps = spec.training.steps if isinstance(spec, JobSpec) else 0
        told.append(ItemProgress(job=None, reason="Planned.", step=0, steps=steps))
    found = outlook(
        [entry.item for entry in entries],
        begins=block.begins,
        usable_end=block.usable_end,
        now=now,
        num_nodes=block.capacity.num_nodes,
        slots=block.capacity.slots,
        side_by_side=agenda.side_by_side,
        beside=block.beside,
    )
    fields = _fields(agenda.side_by_side, agenda.on_failure, found, told)
    return AgendaPlanView(
        name=agenda.name,
        lease=next(iter(block.leases), None),
        leases=block.leases,
        node_class=block.node_class,
        slots=block.capacity.slots,
        **fields,
    )


def agendas_with_context() -> Select[Agenda, str, Lease, str, NodeClass]:
    """Select each agenda with its owner's name, its lease, and the lease's node and node class."""
    return (
        select(Agenda, User.name, Lease, Node.name, NodeClass)
        .join(User, User.id == Agenda.user_id)
        .join(Lease, Lease.id == Agenda.lease_id)
        .join(Node, Node.id == Lease.node_id)
        .join(NodeClass, NodeClass.name == Node.class_name)
    )


def find_agenda(session: Session, agenda_id: str, person: Person) -> AgendaRow:
    """Return an agenda that `person` may change. Somebody else's agenda is NotFound, except for
    staff."""
    return _required(session, agenda_id, (Agenda.user_id == person.id) | literal(person.is_staff))


def find_readable_agenda(session: Session, agenda_id: str, person: Person) -> AgendaRow:
    """Return an agenda that `person` may read. Raises NotFound."""
    allowed = read_by(session, SharedKind.AGENDA, Agenda.user_id, Agenda.id, person)
    return _required(session, agenda_id, allowed)


def _required(session: Session, agenda_id: str, allowed: ColumnElement[bool]) -> AgendaRow:
    query = agendas_with_context().where(Agenda.id == agenda_id, allowed)
    row = session.execute(query).one_or_none()
    if row is None:
        raise NotFound(f"You have no agenda {agenda_id!r}.")
    return row


def agenda_views(session: Session, rows: Sequence[AgendaRow], *, now: datetime) -> list[AgendaView]:
    """Return the views of rows of `agendas_with_context` in their present state."""
    found = read_agendas(session, [(row[0], row[2], row[4]) for row in rows], now=now)
    return [_view(one, row) for one, row in zip(found, rows, strict=True)]


def _view(found: AgendaSnapshot, row: AgendaRow) -> AgendaView:
    agenda, owner, lease, node, node_class = row
    told = [ItemProgress(job.id, job.reason, job.last_step, job.steps) for job in found.jobs]
    return AgendaView(
        id=agenda.id,
        user=owner,
        name=agenda.name,
        lease=lease.id,
        leases=[one.id for one in found.hours.leases],
        node=node,
        node_class=node_class.name,
        slots=found.slots,
        is_final=found.is_final,
        created_at=agenda.created_at,
        **_fields(agenda.side_by_side, agenda.on_failure, found.outlook, told),
    )


def _fields(
    side_by_side: bool, on_failure: OnFailure, found: Outlook, told: Sequence[ItemProgress]
) -> dict[str, object]:
    return {
        "side_by_side": side_by_side,
        "on_failure": on_failure,
        "rules": rules(side_by_side=side_by_side, on_failure=on_failure),
        "nodes": found.num_nodes,
        "begins": found.begins,
        "usable_end": found.usable_end,
        "fits": found.fits,
        "spare_s": found.spare_s,
        "likely_spare_s": found.likely_spare_s,
        "first_cut": None if found.first_cut is None else found.first_cut + 1,
        "summary": summary(found),
        "jobs": [
            _job_view(position, line, one)
            for position, (line, one) in enumerate(zip(found.lines, told, strict=True), start=1)
        ],
    }


def _job_view(position: int, line: OutlookLine, told: ItemProgress) -> AgendaJobView:
    item = line.item
    return AgendaJobView(
        position=position,
        job=told.job,
        name=item.name,
        nodes=item.num_nodes,
        slots=item.slots,
        wall_time_s=int(item.budget_s),
        expected_s=item.expected_s,
        standing=item.standing,
        reason=told.reason,
        step=told.step,
        steps=told.steps,
        planned_start=line.planned.start,
        planned_end=line.planned.end,
        start=line.latest.start if line.latest else None,
        end=line.latest.end if line.latest else None,
        likely_end=line.likely.end if line.likely else None,
        late_s=line.late_s,
        fits=line.fits,
    )
