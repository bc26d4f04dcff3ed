"""Reading of a cycle's snapshot from the database.

Read without the writer's lock. The queries are built once, at import: an idle cluster's cycle spent
four fifths of its CPU on building them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from sqlalchemy import Connection, and_, bindparam, func, or_, select
from sqlalchemy.orm import Session

from core.leases import adjacent as touching
from core.leases import appointments
from core.leases.active_policies import active_policies
from core.leases.appointments import Due
from core.policy.document import Policy, policy_of
from core.policy.grid import usable_end
from core.policy.verdict import NodeRef
from core.spec.workbench import MOST_HELD_GIB
from core.states import (
    INTERRUPTED,
    LIVE_ATTEMPT,
    LIVE_LEASE,
    AttemptState,
    JobState,
    LeaseState,
    NodeState,
)
from core.tables.files import Checkpoint
from core.tables.jobs import Attempt, AttemptPart, Job
from core.tables.kinds import AppointmentKind, AppointmentState, LeaseKind, SlotState
from core.tables.leases import Appointment, Lease, Occupancy
from core.tables.nodes import Node, NodeClass, NodeSlot
from core.tables.people import Lab, Membership, User
from core.tables.workspaces import Workspace
from core.workspaces.writers import is_closing
from scheduler.queue.fitting import CHUNK, Fitting, Need
from scheduler.queue.turns import read_turns
from scheduler.snapshot import (
    LENDING,
    AttemptSnapshot,
    LeaseSnapshot,
    NodeHold,
    NodeSnapshot,
    Snapshot,
    WaitingJob,
)
from strategies.plan.hardware import Hardware

# After so long a job no longer waits until the node has copied the last attempt's files.
SAVING_PATIENCE = timedelta(minutes=10)
CUTS_IN_VAIN = 2  # a job stopped so often before it saved is not started in a gap again

CLASSES = select(NodeClass.name, NodeClass.version, NodeClass.hardware)
NODES = select(
    Node.id,
    Node.name,
    Node.class_name,
    Node.state,
    Node.reason,
    Node.clean,
    Node.slots,
    Node.sharing,
    Node.boot_id,
    Node.last_seen_at,
    Node.unreachable_since,
)
UNREADY_SLOTS = select(NodeSlot.node_id, NodeSlot.slot, NodeSlot.state).where(
    NodeSlot.state != SlotState.READY
)
NAMED_BY_WAITING = select(Job.lease_id).where(
    Job.state == JobState.QUEUED, Job.lease_id.is_not(None)
)
LEASES = select(
    Lease.id,
    Lease.user_id,
    Lease.node_id,
    Lease.kind,
    Lease.state,
    Lease.reason,
    Lease.hold_start,
    Lease.hold_end,
    Lease.grace_s,
    Lease.counts,
    Lease.began_at,
    Lease.unusable_s,
    Lease.num_slots,
    Lease.together,
).where(or_(Lease.state.in_(LIVE_LEASE), Lease.id.in_(NAMED_BY_WAITING)))
SLOTS_OF_PARTS = (
    select(Lease.id, NodeSlot.slot)
    .join(NodeSlot, NodeSlot.lease_id == Lease.id)
    .where(Lease.num_slots.is_not(None))
)
PLANNED_RECLAIMS = select(Appointment.lease_id, Appointment.due_at).where(
    Appointment.kind == AppointmentKind.RECLAIM,
    Appointment.state.in_((AppointmentState.DUE, AppointmentState.CLAIMED)),
)
HOLDS = (
    select(
        Occupancy.node_id,
        Occupancy.lease_id,
        Occupancy.hold_start,
        Occupancy.hold_end,
        Occupancy.kind,
        Occupancy.num_slots,
    )
    .where(Occupancy.live, Occupancy.hold_end > bindparam("now"))
    .order_by(Occupancy.node_id, Occupancy.hold_start)
)
ATTEMPTS = (
    select(
        Attempt.id,
        Attempt.job_id,
        Attempt.epoch,
        AttemptPart.node_id,
        AttemptPart.lease_id,
        Attempt.state,
        Job.state.label("job_state"),
        AttemptPart.position,
        AttemptPart.slots,
        AttemptPart.phase,
        AttemptPart.boot_id,
        Attempt.assigned_at,
        Attempt.prepared_at,
        AttemptPart.missing_since,
        Lease.hold_end,
        Attempt.started_at,
        Attempt.held_until,
        Attempt.idle_since,
        Attempt.gpu_held_gib,
        Job.spec["workbench"]["when_idle"].as_string().label("when_idle"),
        Attempt.rendezvous.is_not(None).label("gang"),
        Job.user_id,
        Job.name.label("job_name"),
        (Job.user_id != Lease.user_id).label("guest"),
        Job.wall_time_s,
        Job.used_s,
    )
    .join(Job, Job.id == Attempt.job_id)
    .join(AttemptPart, AttemptPart.attempt_id == Attempt.id)
    .join(Lease, Lease.id == AttemptPart.lease_id)
    .where(Attempt.state.in_(LIVE_ATTEMPT), AttemptPart.ended_at.is_(None))
    .order_by(Attempt.assigned_at, AttemptPart.position)
)
EXITS = (
    select(AttemptPart.lease_id, Job.user_id, func.max(AttemptPart.ended_at))
    .join(Attempt, Attempt.id == AttemptPart.attempt_id)
    .join(Job, Job.id == Attempt.job_id)
    .where(AttemptPart.lease_id.in_(bindparam("lease_ids", expanding=True)))
    .group_by(AttemptPart.lease_id, Job.user_id)
)
LABS = (
    select(Membership.user_id, Lab.name)
    .join(Lab, Lab.id == Membership.lab_id)
    .order_by(Lab.id.desc())
)
DISABLED = select(User.id).where(User.disabled)
WAITING = select(
    Job.id,
    Job.name,
    Job.user_id,
    Job.epoch,
    Job.lease_id,
    Job.created_at,
    Job.queued_at,
    Job.not_before,
    Job.wall_time_s,
    Job.used_s,
    Job.infrastructure_failures,
    Job.reason_code,
    Job.reason,
    Job.predicted_start,
).where(Job.state == JobState.QUEUED)
WAITING_AMONG = WAITING.where(Job.id.in_(bindparam("job_ids", expanding=True)))
STILL_WAITING = select(Job.id, Job.epoch, Job.lease_id).where(Job.state == JobState.QUEUED)
SAVING = (
    select(Job.id, AttemptPart.node_id)
    .join(Attempt, and_(Attempt.job_id == Job.id, Attempt.epoch == Job.epoch))
    .join(AttemptPart, AttemptPart.attempt_id == Attempt.id)
    .where(
        Job.state == JobState.QUEUED,
        AttemptPart.files_kept.is_(False),
        AttemptPart.exit.is_not(None),
        Attempt.ended_at > bindparam("since"),
    )
    .order_by(AttemptPart.position.desc())
)
CLOSING_WORKSPACES = (
    select(Workspace.user_id, Attempt)
    .join(Attempt, Attempt.id == Workspace.writer_id)
    .where(Attempt.state == AttemptState.EXITED)
)
NEWEST_SAVED = (
    select(func.max(Checkpoint.epoch))
    .where(Checkpoint.job_id == Job.id)
    .correlate(Job)
    .scalar_subquery()
)
STOPPED_IN_VAIN = (
    select(Attempt.job_id, func.count())
    .join(Job, Job.id == Attempt.job_id)
    .where(
        Job.state == JobState.QUEUED,
        Job.interruptions >= CUTS_IN_VAIN,
        Attempt.outcome.in_(INTERRUPTED),
        Attempt.epoch > func.coalesce(NEWEST_SAVED, 0),
        # Resuming a job that was held resets its count.
        or_(Job.queued_at.is_(None), Attempt.assigned_at >= Job.queued_at),
    )
    .group_by(Attempt.job_id)
)


def take_snapshot(
    session: Session,
    now: datetime,
    *,
    fitting: Fitting,
    unreachable_after_s: float,
    before: Snapshot | None = None,
) -> Snapshot:
    """Read a snapshot of the world.

    `fitting` caches, from one cycle to the next, the classes that each job fits. A node is heard
    if its last heartbeat is at most `unreachable_after_s` seconds old. Jobs that wait as in
    `before`, a snapshot of the same cycle, are taken from it if there are the same classes.
    """
    connection = session.connection()  # for rows it takes a third of the time of a session
    nodes = _nodes(connection, now, timedelta(seconds=unreachable_after_s))
    hardware = {
        name: (version, Hardware.model_validate(document))
        for name, version, document in connection.execute(CLASSES)
    }
    used = {node.class_name for node in nodes.values() if node.state is not NodeState.RETIRED}
    fitting.offer({name: hardware[name] for name in used})
    classes = {name: hardware[name][1] for name in used}
    leases = _leases(connection, nodes)
    attempts = _attempts(connection, leases)
    policies = _policies(session, nodes)
    lends = any(policy.scheduling.shares for policy in policies.values())
    walked_in = _in_walk_ins(attempts, leases) if lends else []
    known = before.waiting if before is not None and before.classes == classes else ()
    waiting = _waiting(session, now, fitting, also=walked_in, known=known)
    last_exit, used_leases = _exits(connection, leases)
    return Snapshot(
        now=now,
        nodes=nodes,
        classes=classes,
        holds=_holds(connection, now),
        leases=leases,
        attempts=attempts,
        last_exit=last_exit,
        waiting=waiting,
        due=_due(session, now),
        reclaim_after_s=_reclaim_after(connection, leases),
        policies=policies,
        labs=_labs(connection) if lends else {},
        savers=frozenset(one for one in walked_in if fitting.need_of(one).checkpointable),
        used=used_leases,
        other_classes=fitting.other_classes,
    )


def _nodes(connection: Connection, now: datetime, patience: timedelta) -> dict[str, NodeSnapshot]:
    rows = connection.execute(NODES)
    not_ready: dict[tuple[str, SlotState], set[int]] = {}
    for slot in connection.execute(UNREADY_SLOTS):
        not_ready.setdefault((slot.node_id, slot.state), set()).add(slot.slot)
    nodes = {}
    for row in rows:
        heard = row.last_seen_at is not None and now - row.last_seen_at <= patience
        unfit, dirty = (
            frozenset(not_ready.get((row.id, state), ()))
            for state in (SlotState.QUARANTINED, SlotState.DIRTY)
        )
        nodes[row.id] = NodeSnapshot(**row._mapping, heard=heard, unfit=unfit, dirty=dirty)
    return nodes


def _policies(session: Session, nodes: Mapping[str, NodeSnapshot]) -> dict[str, Policy]:
    policies = active_policies(session)
    refs = (NodeRef(node.id, node.name, node.class_name, node.slots) for node in nodes.values())
    return {ref.id: policy_of(ref, policies) for ref in refs} if policies else {}


def _leases(connection: Connection, nodes: Mapping[str, NodeSnapshot]) -> dict[str, LeaseSnapshot]:
    rows = connection.execute(LEASES)
    slots: dict[str, set[int]] = {}
    for lease_id, slot in connection.execute(SLOTS_OF_PARTS):
        slots.setdefault(lease_id, set()).add(slot)
    leases = {}
    for row in rows:
        fields = dict(row._mapping)
        usable = usable_end(row.hold_end, fields.pop("grace_s"))
        has = frozenset(slots.get(row.id, ()))
        leases[row.id] = LeaseSnapshot(**fields, usable_end=usable, slots=has)
    # On a node that is not ready the next lease could not begin.
    ready = [one for one in leases.values() if nodes[one.node_id].state is NodeState.READY]
    follower = touching.followers(ready)
    for lease_id, after in follower.items():
        last = touching.last_of(after, follower)
        leases[lease_id] = replace(leases[lease_id], following=after.id, usable_end=last.usable_end)
    return leases


def _due(session: Session, now: datetime) -> dict[str, list[Due]]:
    by_lease: dict[str, list[Due]] = {}
    for due in appointments.due(session, now):
        by_lease.setdefault(due.lease_id, []).append(due)
    return by_lease


def _reclaim_after(connection: Connection, leases: Mapping[str, LeaseSnapshot]) -> dict[str, float]:
    rows = connection.execute(PLANNED_RECLAIMS)
    return {
        lease_id: (due_at - leases[lease_id].hold_start).total_seconds()
        for lease_id, due_at in rows
        if lease_id in leases
    }


def _holds(connection: Connection, now: datetime) -> list[NodeHold]:
    rows = connection.execute(HOLDS, {"now": now})
    return [NodeHold(*row) for row in rows]


def _attempts(connection: Connection, leases: Mapping[str, LeaseSnapshot]) -> list[AttemptSnapshot]:
    rows = connection.execute(ATTEMPTS)
    attempts = []
    for row in rows:
        fields = dict(row._mapping)
        begun = fields.pop("started_at") or row.assigned_at
        fields["slots"] = tuple(row.slots)
        left_s = fields.pop("wall_time_s") - fields.pop("used_s")
        fields["hold_end"] = _held_until(row.lease_id, leases) or row.hold_end
        held_until = fields.pop("held_until")
        choice, idle_since, held_gib = (
            fields.pop(name) for name in ("when_idle", "idle_since", "gpu_held_gib")
        )
        is_idle = idle_since is not None and row.job_state is JobState.RUNNING
        is_free = held_gib is not None and held_gib <= MOST_HELD_GIB
        fields["lends"] = choice in LENDING and is_idle and is_free
        ends_at = held_until or begun + timedelta(seconds=left_s)
        attempts.append(AttemptSnapshot(**fields, ends_at=ends_at))
    return attempts


def _held_until(lease_id: str, leases: Mapping[str, LeaseSnapshot]) -> datetime | None:
    """Return the end of a lease, or of the last back-to-back lease after it; None if it is over."""
    lease = leases.get(lease_id)
    while lease is not None and lease.following is not None:
        lease = leases[lease.following]
    return None if lease is None else lease.hold_end


def _exits(
    connection: Connection, leases: Mapping[str, LeaseSnapshot]
) -> tuple[dict[str, datetime], frozenset[str]]:
    """Map lease id -> time of the last exit in it; also return the ids of the leases in which a
    job of the owner has run."""
    held = [
        one.id for one in leases.values() if one.state in (LeaseState.ACTIVE, LeaseState.ENDING)
    ]
    rows = connection.execute(EXITS, {"lease_ids": held}).all()
    exits: dict[str, datetime] = {}
    for lease_id, _, ended_at in rows:
        if ended_at is not None:
            exits[lease_id] = max(ended_at, exits.get(lease_id, ended_at))
    used = (lease_id for lease_id, user_id, _ in rows if leases[lease_id].user_id == user_id)
    return exits, frozenset(used)


def _in_walk_ins(
    attempts: Sequence[AttemptSnapshot], leases: Mapping[str, LeaseSnapshot]
) -> list[str]:
    """Return the ids of the jobs that run in walk-ins, each once."""
    found = []
    for attempt in attempts:
        lease = leases.get(attempt.lease_id)
        if lease is not None and lease.kind is LeaseKind.WALK_IN:
            found.append(attempt.job_id)
    return list(dict.fromkeys(found))


def _labs(connection: Connection) -> dict[str, str]:
    """Map user id -> name of the user's lab; of several labs the one with the first id."""
    rows = connection.execute(LABS)
    return {user_id: name for user_id, name in rows}


def _waiting(
    session: Session,
    now: datetime,
    fitting: Fitting,
    *,
    also: Sequence[str],
    known: Sequence[WaitingJob],
) -> list[WaitingJob]:
    """Return the queued jobs; `fitting` learns these and the jobs in `also`.

    Those in `known` whose attempts and leases have not changed are returned as they are there: to
    read ten thousand anew takes 0.25 s of a core, and several times in a cycle nodes change hands.
    """
    connection = session.connection()
    waiting, new = _still_waiting(connection, fitting, known) if known else ([], [])
    if not known or len(new) > CHUNK:
        waiting, rows = [], connection.execute(WAITING).all()
    else:
        rows = connection.execute(WAITING_AMONG, {"job_ids": new}).all() if new else []
    fitting.learn(session, [*(job.id for job in waiting), *(row.id for row in rows), *also])
    if not rows:
        return waiting
    disabled = set(connection.scalars(DISABLED))
    saving = _saving(connection, now)
    closing = _closing_workspaces(session, now)
    in_vain = _stopped_in_vain(connection)
    turns = read_turns(session)
    for row in rows:
        need = fitting.need_of(row.id)
        waiting.append(
            WaitingJob(
                id=row.id,
                name=row.name,
                user_id=row.user_id,
                epoch=row.epoch,
                lease_ids=_leases_of(row.lease_id, need),
                ranks=need.ranks,
                owner_disabled=row.user_id in disabled,
                queued_at=row.queued_at or row.created_at,
                not_before=row.not_before,
                wall_time_s=row.wall_time_s,
                wall_left_s=max(1, row.wall_time_s - row.used_s),
                failures=row.infrastructure_failures,
                saving_on=saving.get(
                    row.id, closing.get(row.user_id) if need.brings_workspace else None
                ),
                classes=fitting.classes_for(row.id),
                num_nodes=need.nodes,
                may_be_cut=need.checkpointable and in_vain.get(row.id, 0) < CUTS_IN_VAIN,
                in_vain=in_vain.get(row.id, 0),
                told=(row.reason_code, row.reason, row.predicted_start),
                turn=turns.get(row.id),
                is_script=need.is_script,
                is_workbench=need.is_workbench,
                memory_slots=fitting.memory_slots(row.id),
            )
        )
    return waiting


def _still_waiting(
    connection: Connection, fitting: Fitting, known: Sequence[WaitingJob]
) -> tuple[list[WaitingJob], list[str]]:
    """Return the jobs in `known` that wait for the same leases since the same attempt, and the ids
    of all other queued jobs."""
    before = {job.id: job for job in known}
    waiting, new = [], []
    for job_id, epoch, lease_id in connection.execute(STILL_WAITING):
        job = before.get(job_id)
        if job is not None and (job.epoch, job.lease_ids) == (
            epoch,
            _leases_of(lease_id, fitting.need_of(job_id)),
        ):
            waiting.append(job)
        else:
            new.append(job_id)
    return waiting, new


def _leases_of(lease_id: str | None, need: Need) -> tuple[str, ...]:
    """Return the ids of the leases that a job names.

    For a single lease the job's row counts, not its spec: the lease may have been swapped since.
    """
    if len(need.leases) > 1:
        return need.leases
    return (lease_id,) if lease_id else ()


def _saving(connection: Connection, now: datetime) -> dict[str, str]:
    """Map job id -> id of a node that is still copying the last attempt's files to the store."""
    rows = connection.execute(SAVING, {"since": now - SAVING_PATIENCE})
    return {job_id: node_id for job_id, node_id in rows}


def _closing_workspaces(session: Session, now: datetime) -> dict[str, str]:
    """Map user id -> id of the node that is still bringing the last snapshot of the user's
    workspace."""
    rows = session.execute(CLOSING_WORKSPACES)
    return {user_id: attempt.node_id for user_id, attempt in rows if is_closing(attempt, now=now)}


def _stopped_in_vain(connection: Connection) -> dict[str, int]:
    """Map queued job id -> number of attempts since its newest checkpoint that the platform
    stopped."""
    rows = connection.execute(STOPPED_IN_VAIN)
    return {job_id: count for job_id, count in rows}
