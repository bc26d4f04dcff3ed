"""Sentences that tell an owner why a job waits: fact, cause with numbers, remedy. Pure.

Times are rounded up, to the minute while they are near: a sentence that changed every second would
be written, sent and read again for nothing.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from core.base.reasons import Code, ReasonCode
from core.base.words import clock, in_words
from core.policy.grid import HOUR
from core.spec.spec import format_duration
from core.states import INFRASTRUCTURE, MAX_INFRASTRUCTURE_FAILURES, LeaseState, NodeState
from scheduler.queue.borrowing import LEAVING_S, Clearing
from scheduler.queue.fitting import Need
from scheduler.queue.placement import (
    AfterLease,
    BackOff,
    Decision,
    DisabledOwner,
    Later,
    NotItsTurn,
    Saving,
    Sooner,
    differ_in_size,
    leases_of,
    share_a_node,
)
from scheduler.queue.timeline import Blocker, PossibleStart
from scheduler.snapshot import NodeSnapshot, Snapshot, WaitingJob
from strategies.plan.words import counted

QUEUED_AGAIN = "Queued again. "
NAMED = 3  # nodes listed by name; of more only the number is given
IN_WORDS = {
    NodeState.PENDING: "has not been approved yet",
    NodeState.DRAINING: "is being drained",
    NodeState.MAINTENANCE: "is in maintenance",
    NodeState.DIRTY: "is not clean",
    NodeState.QUARANTINED: "is quarantined",
    NodeState.RETIRED: "is retired",
}
COARSENESS = ((HOUR, 1), (6 * HOUR, 5), (48 * HOUR, 15))  # wait up to -> rounded to these minutes


class WaitingReason(NamedTuple):
    """Reason for which a job waits, as its owner is told it."""

    code: Code
    message: str
    predicted_start: datetime | None = None


def reason_for(job: WaitingJob, decision: Decision, world: Snapshot, need: Need) -> WaitingReason:
    """Return the reason, with its sentence, for a job that does not start now."""
    match decision:
        case DisabledOwner():
            return WaitingReason(
                ReasonCode.USER_DISABLED,
                "Waits because its owner's account is disabled. An administrator can enable it.",
            )
        case BackOff(until):
            return _postponed(job, until, world.now)
        case Saving(node_id):
            return WaitingReason(
                ReasonCode.SAVING,
                "Waits until its last checkpoint, or its owner's workspace, has been copied from "
                f"{world.nodes[node_id].name} to the store; then it continues from there.",
            )
        case NotItsTurn():
            return _not_its_turn(decision, world.now)
        case AfterLease():
            return _after_lease(job, decision, world)
        case Clearing():
            return _clearing(job, decision, world)
        case Later(slot, room_now_s, sooner, gap_from_min):
            reason = _later(job, slot, room_now_s, world, need)
            more = _soft_fit(gap_from_min) + _advice(sooner, world.now)
            reason = reason._replace(message=reason.message + more)
            if not job.lease_ids:
                return reason
            over = "Its lease" if len(job.lease_ids) == 1 else "One of its leases"
            return reason._replace(message=f"{over} has ended. {reason.message}")
        case _:
            raise AssertionError(f"{decision} starts now")


def rounded_up(moment: datetime, now: datetime) -> datetime:
    """Return `moment` rounded up to a full minute, or to coarser steps if it is further away."""
    wait = moment - now
    minutes = next((step for limit, step in COARSENESS if wait <= limit), 60)
    step = timedelta(minutes=minutes)
    past = timedelta(seconds=moment.timestamp() % step.total_seconds())
    return moment if not past else moment - past + step


def node_names(nodes: Sequence[NodeSnapshot]) -> str:
    """Return `north-01`, `north-01 and north-02`, or `4 nodes from north-01`."""
    if len(nodes) > NAMED:
        return f"{len(nodes)} nodes from {nodes[0].name}"
    *others, last = [node.name for node in nodes]
    return f"{', '.join(others)} and {last}" if others else last


def unavailable(node: NodeSnapshot, now: datetime) -> str:
    """Return the reason why a node gets no work, such as `is being drained (new disk)`."""
    if node.state is not NodeState.READY:
        why = f" ({node.reason.rstrip('.')})" if node.reason else ""
        return f"{IN_WORDS[node.state]}{why}"
    if node.last_seen_at is None:
        return "has never reported"
    if not node.heard:
        return f"has not been heard from since {clock(node.last_seen_at, now)}"
    if node.clean and node.unfit:
        slots = in_words([str(slot) for slot in sorted(node.unfit)])
        gpus = f"GPU {slots} that is" if len(node.unfit) == 1 else f"GPUs {slots} that are"
        return f"has {gpus} not fit for jobs now"
    return "has not passed its clean check yet"


def _postponed(job: WaitingJob, until: datetime, now: datetime) -> WaitingReason:
    code, message, _ = job.told
    start = rounded_up(until, now)
    if code == ReasonCode.BACK_OFF:
        return WaitingReason(ReasonCode.BACK_OFF, message, start)
    again = (
        f"Retries at {until.astimezone(UTC):%H:%M:%S} UTC, after failure {job.failures}; at "
        f"most {MAX_INFRASTRUCTURE_FAILURES} failures are retried."
    )
    # The stored reason is still the cause, unless the owner has moved the job meanwhile.
    cause = f" {message.removeprefix(QUEUED_AGAIN)}" if code in INFRASTRUCTURE else ""
    return WaitingReason(ReasonCode.BACK_OFF, again + cause, start)


def _not_its_turn(decision: NotItsTurn, now: datetime) -> WaitingReason:
    turn, start = decision.turn, decision.predicted_start
    start = rounded_up(start, now) if start else None
    until = f", until {clock(start, now)} at the latest" if start else ""
    return WaitingReason(
        ReasonCode.AGENDA_ORDER,
        f"Waits for its turn in {turn.agenda}, after {in_words(turn.ahead_names)}{until}.",
        start,
    )


def _after_lease(job: WaitingJob, decision: AfterLease, world: Snapshot) -> WaitingReason:
    lease, now = decision.lease, world.now
    node = world.nodes[lease.node_id]
    leases = leases_of(job, world)
    if differ_in_size(leases):
        sizes = [str(each.num_slots or world.nodes[each.node_id].slots) for each in leases]
        return WaitingReason(
            ReasonCode.LEASE_DOES_NOT_FIT,
            f"Its leases have {in_words(sizes)} slots; a job on several nodes needs equally many "
            "slots of each. Clone it with leases of one size, or without leases.",
        )
    if share_a_node(leases):
        names = in_words(sorted({world.nodes[each.node_id].name for each in leases}))
        return WaitingReason(
            ReasonCode.LEASE_DOES_NOT_FIT,
            f"Its {len(leases)} leases are on {names}; a job on several nodes has one part on "
            "each. Clone it with leases on different nodes, or without leases.",
        )
    if lease.state is LeaseState.BOOKED and lease.hold_start > now:
        start = clock(lease.hold_start, now)
        return WaitingReason(
            ReasonCode.LEASE_NOT_BEGUN,
            f"Waits for its lease on {node.name}, which begins at {start}.",
            lease.hold_start,
        )
    if decision.ahead is not None:
        ends = rounded_up(decision.predicted_start, now) if decision.predicted_start else None
        if decision.ahead.guest:
            return WaitingReason(
                ReasonCode.LEASE_LENT,
                f"Starts on {node.name} as soon as the preemptible guest there has saved and "
                "left. The guest was admitted because the lease was not in use.",
                ends,
            )
        until = f", until {clock(ends, now)} at the latest" if ends else ""
        ahead = _called([decision.ahead.job_id], job, world)
        return WaitingReason(
            ReasonCode.LEASE_BUSY, f"Waits for {ahead} in its lease on {node.name}{until}.", ends
        )
    if not node.usable:
        return WaitingReason(
            ReasonCode.LEASE_NODE_UNAVAILABLE,
            f"Waits for {node.name}, the node of its lease: it {unavailable(node, now)}.",
        )
    if lease.state is not LeaseState.BOOKED and world.tidy(lease):
        held = world.slots_of(lease)
        fit = len(held - node.unfit)
        if lease.num_slots is not None and len(held) < job.ranks:
            return WaitingReason(
                ReasonCode.LEASE_DOES_NOT_FIT,
                f"Needs {counted(job.ranks, 'slot')}, but its lease has {len(held)} of "
                f"{node.name}. Clone it with fewer ranks, or without the lease.",
            )
        if lease.num_slots is not None and len(held) < job.slots_needed(node.class_name):
            needed = job.slots_needed(node.class_name)
            return WaitingReason(
                ReasonCode.LEASE_DOES_NOT_FIT,
                f"Needs the memory of {counted(needed, 'slot')}, but its lease has {len(held)} of "
                f"{node.name}. Clone it with a smaller model or batch, or without the lease.",
            )
        if node.unfit and fit < job.ranks:
            return WaitingReason(
                ReasonCode.LEASE_NODE_UNAVAILABLE,
                f"Needs {job.ranks} slots of {node.name}, the node of its lease, but only {fit} "
                f"are fit for jobs: it {unavailable(node, now)}. It starts when they are fit "
                "again; clone it with fewer ranks to start now.",
            )
    if lease.state is LeaseState.BOOKED or not world.tidy(lease):
        return WaitingReason(
            ReasonCode.LEASE_NODE_NOT_CLEAN,
            f"Waits until {node.name}, the node of its lease, is free and clean; that takes "
            "seconds.",
        )
    if node.class_name not in job.classes:
        return WaitingReason(
            ReasonCode.LEASE_DOES_NOT_FIT,
            f"Does not fit on {node.name} ({node.class_name}), the node of its lease. Clone "
            "the job with a smaller model or fewer ranks, or without the lease.",
        )
    if now > lease.usable_end - timedelta(minutes=1):
        return WaitingReason(
            ReasonCode.LEASE_ENDS,
            f"Its lease on {node.name} ends at {clock(lease.usable_end, now)}, too soon to "
            "start in it. It joins the queue then.",
        )
    return WaitingReason(
        ReasonCode.LEASE_BUSY, f"Waits for an earlier job in its lease on {node.name}."
    )


def _clearing(job: WaitingJob, decision: Clearing, world: Snapshot) -> WaitingReason:
    now = world.now
    have = "has" if len(decision.leaving) == 1 else "have"
    leaving = _called(decision.leaving, job, world) if decision.leaving else ""
    left = f"{leaving} {have} saved and left it" if leaving else "it is clean"
    goes_on = (
        " A lease stops it before its wall time is used up; it continues later from its checkpoint."
    )
    goes_on = goes_on if decision.cut_at is not None else ""
    return WaitingReason(
        ReasonCode.SHARE_TAKEN_BACK,
        f"Starts on {node_names(decision.nodes)} as soon as {left}: it is within the share of "
        f"{decision.lab}, which others had borrowed.{goes_on}",
        rounded_up(now + timedelta(seconds=LEAVING_S), now),
    )


def _later(
    job: WaitingJob, slot: PossibleStart | None, room_now_s: float, world: Snapshot, need: Need
) -> WaitingReason:
    if slot is None:
        return _nowhere(job, world, need)
    now = world.now
    start = rounded_up(slot.start, now)
    where = f"Starts at {clock(start, now)} on {node_names(slot.nodes)}"
    blocker = slot.after or Blocker()
    if blocker.cleaning:
        return WaitingReason(
            ReasonCode.NODE_NOT_CLEAN, f"{where}, once its clean check has passed.", start
        )
    if room_now_s >= 60:
        fits = format_duration(int(room_now_s // 60) * 60)
        return WaitingReason(
            ReasonCode.BOOKED_SOON,
            f"{where} at the latest: the nodes that are free now are booked before its "
            f"{format_duration(job.wall_left_s)} would end. With a wall time of {fits} it "
            "could start now.",
            start,
        )
    if blocker.waiting:
        ahead = _called([blocker.job_id or ""], job, world)
        message = f"{where} at the latest, after {ahead}, which is ahead of it in the queue."
        return WaitingReason(ReasonCode.QUEUE, message, start)
    if blocker.job_id is not None:
        ahead = _called([blocker.job_id], job, world)
        message = f"{where} at the latest, when {ahead} has ended; sooner if it ends early."
        return WaitingReason(ReasonCode.NODE_BUSY, message, start)
    if blocker.lease_id is not None:
        needed = format_duration(job.wall_left_s)
        message = (
            f"{where}, when a lease there has ended: no earlier gap is as long as its {needed}."
        )
        return WaitingReason(ReasonCode.NODE_LEASED, message, start)
    return WaitingReason(ReasonCode.NODE_HELD, f"{where}, when the maintenance has ended.", start)


def _called(job_ids: Sequence[str], reader: WaitingJob, world: Snapshot) -> str:
    """Return jobs in words for `reader`'s owner: own ones by name, other people's by number."""
    seen = [world.jobs.get(job_id) for job_id in job_ids]
    own = [one.name for one in seen if one is not None and one.user_id == reader.user_id]
    others = len(seen) - len(own)
    if others:
        own.append("another person's job" if others == 1 else f"{others} other people's jobs")
    return in_words(own)


def _soft_fit(gap_from_min: int | None) -> str:
    """Return the reason why a job that saves checkpoints does not start in front of a lease."""
    if gap_from_min is None:
        return ""
    if not gap_from_min:
        return " No job is started there ahead of a lease that would stop it (soft_fit is off)."
    return (
        " Ahead of a lease that would stop it, it is started there only if the gap is "
        f"{format_duration(gap_from_min * 60)} or more."
    )


def _advice(sooner: Sequence[Sooner], now: datetime) -> str:
    """Return changes with which the job starts earlier: ` Sooner with resources.nodes: 1 (now).`"""
    told = [
        f"{each.change} ({'now' if each.start <= now else clock(rounded_up(each.start, now), now)})"
        for each in sooner
    ]
    return f" Sooner with {'; '.join(told)}." if told else ""


def _nowhere(job: WaitingJob, world: Snapshot, need: Need) -> WaitingReason:
    if not need.readable:
        return WaitingReason(
            ReasonCode.UNREADABLE,
            "Its spec was written by another version of the platform, and this version "
            "cannot read it. Cancel the job and submit it again.",
        )
    here = ", ".join(sorted(world.classes)) or "none"
    if need.node_class is not None and need.node_class not in world.classes:
        return WaitingReason(
            ReasonCode.NO_SUCH_CLASS,
            f"Nodes of class {need.node_class} no longer exist here (classes: {here}). Clone "
            "the job with another class, or ask an administrator to enrol a node of it.",
        )
    if not job.classes:
        return WaitingReason(
            ReasonCode.FITS_NOWHERE,
            f"No node here fits: it needs {need.ranks} ranks of {need.needed_gib:.2f} GiB "
            f"each on {need.device} (classes: {here}). Clone it as a smaller job, or ask for "
            "a larger node.",
        )
    nodes = [
        node
        for node in world.nodes.values()
        if node.class_name in job.classes and node.state is not NodeState.RETIRED
    ]
    told = [f"{node.name} {unavailable(node, world.now)}" for node in nodes[:NAMED]]
    more = f", and {len(nodes) - NAMED} more" if len(nodes) > NAMED else ""
    return WaitingReason(
        ReasonCode.NODES_UNAVAILABLE,
        f"Starts when a node on which it fits is available again: {'; '.join(told)}{more}.",
    )
