"""Heartbeats: a node reports all that it observes; the consequences are written to the database.

Every attempt that a node reports is named by (job, epoch), and the node has a part in it. The job's
row is locked before anything about it is written, so that its nodes, its owner and the scheduler
take turns.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from api.nodes.gpu_health import take_health
from api.nodes.host_uses import take_hosts
from api.nodes.node_classes import hardware_of, join_class, judge_together, refit, same_kind
from api.web.bells import Bells
from api.web.clean_text import clean_text, cleaned
from core.base.reasons import ReasonCode
from core.jobs import attempts
from core.jobs.gang_exit import PartEnd
from core.jobs.idleness import look_at_gpus
from core.leases import node_slots
from core.leases.adjacent import stopped_with
from core.policy.grid import usable_end
from core.spec.spec import MAX_HOLD_ON_FAILURE_S
from core.states import LIVE_ATTEMPT, AttemptState, NodeState, Outcome, Phase, Sharing
from core.tables.jobs import Attempt, AttemptPart, Job
from core.tables.leases import Lease
from core.tables.nodes import Node, NodeClass
from core.transitions import advance, note
from core.wire.messages import (
    ExitRecord,
    Heartbeat,
    HeldSandbox,
    ObservedAttempt,
)
from core.workspaces import writers
from strategies.plan.hardware import Hardware
from strategies.plan.trust.certificate import Certificate

SLACK = timedelta(seconds=30)  # between the node's clock and ours
UNWRITTEN = timedelta(seconds=10)  # a node counts as silent after 30 s

# Built once: to build a query takes longer than to ask it, and every heartbeat asks these.
LIVE_ON = (
    select(Attempt.job_id)
    .join(AttemptPart, AttemptPart.attempt_id == Attempt.id)
    .where(
        AttemptPart.node_id == bindparam("node_id"),
        AttemptPart.ended_at.is_(None),
        Attempt.state.in_(LIVE_ATTEMPT),
    )
)
LOCK = (
    select(Job.id)
    .where(Job.id.in_(bindparam("job_ids", expanding=True)))
    .order_by(Job.id)
    .with_for_update(key_share=True)
)
IF_FREE = (
    select(Node.id)
    .where(Node.id == bindparam("node_id"))
    .with_for_update(key_share=True, skip_locked=True)
)
PARTS_ON = (
    select(Job, Attempt, AttemptPart)
    .join(Attempt, Attempt.job_id == Job.id)
    .join(AttemptPart, AttemptPart.attempt_id == Attempt.id)
    .where(
        AttemptPart.node_id == bindparam("node_id"),
        Job.id.in_(bindparam("job_ids", expanding=True)),
    )
    .order_by(Job.id, Attempt.epoch)
    .execution_options(populate_existing=True)
)


def newly_kept(session: Session, node_id: str, beat: Heartbeat) -> list[tuple[str, str]]:
    """Return (job id, attempt id) of attempts whose files this heartbeat is first to call kept."""
    told = {(seen.job_id, seen.epoch) for seen in beat.attempts if seen.kept}
    if not told:
        return []
    rows = session.execute(
        select(Attempt.job_id, Attempt.epoch, Attempt.id)
        .join(AttemptPart, AttemptPart.attempt_id == Attempt.id)
        .where(
            AttemptPart.node_id == node_id,
            AttemptPart.files_kept.is_(False),
            Attempt.job_id.in_({job_id for job_id, _ in told}),
        )
    )
    return [(job_id, attempt_id) for job_id, epoch, attempt_id in rows if (job_id, epoch) in told]


def take_in(
    session: Session,
    node: Node,
    beat: Heartbeat,
    *,
    now: datetime,
    bells: Bells,
) -> None:
    """Write the observations of a node to the database."""
    observed = {(seen.job_id, seen.epoch): seen for seen in beat.attempts}
    unwanted = {key for key, seen in observed.items() if seen.phase is not Phase.EXITED}
    slots_of: dict[tuple[str, int], Sequence[int]] = {}
    for job, attempt, part in _parts_on(session, node, beat.attempts):
        seen = observed.get((job.id, attempt.epoch))
        if seen is None:
            if _is_live(attempt, part) and part.missing_since is None:
                part.missing_since = now
        else:
            part.missing_since = None
            _take_part(session, node, beat, job, attempt, part, seen, now=now, bells=bells)
        rebooted = bool(part.boot_id) and part.boot_id != beat.boot_id
        if rebooted and part.phase is not None and _is_live(attempt, part):
            end = PartEnd(None, lost=f"{node.name} was restarted while the attempt ran.")
            _end_part(session, node, job, attempt, part, end, now=now, bells=bells)
        slots_of[job.id, attempt.epoch] = part.slots
        if _is_live(attempt, part):
            unwanted.discard((job.id, attempt.epoch))
    # An attempt that was given up here may still run on the node: then it is not clean yet.
    left_on = [slots_of.get(key, ()) for key in unwanted]
    _take_node(session, node, beat, dirty=_dirty(node, beat, left_on), now=now, bells=bells)


def _dirty(node: Node, beat: Heartbeat, left_on: Sequence[Sequence[int]]) -> set[int]:
    """Return the slots that processes of ended attempts may be left on.

    `left_on` are the slots of attempts that should not run, each empty if it is not known: then it
    may be any slot, and so it is if an older worker does not name them.
    """
    every = set(range(node.slots))
    found = set(beat.dirty_slots or (() if beat.clean else every))
    return found.union(*(slots or every for slots in left_on)) & every


def _is_live(attempt: Attempt, part: AttemptPart) -> bool:
    return attempt.state in LIVE_ATTEMPT and part.ended_at is None


def _parts_on(
    session: Session, node: Node, seen: Sequence[ObservedAttempt]
) -> Sequence[tuple[Job, Attempt, AttemptPart]]:
    """Lock the jobs of attempts that are live on the node or reported by it; return their parts."""
    here = {"node_id": node.id}
    job_ids = {one.job_id for one in seen} | set(session.scalars(LIVE_ON, here))
    if not job_ids:
        return []
    named = {"job_ids": sorted(job_ids)}
    session.execute(LOCK, named).all()
    rows = session.execute(PARTS_ON, {**here, **named})
    return [(job, attempt, part) for job, attempt, part in rows]


def _take_part(
    session: Session,
    node: Node,
    beat: Heartbeat,
    job: Job,
    attempt: Attempt,
    part: AttemptPart,
    seen: ObservedAttempt,
    *,
    now: datetime,
    bells: Bells,
) -> None:
    if seen.launcher is not None and attempt.launcher != seen.launcher:
        attempt.launcher = str(seen.launcher)
    if seen.certificate is not None and attempt.epoch == job.epoch:
        _take_certificate(session, node, job, seen.certificate, now=now, bells=bells)
    if seen.preflight is not None and attempt.preflight is None:
        attempt.preflight = cleaned(seen.preflight.model_dump(mode="json"))
        session.flush()  # an exit in the same heartbeat reads the row again
        bells.jobs.add(job.id)
    if take_hosts(session, node, job, attempt, part, seen, now=now):
        bells.jobs.add(job.id)
    if seen.phase is Phase.EXITED:
        _take_exit(session, node, job, attempt, part, seen, now=now, bells=bells)
        return
    if not _is_live(attempt, part) or attempt.epoch != job.epoch:
        return  # the part is over here; the node learns it from its absence in the orders
    before = attempt.state
    if part.phase is None:
        part.boot_id = beat.boot_id
    if seen.has_output:
        part.has_output = True
    if part.phase is not seen.phase:
        part.phase = seen.phase
        _together(session, attempt, part, node, now=now, bells=bells)
    if seen.held is not None and attempt.held_until is None and seen.phase is not Phase.STOPPING:
        _take_hold(session, node, job, attempt, seen.held, now=now)
        bells.jobs.add(job.id)
        bells.nodes.add(node.name)  # its deadline has moved
    if (
        "workbench" in job.spec
        and seen.phase is Phase.RUNNING
        and look_at_gpus(session, job, attempt, part, beat.telemetry, now=now)
    ):
        bells.scheduler = True
    if seen.phase is Phase.RUNNING and attempt.state is AttemptState.STARTING:
        attempts.run(session, job, attempt, now=now, actor=node.id)
    if seen.phase is Phase.STOPPING and attempt.state is not AttemptState.STOPPING:
        _stops_by_itself(session, node, job, attempt, part, now=now)
    if attempt.state is not before:
        bells.jobs.add(job.id)


def _take_hold(
    session: Session, node: Node, job: Job, attempt: Attempt, held: HeldSandbox, *, now: datetime
) -> None:
    lease = stopped_with(session, session.get_one(Lease, attempt.lease_id))
    until = now + timedelta(seconds=min(held.left_s, MAX_HOLD_ON_FAILURE_S))
    attempts.hold_sandbox(
        session,
        job,
        attempt,
        outcome=held.outcome,
        why=clean_text(held.reason),
        until=min(until, usable_end(lease.hold_end, lease.grace_s)),
        now=now,
        actor=node.id,
    )


def _together(
    session: Session,
    attempt: Attempt,
    part: AttemptPart,
    node: Node,
    *,
    now: datetime,
    bells: Bells,
) -> None:
    """Start the attempt once all nodes have taken it up; mark it prepared once all are ready."""
    parts = attempts.parts_of(session, attempt)
    if attempt.state is AttemptState.ASSIGNED and all(each.phase is not None for each in parts):
        attempts.start(session, attempt, now=now, actor=node.id)
    waiting = (None, Phase.PREPARING)
    if attempt.prepared_at is None and all(each.phase not in waiting for each in parts):
        attempt.prepared_at = now
        if len(parts) > 1:
            bells.nodes.update(attempts.node_names(session, attempt))


def _take_certificate(
    session: Session,
    node: Node,
    job: Job,
    certificate: Certificate,
    *,
    now: datetime,
    bells: Bells,
) -> None:
    document = cleaned(certificate.model_dump(mode="json"))
    if job.certificate == document:
        return
    job.certificate = document
    session.flush()  # an exit in the same heartbeat reads the row again
    note(
        session,
        job.id,
        "certified",
        now=now,
        message=clean_text(certificate.sentence),
        actor=node.id,
        epoch=job.epoch,
        reason_code=ReasonCode(certificate.verdict),
    )
    bells.jobs.add(job.id)


def _take_exit(
    session: Session,
    node: Node,
    job: Job,
    attempt: Attempt,
    part: AttemptPart,
    seen: ObservedAttempt,
    *,
    now: datetime,
    bells: Bells,
) -> None:
    record = seen.exit
    if record is not None and (record.job_id, record.epoch) == (job.id, attempt.epoch):
        record = ExitRecord.model_validate(cleaned(record.model_dump(mode="json")))
        if _is_live(attempt, part):
            part.phase = Phase.EXITED
            _end_part(session, node, job, attempt, part, PartEnd(record), now=now, bells=bells)
        elif part.exit is None:
            part.exit = record.model_dump(mode="json")
            attempt.exit = attempt.exit or part.exit
            note(
                session,
                job.id,
                "late_exit_reported",
                now=now,
                message=f"{node.name} reported later how attempt {attempt.epoch} ended: "
                f"{record.reason}",
                actor=node.id,
                epoch=attempt.epoch,
                reason_code=record.outcome,
            )
            bells.jobs.add(job.id)
    if seen.kept and not part.files_kept:
        part.files_kept = True
        session.flush()
        if part.position == 0:
            writers.release(session, attempt.id)
        attempt.files_kept = all(each.files_kept for each in attempts.parts_of(session, attempt))
        bells.scheduler = True  # the job may wait for its checkpoint
        bells.jobs.add(job.id)


def _end_part(
    session: Session,
    node: Node,
    job: Job,
    attempt: Attempt,
    part: AttemptPart,
    end: PartEnd,
    *,
    now: datetime,
    bells: Bells,
) -> None:
    attempts.end_part(session, job, attempt, part, end, now=now, actor=node.id)
    if attempt.state in LIVE_ATTEMPT:  # wake the other nodes: they must stop
        bells.nodes.update(attempts.node_names(session, attempt))
    bells.scheduler = True
    bells.jobs.add(job.id)


def _stops_by_itself(
    session: Session, node: Node, job: Job, attempt: Attempt, part: AttemptPart, *, now: datetime
) -> None:
    """Ask an attempt to stop on all nodes, because the node's own deadline came first."""
    lease = session.get(Lease, part.lease_id)
    assert lease is not None
    lease = stopped_with(session, lease)
    lease_is_over = usable_end(lease.hold_end, lease.grace_s) <= now + SLACK
    reason = Outcome.LEASE_ENDED if lease_is_over else Outcome.TIME_LIMIT
    message = "Its lease ends." if lease_is_over else "Its wall time is used up."
    attempts.ask_to_stop(
        session, job, reason, now=now, message=f"Saving and stopping: {message}", actor=node.id
    )


def _take_node(
    session: Session, node: Node, beat: Heartbeat, *, dirty: set[int], now: datetime, bells: Bells
) -> None:
    inventory = cleaned(beat.inventory.model_dump(mode="json"))
    is_new = bool(dirty) or not node.clean or inventory != node.inventory
    if not is_new and _can_wait(session, node, beat, now=now):
        return
    if beat.boot_id != node.boot_id and node.boot_id:
        note(
            session,
            node.id,
            "rebooted",
            now=now,
            message=f"{node.name} was restarted.",
            actor=node.id,
        )
    node.boot_id = beat.boot_id
    node.incarnation = beat.incarnation
    if dirty or not node.clean:
        bells.scheduler |= node_slots.set_dirty(session, node, dirty)
    node.peer_address = clean_text(beat.peer_address)
    node.telemetry = beat.telemetry.model_dump(mode="json")
    node.last_seen_at = now
    if inventory != node.inventory:
        node.inventory = inventory
        node.sharing = beat.inventory.sharing or Sharing.NONE
        _take_inventory(session, node, beat, now=now)
        take_health(session, node, beat.inventory, now=now)
        bells.scheduler = True
    if node.state is NodeState.PENDING:
        advance(
            session,
            node,
            NodeState.READY,
            now=now,
            reason_code=ReasonCode.FIRST_HEARTBEAT,
            message="Ready.",
            actor=node.id,
        )
        bells.scheduler = True


def _can_wait(session: Session, node: Node, beat: Heartbeat, *, now: datetime) -> bool:
    """Return True if the next heartbeat may write what this one says, and the row is not free.

    Bookings of a node lock its row in turn: in the minute in which a window opens, a heartbeat that
    tells nothing new would wait for all of them.
    """
    written = (node.boot_id, node.incarnation, node.peer_address)
    return (
        written == (beat.boot_id, beat.incarnation, clean_text(beat.peer_address))
        and node.state is not NodeState.PENDING
        and node.unreachable_since is None
        and node.last_seen_at is not None
        and now - node.last_seen_at < UNWRITTEN
        and session.scalar(IF_FREE, {"node_id": node.id}) is None
    )


def _take_inventory(session: Session, node: Node, beat: Heartbeat, *, now: datetime) -> None:
    """Record changed hardware: as a new version of the class, or as another class if shared."""
    known = session.get(NodeClass, node.class_name, with_for_update={"key_share": True})
    assert known is not None
    hardware = hardware_of(beat.inventory, known.name)
    if same_kind(Hardware.model_validate(known.hardware), hardware):
        judge_together(session, known)
        return
    others = session.scalars(
        select(Node.id).where(Node.class_name == known.name, Node.id != node.id).limit(1)
    ).first()
    if others is None:
        refit(known, hardware)
    else:
        node.class_name = join_class(session, beat.inventory, named=None)
    node.slots = hardware.slots
    note(
        session,
        node.id,
        "hardware_changed",
        now=now,
        message=f"The hardware of {node.name} has changed; its class is now {node.class_name}.",
        actor=node.id,
    )
