"""One cycle: read the world, repair it, hand nodes over, place who waits, say why to the rest.

Reading and deciding take no lock. Every decision is then written in a short transaction of its own
that checks the term, that the row has not moved on, and lets the database refuse a double booking:
a scheduler that dies, sleeps or meets another one between any two of them does no harm.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import structlog
from sqlalchemy import select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, load_only

from core import leases
from core.attempts import assign, lock
from core.database import Database
from core.errors import HourTaken
from core.policy import Policy
from core.states import JobState, LeaseState, NodeState
from core.tables import Job, Lease, LeaseKind, Node
from core.transitions import explain
from scheduler import handover, reaper
from scheduler.dispatch import Dispatcher
from scheduler.fitting import Fitting
from scheduler.leadership import Leadership
from scheduler.ordering import next_first
from scheduler.placement import InLease, WalkIn, place
from scheduler.sentences import Reason, clock, reason_for
from scheduler.snapshot import Snapshot, Waiting, take_snapshot
from scheduler.timeline import build_timeline

ACTOR = "scheduler"
HANDOVERS = 3  # stop, end, begin: what one cycle can bring about on one node
TOLD_AT_ONCE = 200  # explanations in one transaction: some 20 ms without other writers on SQLite

log = structlog.get_logger()


@dataclass
class Scheduler:
    """What a cycle needs, and what it remembers between cycles: nothing that may not be lost."""

    database: Database
    leadership: Leadership
    dispatcher: Dispatcher
    policy: Policy = field(default_factory=Policy)
    unreachable_after_s: float = 30.0
    fitting: Fitting = field(default_factory=Fitting)
    holiday: reaper.Holiday = field(default_factory=reaper.Holiday)


@dataclass(frozen=True)
class Told:
    """A waiting job and its sentence."""

    job: Waiting
    reason: Reason


class Overtaken(Exception):
    """The world has moved on since it was read; the transaction is rolled back."""


def run_cycle(scheduler: Scheduler, now: datetime) -> list[str]:
    """Start every waiting job that can start; the ids of those started.

    Raises LeadershipLost, with nothing more written, when another scheduler decides.
    """
    world = read_world(scheduler, now)  # 1. read the world once
    if repair(scheduler, world):  # 2. mark what is silent, give up what is lost
        world = read_world(scheduler, now)
    for _ in range(HANDOVERS):  # 3. a lease that ends lets the next one begin
        if not hand_over(scheduler, world):
            break
        world = read_world(scheduler, now)
    timeline = build_timeline(world, scheduler.policy.grace_s)
    started: list[str] = []
    waiting: list[Told] = []
    leases_taken: set[str] = set()
    for job in next_first(world.waiting):  # 4. who is next (pure)
        placement = place(  # 5. where it would run, and when (pure)
            job,
            world,
            timeline,
            grace_s=scheduler.policy.grace_s,
            lease_is_taken=job.lease_id in leases_taken,
        )
        if isinstance(placement, WalkIn | InLease):
            node_id = grant(scheduler, job, placement, now)  # 6. take the node
            if isinstance(placement, InLease):
                leases_taken.add(placement.lease.id)
            if node_id is not None:
                started.append(job.id)
                scheduler.dispatcher.ring_nodes([world.nodes[node_id].name])  # 7. after the commit
        else:
            need = scheduler.fitting.need_of(job.id)
            waiting.append(Told(job, reason_for(job, placement, world, need)))
    scheduler.dispatcher.tell_viewers(started)
    scheduler.dispatcher.ring_again(world)
    tell(scheduler, waiting)  # 8. why the others wait: their owners see this sentence
    return started


def read_world(scheduler: Scheduler, now: datetime) -> Snapshot:
    """A snapshot, read without the writer's lock."""
    with scheduler.database.read() as session:
        return take_snapshot(
            session,
            now,
            fitting=scheduler.fitting,
            unreachable_after_s=scheduler.unreachable_after_s,
        )


def repair(scheduler: Scheduler, world: Snapshot) -> int:
    """Mark what is silent and give up what is lost; the number of changes."""
    changes = 0
    for node in reaper.changed_conditions(world):
        with scheduler.leadership.write() as session:
            reaper.write_condition(session, node, world.now)
        log.info("node_heard_again" if node.heard else "node_unreachable", node=node.name)
        changes += 1
    if not may_judge(scheduler, world):
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
    """Begin and end the leases whose time has come; the number of moves tried."""
    moves = list(handover.due(world, verdicts=may_judge(scheduler, world)))
    for move in moves:
        try:
            with scheduler.leadership.write() as session:
                job_ids = handover.carry_out(session, move, world.now)
        except DBAPIError as error:  # one that fails must not keep the others from ending
            log.error("move_failed", move=handover.name_of(move), error=str(error.orig))
            continue
        log.info("moved", move=handover.name_of(move))
        if job_ids:
            stopped = [a.node_id for a in world.attempts if a.job_id in job_ids]
            scheduler.dispatcher.ring_nodes(world.nodes[node_id].name for node_id in stopped)
            scheduler.dispatcher.tell_viewers(job_ids)
    return len(moves)


def may_judge(scheduler: Scheduler, world: Snapshot) -> bool:
    """Whether verdicts may be spoken: not on the word of a leader that has just begun."""
    since = scheduler.leadership.leader_since
    return since is not None and scheduler.holiday.is_over(world, since)


def grant(
    scheduler: Scheduler, job: Waiting, placement: WalkIn | InLease, now: datetime
) -> str | None:
    """Lease and attempt in one transaction; the node's id, None if somebody was faster."""
    try:
        with scheduler.leadership.write() as session:
            row = session.get_one(Job, job.id)
            lock(session, row)  # before the node, as everybody does who wants both
            if row.epoch != job.epoch or row.state is not JobState.QUEUED:
                raise Overtaken
            node_id = (
                placement.node_id if isinstance(placement, WalkIn) else placement.lease.node_id
            )
            leases.lock_nodes(session, [node_id])
            node = session.get_one(Node, node_id)
            if node.state is not NodeState.READY or not node.clean:
                raise Overtaken
            if isinstance(placement, InLease):
                lease = session.get_one(Lease, placement.lease.id, with_for_update=True)
                if lease.state is not LeaseState.ACTIVE:
                    raise Overtaken
            else:
                lease = leases.take(
                    session,
                    user_id=row.user_id,
                    node=node,
                    kind=LeaseKind.WALK_IN,
                    start=now,
                    end=placement.hold_end,
                    grace_s=scheduler.policy.grace_s,
                    now=now,
                    actor=ACTOR,
                    message=f"Walk-in for {row.id}, to {clock(placement.hold_end, now)} at most.",
                )
            if assign(session, row, node, lease, now=now, actor=ACTOR) is None:
                raise Overtaken
    except (Overtaken, HourTaken) as error:
        log.info("placement_overtaken", job=job.id, why=str(error))
        return None
    log.info("job_placed", job=job.id, node=node.name, lease=lease.id, epoch=job.epoch + 1)
    return node_id


def tell(scheduler: Scheduler, waiting: Sequence[Told]) -> int:
    """Write down every sentence that has changed; how many had."""
    news = [told for told in waiting if told.job.told != told.reason]
    changed: list[str] = []
    for chunk in in_chunks(news, TOLD_AT_ONCE):
        with scheduler.leadership.write() as session:
            rows = waiting_rows(session, [told.job.id for told in chunk])
            for told in chunk:
                row = rows.get(told.job.id)
                if row is not None and explain(
                    session,
                    row,
                    reason_code=told.reason.code,
                    message=told.reason.message,
                    predicted_start=told.reason.predicted_start,
                ):
                    changed.append(row.id)
    scheduler.dispatcher.tell_viewers(changed)
    return len(changed)


def waiting_rows(session: Session, job_ids: Sequence[str]) -> dict[str, Job]:
    """These jobs, as far as they still wait, without their long columns."""
    columns = (Job.state, Job.epoch, Job.reason_code, Job.reason, Job.predicted_start)
    rows = session.scalars(
        select(Job)
        .where(Job.id.in_(job_ids), Job.state == JobState.QUEUED)
        .options(load_only(*columns))
    )
    return {row.id: row for row in rows}


def in_chunks(items: Sequence[Told], size: int) -> Iterable[Sequence[Told]]:
    """`items` in runs of at most `size`."""
    return (items[first : first + size] for first in range(0, len(items), size))
