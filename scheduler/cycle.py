"""One cycle: read the world, repair it, hand nodes over, place waiting jobs, explain the rest.

Reading and deciding take no lock. Every decision is then written in a short transaction of its own,
which checks the term and that the row has not changed; the database refuses a double booking. A
scheduler that dies, sleeps or meets another one between two transactions does no harm.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from random import Random, SystemRandom

import structlog
from sqlalchemy import and_, not_, or_, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from core.agendas.turns import Turn
from core.base import tracing
from core.base.errors import HourTaken
from core.base.reasons import ReasonCode
from core.base.words import clock, in_words
from core.database.database import Database
from core.jobs.attempts import NodeAssignment, ask_to_stop, assign, lock
from core.leases import appointments, leases, node_slots, waitlist
from core.leases.leases import Terms
from core.leases.neighbours import why_not_beside_others
from core.leases.waitlist import MAX_JUDGED, SearchBudget
from core.policy.document import DEFAULT, Policy
from core.policy.grid import walk_in_end
from core.policy.words import gpus_text
from core.process.timekeeping import Timekeeper
from core.states import LIVE_ATTEMPT, Desired, JobState, LeaseState, NodeState, Outcome
from core.tables.jobs import Attempt, AttemptPart, Job
from core.tables.kinds import LeaseKind, OccupancyKind
from core.tables.leases import Lease
from core.tables.nodes import Node, NodeClass
from core.transitions import Explanation, advance, explain, note
from core.wire.messages import Fabric, Rendezvous
from scheduler import reaper
from scheduler.leadership import LeadershipClaim
from scheduler.leases import failover as rescue
from scheduler.leases import handover, offers, walk_ins
from scheduler.outbox import agenda_notices
from scheduler.outbox.dispatch import Dispatcher
from scheduler.queue import turns
from scheduler.queue.backfill import QueueRules
from scheduler.queue.borrowing import Clearing
from scheduler.queue.fair_share import FairShare
from scheduler.queue.fitting import Fitting
from scheduler.queue.ordering import UserShare, next_first
from scheduler.queue.parts import walk_in_slots
from scheduler.queue.placement import InLease, LeadIn, WalkIn, cut_hold_end, decide, leases_of
from scheduler.queue.sentences import WaitingReason, node_names, reason_for
from scheduler.queue.telling import JobReason, worth_telling
from scheduler.reading import take_snapshot
from scheduler.snapshot import LENDING, LeaseSnapshot, Snapshot, WaitingJob

ACTOR = "scheduler"
WAITLIST_EVERY = timedelta(seconds=5)
AWAY = timedelta(minutes=1)  # a longer time without a look: it slept, or was read-only
AGENDAS_EVERY = timedelta(seconds=10)
KEEP_UP_EVERY = timedelta(seconds=10)
MAX_IN_VAIN = 10
HANDOVERS = 3  # stop, end, begin: the most moves of one node in one cycle
PORTS = range(15_000, 32_768)  # below those that Linux takes for clients' connections
TOLD_AT_ONCE = 200  # explanations in one transaction: some 20 ms without other writers on SQLite

log = structlog.get_logger()


@dataclass
class Scheduler:
    """Dependencies of a cycle, and its memory between cycles, which may be lost without harm."""

    database: Database
    leadership: LeadershipClaim
    dispatcher: Dispatcher
    policy: Policy = DEFAULT
    rules: QueueRules = field(default_factory=QueueRules)
    fair_share: FairShare = field(default_factory=FairShare)
    unreachable_after_s: float = 30.0
    gang_start_s: float = 120.0
    fitting: Fitting = field(default_factory=Fitting)
    holiday: reaper.Holiday = field(default_factory=reaper.Holiday)
    refusals: walk_ins.Refusals = field(default_factory=walk_ins.Refusals)
    told_at: dict[str, datetime] = field(default_factory=dict)
    """Map job id -> time at which the reason for its waiting was last written."""
    waitlist_looked_at: datetime | None = None
    line: offers.WaitlistMemory = field(default_factory=offers.WaitlistMemory)
    agendas_looked_at: datetime | None = None
    turn_at: datetime | None = None
    """Next moment at which a lease begins or ends, by the last cycle's snapshot."""
    kept_up_at: datetime | None = None
    """Time at which it last read the world while another scheduler led."""
    timekeeper: Timekeeper = field(init=False)

    def __post_init__(self) -> None:
        self.timekeeper = Timekeeper(self.database)


class StaleSnapshot(Exception):
    """The world has moved on since it was read; the transaction is rolled back."""


class NeighboursRefused(Exception):
    """A node cannot keep the job apart from the jobs of other owners."""

    def __init__(self, reason: WaitingReason) -> None:
        super().__init__(reason.message)
        self.reason = reason


def run_cycle(scheduler: Scheduler, now: datetime) -> list[str]:
    """Start every waiting job that can start; return the ids of those started.

    Raises LeadershipLost, with nothing more written, if another scheduler leads.
    """
    world = read_world(scheduler, now)  # 1. read the world once
    if repair(scheduler, world):  # 2. mark silent nodes, end lost attempts
        world = read_world(scheduler, now, before=world)
    moved = 0
    for _ in range(HANDOVERS):  # 3. a lease that ends lets the next one begin
        tried = hand_over(scheduler, world)
        if not tried:
            break
        moved += tried
        world = read_world(scheduler, now, before=world)  # its jobs may name the next lease now
    if rescue_leases(scheduler, world):  # a lease whose node has failed moves or is refunded
        world = read_world(scheduler, now, before=world)
    if serve_waitlist(scheduler, world, at_once=moved > 0):  # an offer holds its hours
        world = read_world(scheduler, now, before=world)
    scheduler.dispatcher.tell_everybody(scheduler.leadership.take_written())
    started: list[str] = []
    waiting: list[JobReason] = []
    ready = hold_back(scheduler, world)
    refused = {job.id: why for job in ready if (why := scheduler.refusals.of(job.id, now))}
    waiting += [JobReason(job, refused[job.id]) for job in ready if job.id in refused]
    queue = [job for job in ready if job.id not in refused]
    order = next_first(queue, now, read_standings(scheduler, now))  # 4. who is next (pure)
    decisions = decide(  # 5. where each would run, and when (pure)
        order, world, rules=scheduler.rules, grace_s=scheduler.policy.grid.grace_s
    )
    for job, decision in decisions:
        if isinstance(decision, WalkIn | InLease | LeadIn):
            names = grant(scheduler, job, decision, now)  # 6. take the nodes
            if names:
                started.append(job.id)
                scheduler.dispatcher.ring_nodes(names)  # 7. after the commit
            elif (refusal := scheduler.refusals.of(job.id, now)) is not None:
                waiting.append(JobReason(job, refusal))
        else:
            if isinstance(decision, Clearing) and decision.victims:
                preempt(scheduler, job, decision, world)  # borrowing jobs give nodes back
            need = scheduler.fitting.need_of(job.id)
            waiting.append(JobReason(job, reason_for(job, decision, world, need)))
    scheduler.dispatcher.tell_viewers(started)
    scheduler.dispatcher.tell_everybody(scheduler.leadership.take_written())
    scheduler.dispatcher.ring_again(world)
    scheduler.turn_at = world.turn_at
    tell(scheduler, waiting, now)  # 8. why the others wait: their owners see this sentence
    tell_of_agendas(scheduler, now)  # 9. notices about agendas that will not end in time
    return started


def read_world(scheduler: Scheduler, now: datetime, *, before: Snapshot | None = None) -> Snapshot:
    """Return a snapshot, read without the writer's lock; `before`: an earlier one of this cycle."""
    with scheduler.database.read() as session:
        return take_snapshot(
            session,
            now,
            fitting=scheduler.fitting,
            unreachable_after_s=scheduler.unreachable_after_s,
            before=before,
        )


def keep_up(scheduler: Scheduler, now: datetime) -> None:
    """Read the world every few seconds while another scheduler leads, and decide nothing.

    To read ten thousand waiting jobs that it has never seen takes 1.7 s of a core, and 7 s where
    their plans have to be made again; nothing starts meanwhile. Whoever takes over has read all but
    the newest.
    """
    last = scheduler.kept_up_at
    if last is None or not timedelta() <= now - last < KEEP_UP_EVERY:
        scheduler.kept_up_at = now
        read_world(scheduler, now)


def read_standings(scheduler: Scheduler, now: datetime) -> Mapping[str, UserShare]:
    """Map user id -> recent use as a multiple of the fair share, and lab weight."""
    with scheduler.database.read() as session:
        return scheduler.fair_share.standings(session, now)


def hold_back(scheduler: Scheduler, world: Snapshot) -> list[WaitingJob]:
    """Pause jobs stopped MAX_IN_VAIN times before they saved; cancel those that their agenda has
    called off, and workbenches whose lease is over. Returns the other waiting jobs."""
    ready: list[WaitingJob] = []
    for job in world.waiting:
        if job.is_workbench and job.lease_ids and not leases_of(job, world):
            end_with_lease(scheduler, job, world.now)
            continue
        if job.turn is not None and job.turn.called_off_by is not None:
            call_off(scheduler, job, job.turn, world.now)
            continue
        if job.in_vain < MAX_IN_VAIN:
            ready.append(job)
            continue
        with scheduler.leadership.write() as session:
            row = session.get_one(Job, job.id)
            lock(session, row)
            held = row.epoch == job.epoch and advance(
                session,
                row,
                JobState.PAUSED,
                now=world.now,
                reason_code=ReasonCode.HELD,
                message=f"Held: it was stopped {job.in_vain} times in a row before it had "
                "saved a checkpoint. Save more often (checkpoint.every_steps), or "
                "book a longer lease for it; then resume it.",
                actor=ACTOR,
                desired=Desired.PAUSE,
            )
        if held:
            log.warning("job_held", job=job.id, in_vain=job.in_vain)
            scheduler.dispatcher.tell_viewers([job.id])
    return ready


def call_off(scheduler: Scheduler, job: WaitingJob, turn: Turn, now: datetime) -> None:
    """Cancel a job because another of its agenda has failed."""
    with scheduler.leadership.write() as session:
        done = turns.call_off(session, job.id, turn, epoch=job.epoch, now=now, actor=ACTOR)
    if done:
        log.info("job_called_off", job=job.id, agenda=turn.agenda)
        scheduler.dispatcher.tell_viewers([job.id])


def end_with_lease(scheduler: Scheduler, job: WaitingJob, now: datetime) -> None:
    """Cancel a workbench that waited for a lease that is over: as a walk-in it would start with
    nobody in front of it."""
    with scheduler.leadership.write() as session:
        row = session.get_one(Job, job.id)
        lock(session, row)
        done = row.epoch == job.epoch and advance(
            session,
            row,
            JobState.CANCELLED,
            now=now,
            reason_code=ReasonCode.LEASE_ENDS,
            message="Its lease is over, and a workbench is over with its lease. Start another one "
            "in your next lease, or now.",
            actor=ACTOR,
            desired=Desired.CANCEL,
            finished_at=now,
            predicted_start=None,
        )
    if done:
        scheduler.dispatcher.tell_viewers([job.id])


def repair(scheduler: Scheduler, world: Snapshot) -> int:
    """Mark silent nodes, end lost attempts and late starts; return the number of changes."""
    changes = 0
    for node in reaper.changed_conditions(world):
        with scheduler.leadership.write() as session:
            reaper.write_condition(session, node, world.now)
        log.info("node_heard_again" if node.heard else "node_unreachable", node=node.name)
        changes += 1
    since = scheduler.leadership.leader_since
    verdicts = may_judge(scheduler, world)
    patience = timedelta(seconds=scheduler.gang_start_s)
    late_ones = reaper.late_starts(world, patience, since=since or world.now, verdicts=verdicts)
    for late in late_ones:
        with scheduler.leadership.write() as session:
            freed = reaper.conclude_late(session, late, world.now)
        if freed:
            log.warning("start_given_up", job=late.attempt.job_id, why=late.why)
            scheduler.dispatcher.tell_viewers([late.attempt.job_id])
            changes += 1
    if not verdicts:
        return changes
    for lost in reaper.lost_attempts(world):
        with scheduler.leadership.write() as session:
            concluded = reaper.conclude_lost(session, lost, world.now)
        if concluded:
            log.warning("attempt_lost", job=lost.attempt.job_id, why=lost.why)
            scheduler.dispatcher.tell_viewers([lost.attempt.job_id])
            changes += 1
    return changes


def hand_over(scheduler: Scheduler, world: Snapshot) -> int:
    """Carry out the due moves of leases and nodes; return the number of moves tried."""
    moves = list(handover.due(world, verdicts=may_judge(scheduler, world)))
    planned = [due for move in moves if (due := handover.appointment_of(move)) is not None]
    holder = scheduler.leadership.holder
    if planned:
        with scheduler.leadership.write() as session:
            appointments.claim(session, [due.id for due in planned], holder=holder, now=world.now)
    for move in moves:
        if isinstance(move, handover.Reclaim):
            move = wanted(scheduler, move, world.now)
        try:
            with scheduler.leadership.write() as session:
                job_ids = handover.carry_out(session, move, world.now, holder)
        except DBAPIError as error:  # one that fails must not keep the others from ending
            log.error("move_failed", move=handover.name_of(move), error=str(error.orig))
            give_up_claim(scheduler, move)
            continue
        log.info("moved", move=handover.name_of(move))
        if job_ids:
            stopped = [a.node_id for a in world.attempts if a.job_id in job_ids]
            scheduler.dispatcher.ring_nodes(world.nodes[node_id].name for node_id in stopped)
            scheduler.dispatcher.tell_viewers(job_ids)
    return len(moves)


def rescue_leases(scheduler: Scheduler, world: Snapshot) -> int:
    """Move or refund leases that a fault has made unusable; return the number of changes."""
    if not may_judge(scheduler, world):
        return 0
    changes = 0
    if any(hold.kind is OccupancyKind.DOWN for hold in world.holds):
        with scheduler.leadership.write() as session:
            changes += rescue.let_go(session, world)
    if next(rescue.troubles(world), None) is None:
        return changes
    with scheduler.database.read() as session:
        patience = rescue.patience(session, world)
    for step in rescue.due(world, patience):
        lease_id = step.trouble.lease.id
        try:
            with scheduler.leadership.write() as session:
                rescue.carry_out(session, step, world.now)
        except HourTaken as error:
            log.info("rescue_overtaken", lease=lease_id, why=str(error))
            continue
        log.info("lease_rescued", lease=lease_id, how=type(step).__name__)
        changes += 1
    return changes


def wanted(scheduler: Scheduler, move: handover.Reclaim, now: datetime) -> handover.Reclaim:
    """Return the move with `wanted_from`: the start of the first block of its hours for which
    somebody waits."""
    budget = SearchBudget(MAX_JUDGED)
    with scheduler.database.read() as session:
        lease = session.get_one(Lease, move.lease.id)
        wanted_from = waitlist.wanted_from(session, lease, budget=budget, now=now)
    return replace(move, wanted_from=wanted_from)


def serve_waitlist(scheduler: Scheduler, world: Snapshot, *, at_once: bool) -> int:
    """Offer free blocks to the waitlist every few seconds; return the number of changes.

    Pass `at_once` if a lease has just ended or begun, to look without waiting.
    """
    now, looked_at = world.now, scheduler.waitlist_looked_at
    if not at_once and looked_at is not None and looked_at <= now < looked_at + WAITLIST_EVERY:
        return 0
    scheduler.waitlist_looked_at = now
    was_away = looked_at is not None and now > looked_at + AWAY
    return offers.serve(
        scheduler.database,
        scheduler.leadership,
        now,
        scheduler.line,
        SearchBudget(offers.ROUND),
        verdicts=may_judge(scheduler, world) and not was_away,
    )


def tell_of_agendas(scheduler: Scheduler, now: datetime) -> int:
    """Send notices about late and cut agendas, every few seconds; return the number sent."""
    looked_at = scheduler.agendas_looked_at
    if looked_at is not None and looked_at <= now < looked_at + AGENDAS_EVERY:
        return 0
    scheduler.agendas_looked_at = now
    return agenda_notices.serve(scheduler.database, scheduler.leadership, now)


def give_up_claim(scheduler: Scheduler, move: handover.Move) -> None:
    """Put a move's appointment back, so that the next cycle can retry before the claim expires."""
    due = handover.appointment_of(move)
    if due is not None:
        with scheduler.leadership.write() as session:
            appointments.put_back(session, due)


def may_judge(scheduler: Scheduler, world: Snapshot) -> bool:
    """Return True if verdicts may be given: this leader is not new and the nodes are heard."""
    since = scheduler.leadership.leader_since
    return since is not None and scheduler.holiday.is_over(world, since)


def grant(
    scheduler: Scheduler, job: WaitingJob, placement: WalkIn | InLease | LeadIn, now: datetime
) -> list[str]:
    """Write leases and attempt of a start in one transaction, all or nothing.

    Returns the names of the nodes; empty if the world has changed or the policy refuses.
    """
    try:
        with scheduler.leadership.write() as session:
            row = session.get_one(Job, job.id)
            is_guest = isinstance(placement, InLease) and placement.is_guest
            if isinstance(placement, WalkIn) or is_guest:
                walk_ins.lock_owner(session, row.user_id)
            lock(session, row)  # before the nodes: everywhere the same order
            if row.epoch != job.epoch or row.state is not JobState.QUEUED:
                raise StaleSnapshot
            if isinstance(placement, LeadIn):
                places = lead_in(session, job, placement.lease, now)
            elif isinstance(placement, InLease):
                places = places_in(session, placement)
                if is_guest:
                    let_in(scheduler, session, row, places, now)
            else:
                places = walk_in(scheduler, session, row, placement, now)
            meeting_point = rendezvous(session, places, SystemRandom())
            keep_apart(job, places, meeting_point)
            with tracing.span("place", parent=row.traceparent, job=row.id, epoch=row.epoch + 1):
                if not assign(session, row, places, now=now, actor=ACTOR, rendezvous=meeting_point):
                    raise StaleSnapshot
    except (StaleSnapshot, HourTaken) as error:
        log.info("placement_overtaken", job=job.id, why=str(error))
        return []
    except (walk_ins.WalkInRefused, NeighboursRefused) as error:
        scheduler.refusals.remember(job.id, error.reason, now)
        return []
    names = [place.node.name for place in places]
    log.info("job_placed", job=job.id, nodes=names, epoch=job.epoch + 1)
    return names


def keep_apart(
    job: WaitingJob, places: Sequence[NodeAssignment], meeting_point: Rendezvous | None
) -> None:
    """Raise NeighboursRefused if a node cannot keep the job apart from those of other owners."""
    programs = "relay" if meeting_point is None else meeting_point.fabric.programs
    for place in places:
        why = why_not_beside_others(
            place.node,
            place.lease,
            is_script=job.is_script,
            on_nodes_network=programs == "host",
        )
        if why:
            raise NeighboursRefused(WaitingReason(ReasonCode.SHARING_UNAVAILABLE, why))


def preempt(scheduler: Scheduler, job: WaitingJob, clearing: Clearing, world: Snapshot) -> bool:
    """Ask the jobs that a claim's nodes are taken from to save and stop, all of them or none.

    Returns False if one has changed meanwhile, or if the policy does not let the claim walk in.
    """
    victims = {attempt.job_id: attempt for attempt in clearing.victims}
    held = [attempt.lease_id for attempt in clearing.victims]
    now = world.now
    try:
        with scheduler.leadership.write() as session:
            row = session.get_one(Job, job.id)
            walk_ins.lock_owner(session, row.user_id)
            lock(session, row)
            if row.epoch != job.epoch or row.state is not JobState.QUEUED:
                raise StaleSnapshot
            nodes = [session.get_one(Node, node.id) for node in clearing.nodes]
            grace_s = scheduler.policy.grid.grace_s
            end = walk_in_end(now, job.wall_left_s, grace_s)
            if clearing.cut_at is not None:
                end = min(end, cut_hold_end(clearing.cut_at, grace_s))
            sizes = [walk_in_slots(world, node, job) for node in clearing.nodes]
            walk_ins.granted(
                session, row.user_id, nodes, sizes=sizes, end=end, now=now, replaces=held
            )
            message = (
                f"Preempted: a job of {clearing.lab} needs {node_names(clearing.nodes)}, which is "
                "within that lab's share and was only borrowed."
            )
            for job_id in sorted(victims):
                victim = session.get_one(Job, job_id)
                if victim.epoch != victims[job_id].epoch or not ask_to_stop(
                    session, victim, Outcome.PREEMPTED, now=now, message=message, actor=ACTOR
                ):
                    raise StaleSnapshot
    except StaleSnapshot:
        log.info("preemption_overtaken", job=job.id)
        return False
    except walk_ins.WalkInRefused as error:
        scheduler.refusals.remember(job.id, error.reason, now)
        return False
    log.info("preempted", job=job.id, victims=sorted(victims))
    names = {world.nodes[attempt.node_id].name for attempt in clearing.victims}
    scheduler.dispatcher.ring_nodes(sorted(names))
    scheduler.dispatcher.tell_viewers(sorted(victims))
    return True


def places_in(session: Session, placement: InLease) -> list[NodeAssignment]:
    """Return the places in active leases, with their nodes and leases locked.

    Raises Overtaken if a lease is no longer active, or a slot is taken.
    """
    nodes = locked_nodes(session, [lease.node_id for lease in placement.leases])
    places = []
    for seen, slots in zip(placement.leases, placement.slots, strict=True):
        lease = session.get_one(Lease, seen.id, with_for_update=True)
        taken = taken_slots(session, seen.node_id, lent_in=lease.id)
        if lease.state is not LeaseState.ACTIVE or not taken.isdisjoint(slots):
            raise StaleSnapshot
        places.append(NodeAssignment(nodes[seen.node_id], lease, slots))
    return places


def let_in(
    scheduler: Scheduler,
    session: Session,
    row: Job,
    places: Sequence[NodeAssignment],
    now: datetime,
) -> None:
    """Let a job be a guest, at no charge, in leases whose owners have not come.

    Raises walk_ins.Refused if the policy would not let it walk in there if nobody had booked.
    """
    grace_s = scheduler.policy.grid.grace_s
    ends = [walk_in_end(now, row.wall_time_s - row.used_s, grace_s)]
    ends += [place.lease.hold_end for place in places]
    held = [place.lease.id for place in places]
    nodes = [place.node for place in places]
    sizes = [place.lease.num_slots for place in places]
    walk_ins.granted(
        session, row.user_id, nodes, sizes=sizes, end=min(ends), now=now, replaces=held
    )
    hosts = in_words([place.node.name for place in places])
    message = (
        f"Runs as a preemptible guest in hours on {hosts} that their owner is not "
        "using; it saves and leaves when the owner comes."
    )
    note(session, row.id, "guest", now=now, message=message, actor=ACTOR)


def lead_in(
    session: Session, job: WaitingJob, seen: LeaseSnapshot, now: datetime
) -> list[NodeAssignment]:
    """Take the minutes before a booked lease for its owner, at no charge, and begin them; the lease
    goes on from them as from any adjacent one.

    Raises Overtaken or HourTaken if the slots are not free and clean, or the lease has changed.
    """
    nodes = locked_nodes(session, [seen.node_id])
    booked = session.get_one(Lease, seen.id, with_for_update=True)
    if booked.state is not LeaseState.BOOKED or booked.hold_start != seen.hold_start:
        raise StaleSnapshot
    message = (
        f"Minutes before your lease at {clock(booked.hold_start, now)}, at no charge: your "
        "workbench starts in them, and can be entered when the lease begins."
    )
    before = leases.take(
        session,
        user_id=booked.user_id,
        node=nodes[seen.node_id],
        kind=LeaseKind.BOOKED,
        start=now,
        end=booked.hold_start,
        grace_s=booked.grace_s,
        now=now,
        actor=ACTOR,
        message=message,
        terms=Terms(is_charged=False),
        num_slots=booked.num_slots,
    )
    begun = node_slots.assign(session, before) and advance(
        session,
        before,
        LeaseState.ACTIVE,
        now=now,
        reason_code=ReasonCode.BEGAN,
        message=message,
        actor=ACTOR,
        began_at=now,
    )
    if not begun:
        raise StaleSnapshot
    slots = own_slots(session, before, range(job.ranks))
    return [NodeAssignment(nodes[seen.node_id], before, slots)]


def walk_in(
    scheduler: Scheduler, session: Session, row: Job, placement: WalkIn, now: datetime
) -> list[NodeAssignment]:
    """Take a walk-in lease on each node; return the places.

    Raises Overtaken or HourTaken if a node is no longer free, walk_ins.Refused if the policy does
    not allow the walk-in.
    """
    nodes = locked_nodes(session, placement.node_ids)
    slots = dict(zip(placement.node_ids, placement.slots, strict=True))
    num_slots = placement.num_slots
    until = clock(placement.hold_end, now)
    how = "and continues later" if placement.is_cut else "at most"
    size = "" if num_slots is None else f" of {gpus_text(num_slots)}"
    lent = " It is borrowed: another lab may reclaim its share." if placement.is_borrowed else ""
    taken = leases.take_together(
        session,
        list(nodes.values()),
        walk_ins.granted(
            session,
            row.user_id,
            list(nodes.values()),
            sizes=[num_slots] * len(nodes),
            end=placement.hold_end,
            now=now,
        ),
        user_id=row.user_id,
        kind=LeaseKind.WALK_IN,
        start=now,
        end=placement.hold_end,
        grace_s=scheduler.policy.grid.grace_s,
        now=now,
        actor=ACTOR,
        message=f"Walk-in{size} for {row.name}, until {until} {how}.{lent}",
        num_slots=num_slots,
    )
    if num_slots is not None:
        slots = {lease.node_id: own_slots(session, lease, slots[lease.node_id]) for lease in taken}
    lease_on = {lease.node_id: lease for lease in taken}
    return [
        NodeAssignment(nodes[node_id], lease_on[node_id], slots[node_id])
        for node_id in placement.node_ids
    ]


def own_slots(session: Session, lease: Lease, wanted: Sequence[int]) -> tuple[int, ...]:
    """Return as many of a lease's slots as a job wants, the lowest. Raises Overtaken if it has
    fewer."""
    found = sorted(node_slots.lease_slots(session, lease))[: len(wanted)]
    if len(found) < len(wanted):
        raise StaleSnapshot
    return tuple(found)


def locked_nodes(session: Session, node_ids: Sequence[str]) -> dict[str, Node]:
    """Return the nodes by id, locked in order of id. Raises Overtaken unless all are ready."""
    leases.lock_nodes(session, node_ids)
    nodes = {node_id: session.get_one(Node, node_id) for node_id in node_ids}
    if any(node.state is not NodeState.READY for node in nodes.values()):
        raise StaleSnapshot
    return nodes


def taken_slots(session: Session, node_id: str, *, lent_in: str) -> set[int]:
    """Return the slots of a node that live attempts have, without those that workbenches in the
    lease `lent_in` lend while they are idle. Its row must be locked."""
    when_idle = Job.spec["workbench"]["when_idle"].as_string()
    is_lent = and_(
        AttemptPart.lease_id == lent_in,
        Attempt.idle_since.is_not(None),
        when_idle.in_(LENDING),
    )
    taken = session.scalars(
        select(AttemptPart.slots)
        .join(Attempt, Attempt.id == AttemptPart.attempt_id)
        .join(Job, Job.id == Attempt.job_id)
        .where(
            AttemptPart.node_id == node_id,
            AttemptPart.ended_at.is_(None),
            Attempt.state.in_(LIVE_ATTEMPT),
            or_(when_idle.is_(None), not_(is_lent)),
        )
    )
    return {slot for slots in taken for slot in slots}


def rendezvous(
    session: Session, places: Sequence[NodeAssignment], random: Random
) -> Rendezvous | None:
    """Return the meeting point of ranks on several nodes; None for one node.

    It is the first node, at a random port that is probably free there. If it is not, the start
    fails, and the next attempt gets another port.
    """
    if len(places) == 1:
        return None
    node_class = session.get_one(NodeClass, places[0].node.class_name)
    return Rendezvous(
        address=places[0].node.peer_address,
        port=random.choice(PORTS),
        key=f"{random.getrandbits(256):064x}",
        fabric=Fabric.model_validate(node_class.fabric),
    )


def tell(scheduler: Scheduler, waiting: Sequence[JobReason], now: datetime) -> int:
    """Store every changed reason that is worth it and wake its viewers; return their number."""
    news = worth_telling(waiting, scheduler.told_at, now)
    for chunk in in_chunks(news, TOLD_AT_ONCE):
        with scheduler.leadership.write() as session:
            explain(
                session,
                [Explanation(one.job.id, one.job.epoch, *one.reason) for one in chunk],
            )
    told = {one.job.id: now for one in news}
    kept = {one.job.id: scheduler.told_at.get(one.job.id) for one in waiting}
    scheduler.told_at = {job_id: at for job_id, at in kept.items() if at is not None} | told
    scheduler.dispatcher.tell_viewers(told)
    return len(told)


def in_chunks(items: Sequence[JobReason], size: int) -> Iterable[Sequence[JobReason]]:
    """Yield `items` in runs of at most `size`."""
    return (items[first : first + size] for first in range(0, len(items), size))
