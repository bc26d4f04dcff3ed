"""Agendas as they stand, read from the database: their jobs, and other jobs in their leases.

Reads only. The decisions are in `core.agendas.agenda`.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from core.agendas.agenda import AgendaItem, Outlook, outlook, place_of
from core.jobs.jobs_in_order import jobs_in_order
from core.leases import adjacent as touching
from core.policy.grid import usable_end
from core.spec.spec import AnyPlan, stored_plan, stored_spec
from core.states import LIVE_ATTEMPT, TERMINAL_JOB, JobState, LeaseState
from core.tables.agendas import Agenda, AgendaJob
from core.tables.jobs import Attempt, AttemptPart, Job
from core.tables.kinds import LeaseKind
from core.tables.leases import Lease
from core.tables.nodes import NodeClass
from strategies.plan.planner import Plan


@dataclass(frozen=True)
class Hours:
    """The leases that an agenda runs in, one for each node, and their common hours."""

    leases: Sequence[Lease]
    begins: datetime
    usable_end: datetime
    hold_end: datetime
    last: Sequence[Lease]
    """Leases at whose end its jobs are stopped, mostly the same."""


@dataclass(frozen=True)
class AgendaSnapshot:
    """An agenda as it stands now."""

    agenda: Agenda
    hours: Hours
    slots: int
    """Slots of each node."""
    jobs: Sequence[Job]
    outlook: Outlook

    @property
    def is_final(self) -> bool:
        """True if all of its jobs have ended."""
        return all(job.state in TERMINAL_JOB for job in self.jobs)


def read_agendas(
    session: Session, rows: Sequence[tuple[Agenda, Lease, NodeClass]], *, now: datetime
) -> list[AgendaSnapshot]:
    """Return the agendas as they stand now, each with its lease and the class of its node."""
    if not rows:
        return []
    jobs = jobs_in_order(session, AgendaJob.agenda_id, [agenda.id for agenda, _, _ in rows])
    items = _items(session, [job for of in jobs.values() for job in of], now=now)
    return [
        _found(session, agenda, lease, node_class, jobs[agenda.id], items, now=now)
        for agenda, lease, node_class in rows
    ]


def hours_of(session: Session, lease: Lease) -> Hours:
    """Return the hours of a lease with those booked together with it, or with its owner's adjacent
    ones.

    Of several nodes the adjacent ones do not count: a job on several is not handed on.
    """
    leases: Sequence[Lease] = (lease,)
    if lease.together is not None:
        leases = session.scalars(
            select(Lease)
            .where(Lease.together == lease.together, Lease.state != LeaseState.CANCELLED)
            .order_by(Lease.id)
        ).all() or (lease,)
    last = leases if len(leases) > 1 else (touching.held_until(session, lease),)
    return Hours(
        leases=leases,
        begins=max(one.hold_start for one in leases),
        usable_end=min(usable_end(one.hold_end, one.grace_s) for one in last),
        hold_end=max(one.hold_end for one in last),
        last=last,
    )


def read_beside(
    session: Session, hours: Hours, *, apart_from: Sequence[str] = (), now: datetime
) -> list[AgendaItem]:
    """Return jobs of the leases' owner that run in them or wait for them, without `apart_from`.

    Guests are not included: they leave when the owner comes.
    """
    owner = hours.leases[0].user_id
    leases = session.scalars(
        select(Lease.id).where(
            Lease.user_id == owner,
            Lease.node_id.in_([one.node_id for one in hours.leases]),
            Lease.kind == LeaseKind.BOOKED,
            Lease.hold_start >= min(one.hold_start for one in hours.leases),
            Lease.hold_end <= hours.hold_end,
        )
    ).all()
    running = (
        select(Attempt.job_id)
        .join(AttemptPart, AttemptPart.attempt_id == Attempt.id)
        .where(
            Attempt.state.in_(LIVE_ATTEMPT),
            AttemptPart.ended_at.is_(None),
            AttemptPart.lease_id.in_(leases),
        )
    )
    waiting = (Job.state == JobState.QUEUED) & Job.lease_id.is_not(None)
    jobs = [
        job
        for job in session.scalars(
            select(Job)
            .where(
                Job.user_id == owner,
                Job.id.in_(running) | waiting,
                Job.id.not_in(apart_from),
            )
            .order_by(Job.id)
        )
        if job.state is not JobState.QUEUED or set(_named(job)) & set(leases)
    ]
    items = _items(session, jobs, now=now)
    named = [replace(items[job.id], name=f"{job.name} ({job.id})") for job in jobs]
    return _on_nodes(session, jobs, named, hours)


def expected_s(plan: AnyPlan) -> float | None:
    """Return the seconds that a job takes by its plan; None where that is not known."""
    return plan.cost.total_s if isinstance(plan, Plan) and plan.cost is not None else None


def _found(
    session: Session,
    agenda: Agenda,
    lease: Lease,
    node_class: NodeClass,
    jobs: Sequence[Job],
    items: dict[str, AgendaItem],
    *,
    now: datetime,
) -> AgendaSnapshot:
    hours = hours_of(session, lease)
    slots = int(node_class.hardware["slots"])
    own = [job.id for job in jobs]
    waits = any(job.state is JobState.QUEUED for job in jobs)
    return AgendaSnapshot(
        agenda=agenda,
        hours=hours,
        slots=slots,
        jobs=jobs,
        outlook=outlook(
            _on_nodes(session, jobs, [items[job_id] for job_id in own], hours),
            begins=max(hours.begins, agenda.created_at),
            usable_end=hours.usable_end,
            now=now,
            num_nodes=len(hours.leases),
            slots=slots,
            side_by_side=agenda.side_by_side,
            beside=read_beside(session, hours, apart_from=own, now=now) if waits else (),
        ),
    )


def _on_nodes(
    session: Session, jobs: Sequence[Job], items: Sequence[AgendaItem], hours: Hours
) -> list[AgendaItem]:
    """Return `items`, those of `jobs`, with the nodes that they have or wait for."""
    if len(hours.leases) == 1:
        return list(items)
    index = {lease.node_id: k for k, lease in enumerate(hours.leases)}
    node_of = {lease.id: lease.node_id for lease in hours.leases}
    has: dict[str, set[int]] = defaultdict(set)
    for job_id, node_id in session.execute(
        select(Attempt.job_id, AttemptPart.node_id)
        .join(AttemptPart, AttemptPart.attempt_id == Attempt.id)
        .where(
            Attempt.job_id.in_([job.id for job in jobs]),
            Attempt.state.in_(LIVE_ATTEMPT),
            AttemptPart.ended_at.is_(None),
            AttemptPart.node_id.in_(index),
        )
    ):
        has[job_id].add(index[node_id])
    found = []
    for job, item in zip(jobs, items, strict=True):
        nodes = has[job.id] or {index[node_of[one]] for one in _named(job) if one in node_of}
        spec = stored_spec(job.spec)
        wanted = len(nodes) or min(spec.resources.nodes if spec else 1, len(index))
        found.append(replace(item, num_nodes=wanted, nodes=tuple(sorted(nodes)) or None))
    return found


def _named(job: Job) -> tuple[str, ...]:
    """Return the leases that a job waits for. A single one may have been swapped since."""
    spec = stored_spec(job.spec)
    if spec is not None and len(spec.named_leases) > 1:
        return spec.named_leases
    return (job.lease_id,) if job.lease_id else ()


def _items(session: Session, jobs: Sequence[Job], *, now: datetime) -> dict[str, AgendaItem]:
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
) -> AgendaItem:
    plan = stored_plan(job.plan)
    runs_s = (now - running_since).total_seconds() if running_since else 0.0
    return AgendaItem(
        name=job.name,
        slots=plan.ranks_per_node if plan else 1,
        budget_s=job.wall_time_s,
        expected_s=expected_s(plan) if plan else None,
        state=job.state,
        reason_code=job.reason_code,
        started_at=begun_at,
        ended_at=job.finished_at,
        used_s=job.used_s + runs_s,
        progress=job.last_step / job.steps if job.steps else 0.0,
        place=place_of(job.queued_at or job.created_at, job.wall_time_s),
    )
