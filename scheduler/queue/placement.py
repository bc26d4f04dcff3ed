"""Decision for every waiting job: the nodes it starts on now, or its forecast start. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from core.agendas.agenda import HANDOVER
from core.agendas.turns import Turn
from core.policy.grid import walk_in_end
from core.spec.spec import format_duration
from core.states import LeaseState
from scheduler.queue.backfill import (
    Backfill,
    BackfillStart,
    QueueRules,
    Reservation,
    StartForecast,
    Want,
    earliest,
)
from scheduler.queue.borrowing import Clearing, Lending
from scheduler.queue.guests import RECALLED_WITHIN, open_to_guests, persons
from scheduler.queue.slots import FreeSlots
from scheduler.queue.timeline import (
    CLEANING_S,
    PossibleStart,
    Timeline,
    build_timeline,
    soft_nodes,
    wall_room_s,
)
from scheduler.snapshot import AttemptSnapshot, LeaseSnapshot, Snapshot, WaitingJob

WORTH_A_CHANGE = timedelta(minutes=10)  # an advice that gains less is not given
PLANNED = 10  # waiting jobs whose start is planned to the second, and who are told what would help
LEAD_IN = timedelta(minutes=5)  # the grace of the block before
LEAST_LEAD_IN = timedelta(seconds=10)  # a start takes some seconds; later it starts with its lease
LEAST_USE = timedelta(seconds=60)  # a lease with less time left is not worth a start


@dataclass(frozen=True)
class WalkIn:
    """Start now on free nodes, each on a walk-in lease that holds it to a full hour."""

    node_ids: tuple[str, ...]
    slots: tuple[tuple[int, ...], ...]
    """Indices of the job's slots, node by node; of a part of a node only their number counts, for
    it gets its slots with its lease."""
    hold_end: datetime
    is_cut: bool = False
    """True if the hold ends before the wall time: the job is saved then and goes on later."""
    is_borrowed: bool = False
    """True if its lab's share has no room for it, so it may have to give the nodes back."""
    num_slots: int | None = None
    """Number of each node's slots that it takes; None: whole nodes."""


@dataclass(frozen=True)
class InLease:
    """Start now in the active leases that the job names, or in walk-ins of its owner."""

    leases: tuple[LeaseSnapshot, ...]
    """One lease for each node, mostly one."""
    slots: tuple[tuple[int, ...], ...]
    """Indices of the free slots that the job gets, lease by lease."""
    is_guest: bool = False
    """True if the leases belong to other people, who have not come: it leaves when they do."""


@dataclass(frozen=True)
class LeadIn:
    """Start a workbench now, minutes before the booked lease that it names, on slots that are free
    and clean; nobody enters it before the lease begins."""

    lease: LeaseSnapshot


@dataclass(frozen=True)
class Sooner:
    """A change of the spec with which the job would start earlier, at `start`."""

    change: str
    start: datetime


@dataclass(frozen=True)
class Later:
    """Latest slot in which a job can start; None if it fits no node that can be used now."""

    slot: PossibleStart | None
    room_now_s: float = 0.0
    """Longest wall time with which it could start at once, in seconds."""
    sooner: tuple[Sooner, ...] = ()
    """Changes with which it would start earlier, for the first jobs in the queue. Without a
    reservation only those with which it would start now: others may pass it later."""
    gap_from_min: int | None = None
    """Shortest gap, in minutes, in which its nodes' policies let a job be cut; 0: none does.

    Given if the job saves checkpoints and there is a gap in front of a lease; else None.
    """


@dataclass(frozen=True)
class AfterLease:
    """Wait for a lease that the job names, or for the job `ahead` in that lease."""

    lease: LeaseSnapshot
    ahead: AttemptSnapshot | None
    predicted_start: datetime | None


@dataclass(frozen=True)
class NotItsTurn:
    """Wait for jobs before it in its agenda to end, or to start if they may run side by side."""

    turn: Turn
    predicted_start: datetime | None


@dataclass(frozen=True)
class BackOff:
    """Wait until the job's back-off is over."""

    until: datetime


@dataclass(frozen=True)
class Saving:
    """Wait until the last attempt's checkpoints have been copied from this node to the store."""

    node_id: str


@dataclass(frozen=True)
class DisabledOwner:
    """Wait because the owner's account is disabled."""


Decision = (
    WalkIn
    | InLease
    | LeadIn
    | Later
    | Clearing
    | AfterLease
    | NotItsTurn
    | BackOff
    | Saving
    | DisabledOwner
)


def decide(
    order: Sequence[WaitingJob], world: Snapshot, *, rules: QueueRules, grace_s: int
) -> list[tuple[WaitingJob, Decision]]:
    """Return each waiting job with its decision, in the order in which they are served."""
    timeline = build_timeline(world, grace_s)
    soft = soft_nodes(world, timeline)
    walk = Backfill(timeline.lanes, rules, soft)
    lending = Lending(world, timeline, soft if rules.soft_fit else None)
    claims = lending.claims([job for job in order if _asks_the_queue(job, world)])
    order = sorted(order, key=lambda job: job.id not in claims)
    wants = {job.id: want_of(job, timeline) for job in order}
    decisions: dict[str, Decision] = {}
    unplanned: dict[str, Later] = {}  # those that wait without a reservation
    free = FreeSlots(world)
    idle = open_to_guests(world) if rules.soft_fit else ()
    guests = persons(world)
    for job in order:
        decision = _outside_the_queue(job, world, free)
        if decision is None:
            decision = _beside_own_jobs(job, world, free, timeline)
        if decision is None:
            decision = _start(job, wants[job.id], walk, timeline, grace_s)
        if decision is None and job.id in claims:
            decision = lending.clear(job, claims[job.id])
        if decision is None:
            decision = _as_guest(job, world, free, idle, guests)
        if decision is None:
            is_near = len(unplanned) < PLANNED
            decision = _later(job, wants[job.id], walk, world, timeline, is_near=is_near)
        if isinstance(decision, WalkIn) and job.id not in claims:
            is_borrowed = lending.lends_to(decision.node_ids)
            decision = replace(decision, is_borrowed=is_borrowed)
        if isinstance(decision, InLease):
            for lease, slots in zip(decision.leases, decision.slots, strict=True):
                free.take(lease.node_id, slots)
                if decision.is_guest:
                    guests[lease.id] = job.user_id
        if isinstance(decision, Later) and decision.slot is None:
            unplanned[job.id] = decision
        decisions[job.id] = decision
    left = [job for job in order if job.id in unplanned]
    for job in left[:PLANNED]:
        planned = walk.plan(wants[job.id])
        decisions[job.id] = _planned(unplanned[job.id], job, planned, timeline)
    forecast = StartForecast(walk.lanes)
    for job in left[PLANNED:]:
        planned = forecast.place(wants[job.id])
        decisions[job.id] = _planned(unplanned[job.id], job, planned, timeline)
    return [(job, decisions[job.id]) for job in order]


def leases_of(job: WaitingJob, world: Snapshot) -> tuple[LeaseSnapshot, ...]:
    """Return the leases that a job has to run in; empty if it names none or one of them is over."""
    found = tuple(world.leases[each] for each in job.lease_ids if each in world.leases)
    still = (LeaseState.BOOKED, LeaseState.ACTIVE)
    if len(found) != len(job.lease_ids) or any(lease.state not in still for lease in found):
        return ()
    return found


def differ_in_size(leases: Sequence[LeaseSnapshot]) -> bool:
    """Return True if leases for one job are not all of whole nodes or of equally many slots."""
    return len({lease.num_slots for lease in leases}) > 1


def share_a_node(leases: Sequence[LeaseSnapshot]) -> bool:
    """Return True if two leases for one job are on one node, where it can have only one part."""
    return len({lease.node_id for lease in leases}) < len(leases)


def _asks_the_queue(job: WaitingJob, world: Snapshot) -> bool:
    """Return True if the job could walk in now: nothing but free nodes is missing."""
    postponed = job.not_before is not None and job.not_before > world.now
    not_yet = job.turn is not None and bool(job.turn.ahead)
    held_up = job.owner_disabled or postponed or job.saving_on is not None or not_yet
    return not held_up and not leases_of(job, world)


def _outside_the_queue(job: WaitingJob, world: Snapshot, free: FreeSlots) -> Decision | None:
    """Return the decision for a job that asks nothing of the queue now; None if it does."""
    if job.owner_disabled:
        return DisabledOwner()
    if job.not_before is not None and job.not_before > world.now:
        return BackOff(job.not_before)  # later ones may pass: it is two minutes at most
    if job.saving_on is not None:
        return Saving(job.saving_on)
    leases = leases_of(job, world)
    if job.turn is not None and job.turn.ahead:
        return NotItsTurn(job.turn, _turn_at(job.turn, leases, world))
    return _place_in_leases(job, leases, world, free) if leases else None


def want_of(job: WaitingJob, timeline: Timeline) -> Want:
    """Return the nodes and time that a job needs, in the terms of the queue."""
    return Want(
        job.id,
        job.num_nodes,
        job.wall_left_s + CLEANING_S,
        job.classes,
        job.may_be_cut,
        timeline.ways(job.ranks, is_script=job.is_script, memory_slots=job.memory_slots),
    )


def _start(
    job: WaitingJob, want: Want, walk: Backfill, timeline: Timeline, grace_s: int
) -> WalkIn | None:
    """Return a walk-in if the job fits without delaying earlier jobs; else None."""
    start = walk.start(want)
    return _walk_in(job, start, timeline, grace_s) if start is not None else None


def _later(
    job: WaitingJob,
    want: Want,
    walk: Backfill,
    world: Snapshot,
    timeline: Timeline,
    *,
    is_near: bool,
) -> Later:
    """Return the wait of a job that can't start, with its slot if it gets a reservation."""
    room_now_s = wall_room_s(timeline, want)
    gap_from_min = _gap_from_min(want, walk, world, timeline)
    sooner = tuple(_variants(job, want, walk, world)) if is_near else ()
    reservation = walk.reserve(want)
    if reservation is None:
        now = datetime.fromtimestamp(timeline.now, UTC)
        sooner = tuple(each for each in sooner if each.start <= now)
    later = Later(None, room_now_s, sooner, gap_from_min)
    return later if reservation is None else _planned(later, job, reservation, timeline)


def _planned(
    later: Later, job: WaitingJob, planned: Reservation | None, timeline: Timeline
) -> Later:
    """Return the wait of a job with its planned slot, and the changes that gain enough."""
    if planned is None:
        return replace(later, sooner=())
    name, nodes, begin, end, _ = planned
    slot = timeline.slot(name, nodes, begin)
    timeline.planned(name, nodes, end, job.id)
    worth = slot.start - WORTH_A_CHANGE
    return replace(later, slot=slot, sooner=tuple(s for s in later.sooner if s.start <= worth))


def _gap_from_min(want: Want, walk: Backfill, world: Snapshot, timeline: Timeline) -> int | None:
    """Return the shortest gap, in minutes, in which the job may be cut on the nodes of the longest
    present gap; 0 if it may not be cut there, None if there is no gap or it saves nothing."""
    gap = walk.gap_now(want) if want.may_be_cut else None
    if gap is None:
        return None
    class_name, nodes = gap
    found = [world.scheduling_of(node_id) for node_id in timeline.node_ids(class_name, nodes)]
    return max((rules.min_useful_min for rules in found if rules.soft_fit == "on"), default=0)


def _variants(job: WaitingJob, want: Want, walk: Backfill, world: Snapshot) -> Iterator[Sooner]:
    """Yield the starts with fewer nodes, with half the wall time, on other classes, or if cut."""
    changes: list[tuple[str, Want]] = []
    if job.num_nodes > 1:
        fewer = job.num_nodes // 2
        changes.append((f"resources.nodes: {fewer}", want._replace(num_nodes=fewer)))
    half_s = job.wall_left_s // 120 * 60
    if half_s >= 60:
        shorter = want._replace(seconds=half_s + CLEANING_S)
        changes.append((f"resources.wall_time: {format_duration(half_s)}", shorter))
    changes += [
        (f"resources.node_class: {name}", want._replace(classes=(name,)))
        for name in world.other_classes(job.id)
    ]
    for change, other in changes:
        found = earliest(walk.lanes, other)
        if found is not None:
            yield Sooner(change, datetime.fromtimestamp(found.start, UTC))
    if not job.may_be_cut and not job.in_vain and walk.could_be_cut(want):
        now = next(iter(walk.lanes.values())).now
        yield Sooner("resources.checkpointable: true", datetime.fromtimestamp(now, UTC))


def _walk_in(job: WaitingJob, start: BackfillStart, timeline: Timeline, grace_s: int) -> WalkIn:
    node_ids = timeline.node_ids(start.class_name, start.nodes)
    timeline.planned(start.class_name, start.nodes, start.end, job.id)
    if start.is_cut:
        hold_end = cut_hold_end(start.end, grace_s)
    else:
        now = datetime.fromtimestamp(timeline.now, UTC)
        hold_end = walk_in_end(now, job.wall_left_s, grace_s)
    slots = timeline.fit_slots(start.class_name, start.nodes, job.ranks)
    return WalkIn(node_ids, slots, hold_end, start.is_cut, num_slots=start.slots)


def cut_hold_end(end: float, grace_s: int) -> datetime:
    """Return the hold's end for a job that is cut, its nodes being taken at `end` (seconds)."""
    return datetime.fromtimestamp(end - CLEANING_S + grace_s, UTC)


def _place_in_leases(
    job: WaitingJob, leases: tuple[LeaseSnapshot, ...], world: Snapshot, free: FreeSlots
) -> InLease | LeadIn | AfterLease:
    """Start in all of the leases at once, beside other jobs in them, or wait for one of them."""
    if differ_in_size(leases) or share_a_node(leases):
        return AfterLease(leases[0], None, None)
    booked = [lease for lease in leases if lease.state is LeaseState.BOOKED]
    if booked:
        last = max(booked, key=lambda lease: lease.hold_start)
        if len(leases) == 1 and _may_lead_in(job, last, world):
            return LeadIn(last)
        return AfterLease(last, None, last.hold_start if last.hold_start > world.now else None)
    found = []
    for lease in leases:
        guests = world.guests_in(lease.id)
        if guests:
            return AfterLease(lease, guests[0], world.now + RECALLED_WITHIN)
        slots = free.lowest(lease, job.ranks) or free.lowest(lease, job.ranks, lent=True)
        node = world.nodes[lease.node_id]
        running = world.attempts_at(lease)
        fits = node.class_name in job.classes
        if lease.num_slots is not None:
            fits = fits and job.slots_needed(node.class_name) <= len(lease.slots)
        if fits and slots is None and running:
            ahead = min(running, key=lambda attempt: attempt.ends_at)
            start = max(ahead.ends_at, world.now)  # its end may be overdue
            return AfterLease(lease, ahead, start if start < lease.usable_end else None)
        too_late = world.now > lease.usable_end - LEAST_USE
        if slots is None or too_late or not fits or not node.usable or not world.tidy(lease):
            return AfterLease(lease, None, None)
        found.append(slots)
    return InLease(leases, tuple(found))


def _may_lead_in(job: WaitingJob, lease: LeaseSnapshot, world: Snapshot) -> bool:
    """Return True if a workbench may start before its lease: what has its slots has left them
    clean, and its wall time lasts as long as the lease all the same."""
    node = world.nodes[lease.node_id]
    if not job.is_workbench or not node.usable or node.class_name not in job.classes:
        return False
    if not LEAST_LEAD_IN <= lease.hold_start - world.now <= LEAD_IN:
        return False
    if timedelta(seconds=job.wall_left_s) < lease.usable_end - world.now:
        return False
    held = world.held_slots(node)
    if lease.num_slots is None:
        return node.clean and not node.unfit and not held and job.ranks <= node.slots
    return len(set(range(node.slots)) - held - node.unfit - node.dirty) >= lease.num_slots


def _turn_at(turn: Turn, leases: tuple[LeaseSnapshot, ...], world: Snapshot) -> datetime | None:
    """Return the latest time at which the jobs before it in its agenda have ended.

    None if it names no lease, or if that time is after its lease.
    """
    if not leases:
        return None
    running = [one.ends_at + HANDOVER for one in world.attempts if one.job_id in turn.ahead]
    since = max([world.now, *(lease.hold_start for lease in leases), *running])
    start = since + timedelta(seconds=turn.waiting_ahead_s)
    return start if start < min(lease.usable_end for lease in leases) else None


def _beside_own_jobs(
    job: WaitingJob, world: Snapshot, free: FreeSlots, timeline: Timeline
) -> InLease | None:
    """Place the job beside its owner's running walk-ins if that delays no reservation.

    Beside a walk-in on a part of a node it takes one of its own.
    """
    until = world.now + timedelta(seconds=job.wall_left_s)
    for class_name in job.classes:
        found = []
        for lease in free.walk_ins_of(job.user_id):
            node = world.nodes[lease.node_id]
            slots = free.lowest(lease, job.ranks)
            running = world.attempts_in(lease.id)
            if (
                slots is not None
                and lease.num_slots is None
                and node.class_name == class_name
                and running
                and node.usable
                and world.tidy(lease)
                and until <= lease.usable_end
                and timeline.is_unpromised(node, max(attempt.ends_at for attempt in running), until)
            ):
                found.append((lease, slots))
        if len(found) >= job.num_nodes:
            leases, slots_of = zip(*found[: job.num_nodes], strict=True)
            for lease in leases:
                timeline.lasts(world.nodes[lease.node_id], until, job.id)
            return InLease(leases, slots_of)
    return None


def _as_guest(
    job: WaitingJob,
    world: Snapshot,
    free: FreeSlots,
    idle: Sequence[LeaseSnapshot],
    guests: Mapping[str, str],
) -> InLease | None:
    """Place the job in leases whose owners have not come, if it can be stopped when they do.

    `guests` maps lease id -> user whose guests are in it already.
    """
    if not job.may_be_cut:
        return None
    for class_name in job.classes:
        found: dict[str, tuple[LeaseSnapshot, tuple[int, ...]]] = {}
        for lease in idle:
            node = world.nodes[lease.node_id]
            is_beside = world.lends(lease.id)
            slots = free.lowest(lease, job.ranks, lent=is_beside)
            if (
                slots is not None
                and not (is_beside and job.num_nodes > 1)  # it would leave late
                and node.class_name == class_name
                and node.id not in found
                and (lease.num_slots or node.slots) >= job.slots_needed(class_name)
                and lease.user_id != job.user_id
                and guests.get(lease.id, job.user_id) == job.user_id
            ):
                found[node.id] = lease, slots
        if len(found) >= job.num_nodes:
            leases, slots_of = zip(*list(found.values())[: job.num_nodes], strict=True)
            return InLease(leases, slots_of, is_guest=True)
    return None
