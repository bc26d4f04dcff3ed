"""How agendas stand, read from the database: their jobs, and what else has slots of their leases.

Reads only. What is decided from it is in `core.agenda`.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from core import touching
from core.agenda import Item, Outlook, outlook, place_of
from core.policy.grid import usable_end
from core.spec import AnyPlan, read_plan
from core.states import LIVE_ATTEMPT, TERMINAL_JOB, JobState
from core.tables.agendas import Agenda, AgendaJob
from core.tables.jobs import Attempt, Job, Part
from core.tables.kinds import LeaseKind
from core.tables.leases import Lease
from core.tables.nodes import NodeClass
from strategies.planning.planner import Plan


@dataclass(frozen=True)
class Found:
    """An agenda as it stands now."""

    agenda: Agenda
    last_lease: str
    """Id of the lease at whose end its jobs are stopped, mostly its own."""
    slots: int
    jobs: Sequence[Job]
    outlook: Outlook

    @property
    def is_final(self) -> bool:
        """Whether all of its jobs have ended."""
        return all(job.state in TERMINAL_JOB for job in self.jobs)


def read_agendas(
    session: Session, rows: Sequence[tuple[Agenda, Lease, NodeClass]], *, now: datetime
) -> list[Found]:
    """Agendas, each with its lease and the class of that one's node, as they stand now."""
    jobs = _jobs_of(session, [agenda.id for agenda, _, _ in rows])
    items = _items(session, [job for of in jobs.values() for job in of], now=now)
    return [
        _found(session, agenda, lease, node_class, jobs[agenda.id], items, now=now)
        for agenda, lease, node_class in rows
    ]


def read_beside(
    session: Session, lease: Lease, last: Lease, *, apart_from: Sequence[str] = (), now: datetime
) -> list[Item]:
    """Jobs of a lease's owner that run in it or wait for it, up to `last`, which ends the stretch;
    without those of the ids in `apart_from`. Guests are not told: they leave when the owner comes.
    """
    leases = select(Lease.id).where(
        Lease.user_id == lease.user_id,
        Lease.node_id == lease.node_id,
        Lease.kind == LeaseKind.BOOKED,
        Lease.hold_start >= lease.hold_start,
        Lease.hold_end <= last.hold_end,
    )
    running = (
        select(Attempt.job_id)
        .join(Part, Part.attempt_id == Attempt.id)
        .where(Attempt.state.in_(LIVE_ATTEMPT), Part.ended_at.is_(None), Part.lease_id.in_(leases))
    )
    waiting = (Job.state == JobState.QUEUED) & Job.lease_id.in_(leases)
    jobs = session.scalars(
        select(Job)
        .where(
            Job.user_id == lease.user_id,
            Job.id.in_(running) | waiting,
            Job.id.not_in(apart_from),
        )
        .order_by(Job.id)
    ).all()
    items = _items(session, jobs, now=now)
    return [replace(items[job.id], name=f"{job.name} ({job.id})") for job in jobs]


def expected_s(plan: AnyPlan) -> float | None:
    """How long a job takes by its plan, in seconds."""
    return plan.cost.total_s if isinstance(plan, Plan) and plan.cost is not None else None


def _found(
    session: Session,
    agenda: Agenda,
    lease: Lease,
    node_class: NodeClass,
    jobs: Sequence[Job],
    items: dict[str, Item],
    *,
    now: datetime,
) -> Found:
    last = touching.held_until(session, lease)
    slots = int(node_class.hardware["slots"])
    own = [job.id for job in jobs]
    waits = any(job.state is JobState.QUEUED for job in jobs)
    return Found(
        agenda=agenda,
        last_lease=last.id,
        slots=slots,
        jobs=jobs,
        outlook=outlook(
            [items[job_id] for job_id in own],
            begins=max(lease.hold_start, agenda.created_at),
            usable_end=usable_end(last.hold_end, last.grace_s),
            now=now,
            slots=slots,
            side_by_side=agenda.side_by_side,
            beside=read_beside(session, lease, last, apart_from=own, now=now) if waits else (),
        ),
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
        place=place_of(job.queued_at or job.created_at, job.wall_time_s),
    )
