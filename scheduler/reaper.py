"""Silent nodes and lost attempts. The default is to wait.

A silent node is *unreachable*: a condition with a time, which keeps new work away and changes
nothing else. An attempt is *lost* only on proof, by one of three rules:

1. its node has booted again since the attempt was started;
2. its node is heard and has not listed it for a minute of heartbeats;
3. its node is silent, and its lease ended more than a minute ago: the shim has stopped it by then.

There are no verdicts in the first minute of a leader, nor while many nodes fell silent at once or
no node is heard: then the fault is probably the scheduler's.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import update
from sqlalchemy.orm import Session

from core.base.words import clock
from core.jobs.attempts import conclude, end_part
from core.jobs.gang_exit import PartEnd
from core.leases import leases
from core.states import LIVE_ATTEMPT, NodeState, Outcome, Phase
from core.tables.jobs import Attempt, AttemptPart, Job
from core.tables.nodes import Node
from core.transitions import note
from scheduler.snapshot import AttemptSnapshot, NodeSnapshot, Snapshot

ACTOR = "scheduler"
LEADER_HOLIDAY = timedelta(seconds=60)
MASS = 0.3  # if more than this share of the nodes falls silent at once, they are not at fault
AT_ONCE = timedelta(minutes=10)
UNLISTED = timedelta(seconds=60)
AFTER_LEASE = timedelta(seconds=60)
IN_SERVICE = (NodeState.READY, NodeState.DRAINING, NodeState.DIRTY, NodeState.QUARANTINED)


class Holiday:
    """Time in which no verdicts are given. One per process; it must see every snapshot."""

    def __init__(self) -> None:
        self._until: datetime | None = None

    def is_over(self, world: Snapshot, leader_since: datetime) -> bool:
        """Return True if verdicts may be given in this cycle."""
        if mass_silence(world.nodes.values(), world.now):
            self._until = world.now + LEADER_HOLIDAY  # wait for the heartbeats after the silence
        since_leader = world.now >= leader_since + LEADER_HOLIDAY
        return since_leader and (self._until is None or world.now >= self._until)


@dataclass(frozen=True)
class LostAttempt:
    """An attempt to be ended, and the sentence that tells its owner why."""

    attempt: AttemptSnapshot
    why: str


def mass_silence(nodes: Collection[NodeSnapshot], now: datetime) -> bool:
    """Return True if so many nodes are silent that the scheduler is likely to be cut off.

    That is the case if no node in service is heard, or if more than the share MASS of them fell
    silent within AT_ONCE.
    """
    expected = [n for n in nodes if n.state in IN_SERVICE and n.last_seen_at is not None]
    if not expected:
        return False
    silent = [n for n in expected if not n.heard]
    lately = [n for n in silent if n.last_seen_at is not None and now - n.last_seen_at <= AT_ONCE]
    return len(silent) == len(expected) or len(lately) > MASS * len(expected)


def lost_attempts(world: Snapshot) -> Iterator[LostAttempt]:
    """Yield the attempts that are lost by the three rules."""
    for attempt in world.attempts:
        why = _why_lost(attempt, world)
        if why is not None:
            yield LostAttempt(attempt, why)


def changed_conditions(world: Snapshot) -> list[NodeSnapshot]:
    """Return the nodes that have fallen silent or are heard again and are not yet marked so."""
    return [
        node
        for node in world.nodes.values()
        if node.last_seen_at is not None
        and node.state is not NodeState.RETIRED
        and node.heard == (node.unreachable_since is not None)
    ]


def write_condition(session: Session, node: NodeSnapshot, now: datetime) -> None:
    """Mark a node unreachable since it was last heard, or clear the mark.

    Does nothing if a heartbeat has come since the snapshot.
    """
    since = None if node.heard else node.last_seen_at
    changed = session.execute(
        update(Node)
        .where(Node.id == node.id, Node.last_seen_at == node.last_seen_at)
        .values(unreachable_since=since)
        .returning(Node.id)
    ).first()
    if changed is None:  # a heartbeat has come meanwhile
        return
    if since is None:
        if node.unreachable_since is not None:
            leases.log_outage(session, node.id, since=node.unreachable_since, until=now)
        note(session, node.id, "heard_again", now=now, message="It reports again.", actor=ACTOR)
        return
    note(
        session,
        node.id,
        "unreachable",
        now=now,
        message=f"Not heard from since {clock(since, now)}. Its running jobs are left alone.",
        actor=ACTOR,
    )


def conclude_lost(session: Session, lost: LostAttempt, now: datetime) -> bool:
    """End an attempt's part as lost; return False if its node has listed it meanwhile."""
    job = session.get_one(Job, lost.attempt.job_id)
    attempt = session.get_one(Attempt, lost.attempt.id)
    part = session.get_one(AttemptPart, (attempt.id, lost.attempt.position))
    if part.missing_since != lost.attempt.missing_since:
        return False
    end = PartEnd(None, lost=lost.why)
    return end_part(session, job, attempt, part, end, now=now, actor=ACTOR)


def late_starts(
    world: Snapshot, patience: timedelta, *, since: datetime, verdicts: bool
) -> Iterator[LostAttempt]:
    """Yield the attempts over several nodes of which one has not started its ranks in time.

    All ranks start or none, and the time for fetching is not limited. Until every node is ready no
    rank has been started, so giving up loses nothing; after that `verdicts` must be allowed,
    because a silent node may be training. `since` is the time at which this leader's term began.
    """
    given_up = set()
    for attempt in world.attempts:
        if attempt.id in given_up or not attempt.gang or not attempt.is_starting:
            continue
        node = world.nodes[attempt.node_id]
        if attempt.prepared_at is None:
            fetches = attempt.phase is Phase.PREPARING and node.heard
            if fetches or attempt.phase is Phase.READY:
                continue  # a ready node waits for another one
        elif not verdicts:
            continue
        waits_since = max(attempt.prepared_at or attempt.assigned_at, since)
        if world.now - waits_since >= patience:
            given_up.add(attempt.id)
            yield LostAttempt(
                attempt,
                f"{node.name} did not start its ranks within {patience.total_seconds():.0f} s, so "
                "all nodes were freed.",
            )


def conclude_late(session: Session, late: LostAttempt, now: datetime) -> bool:
    """Conclude an attempt whose ranks were not all started, and free its nodes.

    Returns False if the attempt or its phase on the late node has changed meanwhile.
    """
    job = session.get_one(Job, late.attempt.job_id)
    attempt = session.get_one(Attempt, late.attempt.id)
    part = session.get_one(AttemptPart, (attempt.id, late.attempt.position))
    if attempt.state not in LIVE_ATTEMPT or part.phase is not late.attempt.phase:
        return False
    return conclude(
        session, job, attempt, Outcome.START_FAILED, message=late.why, now=now, actor=ACTOR
    )


def _why_lost(attempt: AttemptSnapshot, world: Snapshot) -> str | None:
    node, now = world.nodes[attempt.node_id], world.now
    taken_up = attempt.phase is not None
    if node.heard and taken_up and attempt.boot_id and node.boot_id != attempt.boot_id:
        return f"{node.name} was restarted while the job was on it."
    if node.heard:
        assert node.last_seen_at is not None
        since = attempt.missing_since
        if since is not None and node.last_seen_at - max(since, attempt.assigned_at) >= UNLISTED:
            return f"{node.name} has not listed the job since {clock(since, now)}."
        return None
    if now < attempt.hold_end + AFTER_LEASE:
        return None
    silent = f"since {clock(node.last_seen_at, now)}" if node.last_seen_at else "ever"
    return (
        f"{node.name} has not been heard from {silent}, and the lease ended at "
        f"{clock(attempt.hold_end, now)}: the node has stopped the job by itself by now."
    )
