"""A heartbeat: the node says all that it observes; what follows from it is written down.

Every attempt that a node tells about is one of (job, epoch); the job's row is locked before
anything about it is written, so that the node, its owner and the scheduler take turns.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from api.bells import Bells
from api.clean_text import clean_text, cleaned
from api.identity import NodeIdentity
from api.node_classes import hardware_of, join_class, refit, same_kind
from core import attempts
from core.messages import ExitRecord, Heartbeat, Observed, Phase
from core.policy import usable_end
from core.states import LIVE_ATTEMPT, AttemptState, NodeState, Outcome
from core.tables import Attempt, Job, Lease, Node, NodeClass
from core.transitions import advance, note
from strategies.hardware import Hardware
from strategies.trust.certificate import Certificate

SLACK = timedelta(seconds=30)  # between the node's clock and ours


def newly_kept(session: Session, node_id: str, beat: Heartbeat) -> list[tuple[str, str]]:
    """Job and attempt of what this heartbeat is the first to call kept."""
    told = {(seen.job_id, seen.epoch) for seen in beat.attempts if seen.kept}
    if not told:
        return []
    rows = session.execute(
        select(Attempt.job_id, Attempt.epoch, Attempt.id).where(
            Attempt.node_id == node_id,
            Attempt.files_kept.is_(False),
            Attempt.job_id.in_({job_id for job_id, _ in told}),
        )
    )
    return [(job_id, attempt_id) for job_id, epoch, attempt_id in rows if (job_id, epoch) in told]


def take_in(
    session: Session,
    identity: NodeIdentity,
    beat: Heartbeat,
    *,
    now: datetime,
    bells: Bells,
) -> Node:
    """Write down what a node observes; the node's row."""
    node = session.get(Node, identity.id)
    assert node is not None
    observed = {(seen.job_id, seen.epoch): seen for seen in beat.attempts}
    unwanted = {key for key, seen in observed.items() if seen.phase is not Phase.EXITED}
    for job, attempt in _attempts_of(session, node, beat.attempts):
        seen = observed.get((job.id, attempt.epoch))
        if seen is None:
            if attempt.state in LIVE_ATTEMPT and attempt.missing_since is None:
                attempt.missing_since = now
        else:
            attempt.missing_since = None
            _take_attempt(session, node, beat, job, attempt, seen, now=now, bells=bells)
        rebooted = bool(attempt.boot_id) and attempt.boot_id != beat.boot_id
        if rebooted and attempt.state in LIVE_ATTEMPT and attempt.state != AttemptState.ASSIGNED:
            attempts.conclude(
                session,
                job,
                attempt,
                Outcome.NODE_LOST,
                message=f"{node.name} was restarted under it.",
                now=now,
                actor=node.id,
            )
            bells.scheduler = True
            bells.jobs.add(job.id)
        if attempt.state in LIVE_ATTEMPT:
            unwanted.discard((job.id, attempt.epoch))
    # What was given up here may still be running there: then the node is not clean yet.
    _take_node(session, node, beat, is_clean=beat.clean and not unwanted, now=now, bells=bells)
    return node


def _attempts_of(
    session: Session, node: Node, seen: Sequence[Observed]
) -> Sequence[tuple[Job, Attempt]]:
    """The attempts that are live on the node or that it tells about, their jobs locked."""
    job_ids = {one.job_id for one in seen} | set(
        session.scalars(
            select(Attempt.job_id).where(
                Attempt.node_id == node.id, Attempt.state.in_(LIVE_ATTEMPT)
            )
        )
    )
    if not job_ids:
        return []
    session.execute(
        select(Job.id).where(Job.id.in_(job_ids)).order_by(Job.id).with_for_update(key_share=True)
    ).all()
    rows = session.execute(
        select(Job, Attempt)
        .join(Attempt, Attempt.job_id == Job.id)
        .where(Attempt.node_id == node.id, Job.id.in_(job_ids))
        .order_by(Job.id, Attempt.epoch)
        .execution_options(populate_existing=True)
    )
    return [(job, attempt) for job, attempt in rows]


def _take_attempt(
    session: Session,
    node: Node,
    beat: Heartbeat,
    job: Job,
    attempt: Attempt,
    seen: Observed,
    *,
    now: datetime,
    bells: Bells,
) -> None:
    if seen.launcher is not None and attempt.launcher != seen.launcher:
        attempt.launcher = str(seen.launcher)
    if seen.certificate is not None and attempt.epoch == job.epoch:
        _take_certificate(session, node, job, seen.certificate, now=now, bells=bells)
    if seen.phase is Phase.EXITED:
        _take_exit(session, node, job, attempt, seen, now=now, bells=bells)
        return
    if attempt.state not in LIVE_ATTEMPT or attempt.epoch != job.epoch:
        return  # it is over here; the node is told so by not being asked for it
    before = attempt.state
    if attempt.state is AttemptState.ASSIGNED:
        attempt.boot_id = beat.boot_id
        attempts.start(session, attempt, now=now, actor=node.id)
    if seen.phase is Phase.RUNNING and attempt.state is AttemptState.STARTING:
        attempts.run(session, job, attempt, now=now, actor=node.id)
    if seen.phase is Phase.STOPPING and attempt.state is not AttemptState.STOPPING:
        _stops_by_itself(session, node, job, attempt, now=now)
    if attempt.state is not before:
        bells.jobs.add(job.id)


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
        reason_code=certificate.verdict,
    )
    bells.jobs.add(job.id)


def _take_exit(
    session: Session,
    node: Node,
    job: Job,
    attempt: Attempt,
    seen: Observed,
    *,
    now: datetime,
    bells: Bells,
) -> None:
    record = seen.exit
    if record is not None and (record.job_id, record.epoch) == (job.id, attempt.epoch):
        record = ExitRecord.model_validate(cleaned(record.model_dump(mode="json")))
        if attempt.state in LIVE_ATTEMPT:
            attempts.conclude(
                session,
                job,
                attempt,
                record.outcome,
                message=record.reason,
                now=now,
                actor=node.id,
                record=record,
            )
            bells.scheduler = True
            bells.jobs.add(job.id)
        elif attempt.exit is None:
            attempt.exit = record.model_dump(mode="json")
            note(
                session,
                job.id,
                "late_exit_reported",
                now=now,
                message=f"{node.name} told later how attempt {attempt.epoch} ended: "
                f"{record.reason}",
                actor=node.id,
                epoch=attempt.epoch,
                reason_code=str(record.outcome),
            )
            bells.jobs.add(job.id)
    if seen.kept and not attempt.files_kept:
        attempt.files_kept = True
        bells.scheduler = True  # the job may wait for its checkpoint
        bells.jobs.add(job.id)


def _stops_by_itself(
    session: Session, node: Node, job: Job, attempt: Attempt, *, now: datetime
) -> None:
    """The node's own deadline has come before anybody here asked."""
    lease = session.get(Lease, attempt.lease_id)
    assert lease is not None
    lease_is_over = usable_end(lease.hold_end, lease.grace_s) <= now + SLACK
    reason = Outcome.LEASE_ENDED if lease_is_over else Outcome.TIME_LIMIT
    message = "Its lease ends." if lease_is_over else "Its wall time is over."
    attempts.ask_to_stop(
        session, job, reason, now=now, message=f"Saving and stopping: {message}", actor=node.id
    )


def _take_node(
    session: Session, node: Node, beat: Heartbeat, *, is_clean: bool, now: datetime, bells: Bells
) -> None:
    if beat.boot_id != node.boot_id and node.boot_id:
        note(
            session,
            node.id,
            "rebooted",
            now=now,
            message=f"{node.name} was restarted.",
            actor=node.id,
        )
    if is_clean and not node.clean:
        bells.scheduler = True
    node.boot_id = beat.boot_id
    node.incarnation = beat.incarnation
    node.clean = is_clean
    node.telemetry = beat.telemetry.model_dump(mode="json")
    node.last_seen_at = now
    inventory = cleaned(beat.inventory.model_dump(mode="json"))
    if inventory != node.inventory:
        node.inventory = inventory
        _take_inventory(session, node, beat, now=now)
        bells.scheduler = True
    if node.state is NodeState.PENDING:
        advance(
            session,
            node,
            NodeState.READY,
            now=now,
            reason_code="first_heartbeat",
            message="Ready.",
            actor=node.id,
        )
        bells.scheduler = True


def _take_inventory(session: Session, node: Node, beat: Heartbeat, *, now: datetime) -> None:
    """Changed hardware is a new version of the class, or another class if others share it."""
    known = session.get(NodeClass, node.class_name, with_for_update={"key_share": True})
    assert known is not None
    hardware = hardware_of(beat.inventory, known.name)
    if same_kind(Hardware.model_validate(known.hardware), hardware):
        return
    others = session.scalars(
        select(Node.id).where(Node.class_name == known.name, Node.id != node.id).limit(1)
    ).first()
    if others is None:
        refit(known, hardware)
    else:
        node.class_name = join_class(session, beat.inventory, named=None)
    note(
        session,
        node.id,
        "hardware_changed",
        now=now,
        message=f"{node.name} has other hardware than before; it is of class {node.class_name}.",
        actor=node.id,
    )
