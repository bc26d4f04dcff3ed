"""Agendas as the public API shows them: how far they are, and what is late."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Row, Select, func, select
from sqlalchemy.orm import Session

from api.identity import Person
from api.jobs.agenda_schemas import AgendaJobView, AgendaPlanView, AgendaView, NewAgenda
from api.jobs.agenda_submission import Entry, Room, expected_s
from core import touching
from core.agenda import Item, Line, OnFailure, Outlook, outlook, rules, summary
from core.errors import NotFound
from core.policy.grid import usable_end
from core.spec import JobSpec, read_plan
from core.states import LIVE_ATTEMPT, TERMINAL_JOB
from core.tables.agendas import Agenda, AgendaJob
from core.tables.jobs import Attempt, Job
from core.tables.leases import Lease
from core.tables.nodes import Node, NodeClass
from core.tables.people import User

AgendaRow = Row[Agenda, str, Lease, str, NodeClass]


@dataclass(frozen=True)
class Told:
    """What a job's line tells beside the outlook."""

    job: str | None
    reason: str
    step: int
    steps: int


def plan_view(
    agenda: NewAgenda, entries: Sequence[Entry], room: Room, *, now: datetime
) -> AgendaPlanView:
    """Whether planned jobs fit into the room, before they are submitted."""
    told = []
    for entry in entries:
        spec = entry.planned.spec
        steps = spec.training.steps if isinstance(spec, JobSpec) else 0
        told.append(Told(job=None, reason="Planned.", step=0, steps=steps))
    found = outlook(
        [entry.item for entry in entries],
        begins=room.begins,
        usable_end=room.usable_end,
        now=now,
        slots=room.slots,
        side_by_side=agenda.side_by_side,
    )
    fields = _fields(agenda.side_by_side, agenda.on_failure, found, told)
    return AgendaPlanView(
        name=agenda.name,
        lease=room.lease_id,
        node_class=room.node_class,
        slots=room.slots,
        **fields,
    )


def agendas_with_context() -> Select[Agenda, str, Lease, str, NodeClass]:
    """Each agenda with its owner's name, its lease, and that one's node and class."""
    return (
        select(Agenda, User.name, Lease, Node.name, NodeClass)
        .join(User, User.id == Agenda.user_id)
        .join(Lease, Lease.id == Agenda.lease_id)
        .join(Node, Node.id == Lease.node_id)
        .join(NodeClass, NodeClass.name == Node.class_name)
    )


def find_agenda(session: Session, agenda_id: str, person: Person) -> AgendaRow:
    """An agenda that `person` may see. Somebody else's is NotFound, except for staff."""
    row = session.execute(agendas_with_context().where(Agenda.id == agenda_id)).one_or_none()
    if row is None or not (row[0].user_id == person.id or person.is_staff):
        raise NotFound(f"You have no agenda {agenda_id!r}.")
    return row


def agenda_views(session: Session, rows: Sequence[AgendaRow], *, now: datetime) -> list[AgendaView]:
    """Rows of `agendas_with_context` as they stand now."""
    jobs = _jobs_of(session, [row[0].id for row in rows])
    items = _items(session, [job for of in jobs.values() for job in of], now=now)
    return [
        _view(row, touching.held_until(session, row[2]), jobs[row[0].id], items, now=now)
        for row in rows
    ]


def _view(
    row: AgendaRow, last: Lease, jobs: Sequence[Job], items: dict[str, Item], *, now: datetime
) -> AgendaView:
    """`last`: the lease at whose end its jobs are stopped, mostly its own."""
    agenda, owner, lease, node, node_class = row
    slots = int(node_class.hardware["slots"])
    found = outlook(
        [items[job.id] for job in jobs],
        begins=max(lease.hold_start, agenda.created_at),
        usable_end=usable_end(last.hold_end, last.grace_s),
        now=now,
        slots=slots,
        side_by_side=agenda.side_by_side,
    )
    told = [Told(job.id, job.reason, job.last_step, job.steps) for job in jobs]
    return AgendaView(
        id=agenda.id,
        user=owner,
        name=agenda.name,
        lease=lease.id,
        node=node,
        node_class=node_class.name,
        slots=slots,
        is_final=all(job.state in TERMINAL_JOB for job in jobs),
        created_at=agenda.created_at,
        **_fields(agenda.side_by_side, agenda.on_failure, found, told),
    )


def _fields(
    side_by_side: bool, on_failure: OnFailure, found: Outlook, told: Sequence[Told]
) -> dict[str, object]:
    return {
        "side_by_side": side_by_side,
        "on_failure": on_failure,
        "rules": rules(side_by_side=side_by_side, on_failure=on_failure),
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


def _job_view(position: int, line: Line, told: Told) -> AgendaJobView:
    item = line.item
    return AgendaJobView(
        position=position,
        job=told.job,
        name=item.name,
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


def _jobs_of(session: Session, agenda_ids: Iterable[str]) -> dict[str, list[Job]]:
    rows = session.execute(
        select(AgendaJob.agenda_id, Job)
        .join(Job, Job.id == AgendaJob.job_id)
        .where(AgendaJob.agenda_id.in_(agenda_ids))
        .order_by(AgendaJob.agenda_id, AgendaJob.position)
    )
    found: dict[str, list[Job]] = defaultdict(list)
    for agenda_id, job in rows:
        found[agenda_id].append(job)
    return found


def _items(session: Session, jobs: Sequence[Job], *, now: datetime) -> dict[str, Item]:
    ids = [job.id for job in jobs]
    began = func.min(func.coalesce(Attempt.started_at, Attempt.assigned_at))
    first = session.execute(
        select(Attempt.job_id, began).where(Attempt.job_id.in_(ids)).group_by(Attempt.job_id)
    )
    begun_at: dict[str, datetime] = {job_id: at for job_id, at in first}
    live = session.execute(
        select(Attempt.job_id, Attempt.started_at).where(
            Attempt.job_id.in_(ids),
            Attempt.state.in_(LIVE_ATTEMPT),
        )
    )
    running_since = {job_id: at for job_id, at in live if at is not None}
    return {
        job.id: _item(job, begun_at.get(job.id), running_since.get(job.id), now=now) for job in jobs
    }


def _item(
    job: Job, begun_at: datetime | None, running_since: datetime | None, *, now: datetime
) -> Item:
    plan = read_plan(job.plan)
    runs_s = (now - running_since).total_seconds() if running_since else 0.0
    return Item(
        name=job.name,
        slots=plan.ranks_per_node,
        budget_s=job.wall_time_s,
        expected_s=expected_s(plan),
        state=job.state,
        reason_code=job.reason_code,
        started_at=begun_at,
        ended_at=job.finished_at,
        used_s=job.used_s + runs_s,
        progress=job.last_step / job.steps if job.steps else 0.0,
    )
