"""Where a waiting job would run, and whether it can start there now. Pure."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from core.policy import walk_in_end
from core.states import LeaseState
from scheduler.snapshot import AttemptSeen, LeaseSeen, Snapshot, Waiting
from scheduler.timeline import Slot, Timeline

LEAST_USE = timedelta(seconds=60)  # less of a lease is not worth the start of a training


@dataclass(frozen=True)
class WalkIn:
    """Start now on a free node, on a walk-in lease that holds it to a full hour."""

    node_id: str
    hold_end: datetime


@dataclass(frozen=True)
class InLease:
    """Start now in the active lease that the job names."""

    lease: LeaseSeen


@dataclass(frozen=True)
class Later:
    """It can start in this slot at the latest; None if on no node that can be used now."""

    slot: Slot | None
    room_now_s: float = 0.0
    """The longest wall time with which it could start at once, in seconds."""


@dataclass(frozen=True)
class AfterLease:
    """It waits for the lease it names, or in it for another job."""

    lease: LeaseSeen
    ahead: AttemptSeen | None
    predicted_start: datetime | None


@dataclass(frozen=True)
class Postponed:
    """It must not start before its back-off is over."""

    until: datetime


@dataclass(frozen=True)
class Saving:
    """Its last attempt's checkpoints are still on their way from this node to the store."""

    node_id: str


@dataclass(frozen=True)
class Disabled:
    """Its owner's account is disabled."""


Decision = WalkIn | InLease | Later | AfterLease | Postponed | Saving | Disabled


def lease_of(job: Waiting, world: Snapshot) -> LeaseSeen | None:
    """The lease the job is to run in; None if it names none, or one that is over."""
    lease = world.leases.get(job.lease_id or "")
    return lease if lease and lease.state in (LeaseState.BOOKED, LeaseState.ACTIVE) else None


def place(
    job: Waiting, world: Snapshot, timeline: Timeline, *, grace_s: int, lease_is_taken: bool
) -> Decision:
    """What becomes of one waiting job now; its slot in the timeline is then taken.

    `lease_is_taken` says that an earlier job of this cycle starts in the same lease.
    """
    if job.owner_disabled:
        return Disabled()
    if job.not_before is not None and job.not_before > world.now:
        return Postponed(job.not_before)  # later ones may pass: it is two minutes at most
    if job.saving_on is not None:
        return Saving(job.saving_on)
    lease = lease_of(job, world)
    if lease is not None:
        return _place_in_lease(job, lease, world, is_taken=lease_is_taken)
    slot = timeline.earliest(job.classes, job.wall_left_s)
    if slot is None:
        return Later(None)
    room_now_s = timeline.room_now(job.classes, world.now)
    timeline.reserve(slot, job.wall_left_s, job_id=job.id)
    if slot.is_free_now:
        return WalkIn(slot.gap.node_id, walk_in_end(world.now, job.wall_left_s, grace_s))
    return Later(slot, room_now_s)


def _place_in_lease(
    job: Waiting, lease: LeaseSeen, world: Snapshot, *, is_taken: bool
) -> InLease | AfterLease:
    if lease.state is LeaseState.BOOKED:
        start = lease.hold_start if lease.hold_start > world.now else None
        return AfterLease(lease, None, start)
    running = world.attempts_on(lease.node_id)
    node = world.nodes[lease.node_id]
    too_late = world.now > lease.usable_end - LEAST_USE
    if running or is_taken:
        ahead = running[0] if running else None
        start = max(ahead.ends_at, world.now) if ahead else None  # its end may be overdue
        return AfterLease(lease, ahead, start if start and start < lease.usable_end else None)
    if too_late or not node.usable or not world.verified_clean(lease):
        return AfterLease(lease, None, None)
    if node.class_name not in job.classes:
        return AfterLease(lease, None, None)
    return InLease(lease)
