"""Succession: the guest in a lease that is taken back goes on, in a walk-in lease of its own.

The guest's jobs are not stopped if they could walk in there: nobody on the waitlist wants the
hours, and the policy allows it. The walk-in ends no later than the lease would have ended, so no
promised start moves. From then on it is a walk-in like any other.
"""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.base.errors import HourTaken
from core.base.words import clock
from core.leases import adjacent as touching
from core.leases import leases, node_slots
from core.policy.grid import walk_in_end
from core.states import LIVE_ATTEMPT, AttemptState, NodeState
from core.tables.jobs import Attempt, AttemptPart, Job
from core.tables.kinds import LeaseKind
from core.tables.leases import Lease
from core.tables.nodes import Node
from core.transitions import note
from scheduler.leases import walk_ins


def lock(session: Session, lease: Lease) -> None:
    """Lock the possible successors in a lease and its node; lock the lease itself afterwards."""
    for user_id in sorted({job.user_id for job, _ in _live(session, lease)}):
        walk_ins.lock_owner(session, user_id)
    leases.lock_nodes(session, [lease.node_id])


def go_on(
    session: Session,
    lease: Lease,
    *,
    until: datetime,
    wanted_from: datetime | None,
    now: datetime,
    actor: str,
) -> list[str]:
    """Give the hours of a lease that has just been released to its guest.

    `until` is the former end of the lease; `wanted_from` is the start of the first block of its
    hours that the waitlist could offer. Call it with the locks of `lock` and the lease's own lock
    held. Returns the ids of the jobs that go on; empty if they have to stop.
    """
    live = _live(session, lease)
    node = session.get_one(Node, lease.node_id)
    owners = {job.user_id for job, _ in live}
    left_s = [
        job.wall_time_s - job.used_s - int((now - (one.started_at or now)).total_seconds())
        for job, one in live
        if one.state is not AttemptState.STOPPING
    ]
    if not left_s or len(owners) > 1 or lease.user_id in owners:
        return []
    if node.state is not NodeState.READY or not node_slots.is_clean(session, lease):
        return []
    end = min(walk_in_end(now, max(0, *left_s), lease.grace_s), until)
    if wanted_from is not None and wanted_from < end:
        return []
    try:
        _succeed(session, lease, node, owners.pop(), end=end, now=now, actor=actor)
    except (walk_ins.WalkInRefused, HourTaken):
        return []
    message = (
        f"Continues on {node.name} in a walk-in of its own, until {clock(end, now)} at the "
        "latest: the owner of the lease in which it was a guest has not come, and nobody is "
        "waiting for these hours."
    )
    job_ids = [job.id for job, _ in live]
    for job_id in job_ids:
        note(session, job_id, "stayed", now=now, message=message, actor=actor)
    return job_ids


def _succeed(
    session: Session,
    lease: Lease,
    node: Node,
    user_id: str,
    *,
    end: datetime,
    now: datetime,
    actor: str,
) -> Lease:
    """End the lease and pass its live attempts on to a new walk-in, in one savepoint.

    Raises walk_ins.Refused, with nothing changed, if the policy does not allow the walk-in.
    """
    with session.begin_nested():
        slots = node_slots.lease_slots(session, lease)
        message = f"Ended at {clock(now, now)}; the guest job in it continues."
        leases.end(session, lease, at=now, now=now, message=message, actor=actor)
        (terms,) = walk_ins.granted(
            session, user_id, [node], sizes=[lease.num_slots], end=end, now=now
        )
        walk_in = leases.take(
            session,
            user_id=user_id,
            node=node,
            kind=LeaseKind.WALK_IN,
            start=now,
            end=end,
            grace_s=lease.grace_s,
            now=now,
            actor=actor,
            message=f"Walk-in for the job that ran there as a guest, until {clock(end, now)} "
            "at the latest.",
            terms=terms,
            num_slots=lease.num_slots,
            prefer_slots=slots,
        )
        touching.pass_attempts_on(session, lease, walk_in)
    return walk_in


def _live(session: Session, lease: Lease) -> Sequence[tuple[Job, Attempt]]:
    """Return the jobs that run in a lease on its node, with their attempts, as they are now."""
    rows = session.execute(
        select(Job, Attempt)
        .join(Attempt, Attempt.job_id == Job.id)
        .join(AttemptPart, AttemptPart.attempt_id == Attempt.id)
        .where(
            AttemptPart.lease_id == lease.id,
            AttemptPart.node_id == lease.node_id,
            AttemptPart.ended_at.is_(None),
            Attempt.state.in_(LIVE_ATTEMPT),
        )
        .order_by(Job.id)
        .execution_options(populate_existing=True)  # what was read before the locks is old
    )
    return [(job, attempt) for job, attempt in rows]
