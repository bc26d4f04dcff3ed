"""Snapshot of the world, read once a cycle: nodes, holds, leases, attempts and waiting jobs.

Read without the writer's lock. Each decision made from it is checked again by the transaction that
writes the decision.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import NamedTuple, TypeVar

from sqlalchemy import and_, func, or_, select
from sqlalchemy.orm import Session

from core.agendas.turns import Turn
from core.leases import adjacent as touching
from core.leases import appointments
from core.leases.active_policies import active_policies
from core.leases.appointments import Due
from core.policy.document import DEFAULT, Policy, policy_of
from core.policy.grid import usable_end
from core.policy.sections import Scheduling
from core.policy.verdict import NodeRef
from core.spec.workbench import MOST_HELD_GIB, WhenIdle
from core.states import (
    INTERRUPTED,
    LIVE_ATTEMPT,
    LIVE_LEASE,
    AttemptState,
    JobState,
    LeaseState,
    NodeState,
    Phase,
    Sharing,
)
from core.tables.files import Checkpoint
from core.tables.jobs import Attempt, AttemptPart, Job
from core.tables.kinds import (
    AppointmentKind,
    AppointmentState,
    LeaseKind,
    OccupancyKind,
    SlotState,
)
from core.tables.leases import Appointment, Lease, Occupancy
from core.tables.nodes import Node, NodeClass, NodeSlot
from core.tables.people import Lab, Membership, User
from core.tables.workspaces import Workspace
from core.workspaces.writers import is_closing
from scheduler.queue.fitting import Fitting, Need
from scheduler.queue.turns import read_turns
from strategies.plan.hardware import Hardware

# After so long a job no longer waits until the node has copied the last attempt's files.
SAVING_PATIENCE = timedelta(minutes=10)
LENDING = (WhenIdle.LEND, WhenIdle.RELEASE)
Item = TypeVar("Item")
CUTS_IN_VAIN = 2  # a job stopped so often before it saved is not started in a gap again


@dataclass(frozen=True)
class NodeSnapshot:
    """A node, as it last reported itself."""

    id: str
    name: str
    class_name: str
    state: NodeState
    reason: str
    clean: bool
    boot_id: str
    last_seen_at: datetime | None
    unreachable_since: datetime | None
    heard: bool
    """True if its last heartbeat is recent enough to give it work."""
    unfit: frozenset[int] = frozenset()
    """Slots that are out of service."""
    dirty: frozenset[int] = frozenset()
    """Slots that are not known to be clean; empty if the node is clean."""
    slots: int = 1
    """Number of its slots."""
    sharing: Sharing = Sharing.NONE
    """Jobs of different owners that it can run beside each other."""

    @property
    def usable(self) -> bool:
        """True if the node may be given work, now or later: it is ready and heard."""
        return self.state is NodeState.READY and self.heard


@dataclass(frozen=True)
class LeaseSnapshot:
    """A lease that is not over, or that a waiting job names."""

    id: str
    user_id: str
    node_id: str
    kind: LeaseKind
    state: LeaseState
    reason: str
    hold_start: datetime
    hold_end: datetime
    usable_end: datetime
    """Time at which jobs in it are stopped; with back-to-back leases, that of the last of them."""
    counts: bool = True
    began_at: datetime | None = None
    unusable_s: int = 0
    num_slots: int | None = None
    """Number of slots of the node; None: the whole node."""
    slots: frozenset[int] = frozenset()
    """Slots that it has once it has begun; empty also if it has the whole node."""
    together: str | None = None
    """Id of the first of the leases that were booked together with it, one on each node."""
    following: str | None = None
    """Id of the same owner's next back-to-back lease on the node; no job is stopped between."""


@dataclass(frozen=True)
class AttemptSnapshot:
    """The part of a live attempt on one node, where it has not ended."""

    id: str
    job_id: str
    epoch: int
    node_id: str
    lease_id: str
    state: AttemptState
    job_state: JobState
    position: int
    """Position of the node among the attempt's nodes."""
    slots: tuple[int, ...]
    """Indices of its slots on the node."""
    phase: Phase | None
    """Phase that the node last reported; None before it has taken the attempt up."""
    boot_id: str
    assigned_at: datetime
    prepared_at: datetime | None
    """Time at which all of its nodes were ready to start their ranks."""
    missing_since: datetime | None
    hold_end: datetime
    """End of its lease's hold, or of the last back-to-back lease after it. It may be past: the
    lease of a node that was given up ends before its attempts."""
    ends_at: datetime
    """Latest time at which its wall time is used up."""
    gang: bool = False
    """True if it has several nodes."""
    user_id: str = ""
    job_name: str = ""
    guest: bool = False
    """True if it runs in another user's lease, until that user comes."""
    lends: bool = False
    """True for a workbench that is idle and whose owner lets others have its slots meanwhile."""

    @property
    def is_starting(self) -> bool:
        """True if its ranks have still to be started on this node."""
        waiting = (None, Phase.PREPARING, Phase.READY)
        return self.phase in waiting and self.state in (
            AttemptState.ASSIGNED,
            AttemptState.STARTING,
        )


@dataclass(frozen=True)
class WaitingJob:
    """A queued job."""

    id: str
    name: str
    user_id: str
    epoch: int
    lease_ids: tuple[str, ...]
    """Ids of the leases that it names: none, or one for each node."""
    ranks: int
    """Ranks on each node, with a slot for each."""
    owner_disabled: bool
    queued_at: datetime
    not_before: datetime | None
    wall_time_s: int
    wall_left_s: int
    failures: int
    saving_on: str | None
    """Id of the node that is still copying the last attempt's checkpoints to the store."""
    classes: tuple[str, ...]
    """Names of the node classes that it fits, smallest first."""
    other_classes: tuple[str, ...]
    """Names of further classes that it would fit if it did not name one, smallest first."""
    num_nodes: int
    may_be_cut: bool
    """True if it saves checkpoints, so that it may be stopped for a lease and go on later."""
    in_vain: int
    """Number of times in a row that it was stopped for others before it saved anything new."""
    told: tuple[str, str, datetime | None]
    """Reason code, sentence and predicted start that its owner sees now."""
    turn: Turn | None = None
    """Turn in its agenda; None if it is in no agenda."""
    is_script: bool = False
    """True for a program of its owner, False for a recipe."""
    is_workbench: bool = False
    """True for a program that its owner sits in front of."""
    memory_slots: Mapping[str, int] = field(default_factory=dict)
    """Map class -> slots whose share of a node's memory it needs, where they are more than its
    ranks."""

    def slots_needed(self, class_name: str) -> int:
        """Return the slots that a part of a node of a class must have for this job."""
        return max(self.ranks, self.memory_slots.get(class_name, 0))


@dataclass(frozen=True)
class NodeHold:
    """Span of time in which a node is held."""

    node_id: str
    lease_id: str | None
    start: datetime
    end: datetime
    kind: OccupancyKind = OccupancyKind.LEASE
    num_slots: int | None = None
    """Number of slots; None: the whole node."""


class JobName(NamedTuple):
    """Name and owner of a job."""

    name: str
    user_id: str


@dataclass(frozen=True)
class Snapshot:
    """All facts from which a cycle decides."""

    now: datetime
    nodes: Mapping[str, NodeSnapshot]
    classes: Mapping[str, Hardware]
    holds: Sequence[NodeHold]
    leases: Mapping[str, LeaseSnapshot]
    attempts: Sequence[AttemptSnapshot]
    last_exit: Mapping[str, datetime]
    """Map lease id -> time at which the last attempt in it exited, guests included."""
    waiting: Sequence[WaitingJob]
    due: Mapping[str, Sequence[Due]] = field(default_factory=dict)
    """Map lease id -> unclaimed appointments whose time has come."""
    reclaim_after_s: Mapping[str, float] = field(default_factory=dict)
    """Map lease id -> unused seconds after which it is taken back, if that is planned."""
    policies: Mapping[str, Policy] = field(default_factory=dict)
    """Map node id -> policy that governs the node in the queue; empty if no policy is active."""
    labs: Mapping[str, str] = field(default_factory=dict)
    """Map user id -> name of the user's lab; empty if no policy promises labs shares."""
    savers: frozenset[str] = frozenset()
    """Ids of the jobs in walk-ins that can be stopped with a checkpoint; empty if no policy
    promises labs shares."""
    used: frozenset[str] = frozenset()
    """Ids of the active and ending leases in which a job of their owner has run."""

    @cached_property
    def jobs(self) -> Mapping[str, JobName]:
        """Map job id -> name and owner, for the jobs that wait or run."""
        running = {one.job_id: JobName(one.job_name, one.user_id) for one in self.attempts}
        return running | {job.id: JobName(job.name, job.user_id) for job in self.waiting}

    @cached_property
    def _by_lease(self) -> Mapping[str, Sequence[AttemptSnapshot]]:
        """Map lease id -> live attempts in it: a search for each of a thousand would take 0.1 s."""
        return _grouped(self.attempts, lambda attempt: attempt.lease_id)

    @cached_property
    def _by_node(self) -> Mapping[str, Sequence[AttemptSnapshot]]:
        """Map node id -> live attempts on it."""
        return _grouped(self.attempts, lambda attempt: attempt.node_id)

    @cached_property
    def _begun_on(self) -> Mapping[str, Sequence[LeaseSnapshot]]:
        """Map node id -> leases on it that have begun and not ended."""
        begun = (LeaseState.ACTIVE, LeaseState.ENDING)
        leases = [lease for lease in self.leases.values() if lease.state in begun]
        return _grouped(leases, lambda lease: lease.node_id)

    def scheduling_of(self, node_id: str) -> Scheduling:
        """Return the rules by which the queue uses a node."""
        return self.policies.get(node_id, DEFAULT).scheduling

    def due_of(self, lease_id: str, kind: AppointmentKind) -> Due | None:
        """Return the first due appointment of this kind; None if there is none."""
        return next((due for due in self.due.get(lease_id, ()) if due.kind is kind), None)

    def has_run_in(self, lease_id: str) -> bool:
        """Return True if a job of its owner has run in the lease, or if a waiting job names it."""
        return lease_id in self.used or any(lease_id in job.lease_ids for job in self.waiting)

    def lends(self, lease_id: str) -> bool:
        """Return True if its owner's workbenches in the lease are all idle and may be lent, and
        nothing else of the owner runs in it or waits for it."""
        own = [one for one in self.attempts_in(lease_id) if not one.guest]
        is_wanted = any(lease_id in job.lease_ids for job in self.waiting)
        return bool(own) and all(one.lends for one in own) and not is_wanted

    def idle_s(self, lease: LeaseSnapshot) -> float:
        """Return the seconds for which its owner could have used an active lease."""
        since = self.now - (lease.began_at or lease.hold_start)
        return since.total_seconds() - lease.unusable_s

    def attempts_in(self, lease_id: str) -> list[AttemptSnapshot]:
        """Return the live attempts in a lease."""
        return list(self._by_lease.get(lease_id, ()))

    def guests_in(self, lease_id: str) -> list[AttemptSnapshot]:
        """Return the live attempts of guests in a lease, which leave when its owner comes."""
        return [attempt for attempt in self.attempts_in(lease_id) if attempt.guest]

    def attempts_on(self, node_id: str) -> list[AttemptSnapshot]:
        """Return the live attempts on a node."""
        return list(self._by_node.get(node_id, ()))

    def slots_of(self, lease: LeaseSnapshot) -> frozenset[int]:
        """Return the slots of a lease that has begun: some of its node, or all."""
        if lease.num_slots is not None:
            return lease.slots
        return frozenset(range(self.nodes[lease.node_id].slots))

    def attempts_at(self, lease: LeaseSnapshot) -> list[AttemptSnapshot]:
        """Return the live attempts on the slots of a lease, in it or not."""
        here = self.attempts_on(lease.node_id)
        if lease.num_slots is None:
            return here
        return [attempt for attempt in here if not lease.slots.isdisjoint(attempt.slots)]

    def held_slots(self, node: NodeSnapshot) -> frozenset[int]:
        """Return the slots of a node that leases that have begun, or live attempts, have."""
        held = {slot for attempt in self.attempts_on(node.id) for slot in attempt.slots}
        for lease in self._begun_on.get(node.id, ()):
            held |= self.slots_of(lease)
        return frozenset(held)

    def verified_clean(self, lease: LeaseSnapshot) -> bool:
        """Return True if no attempt runs in the lease on its node and the node has reported the
        lease's slots clean since the last exit.

        Attempts on a node that the lease has moved away from do not count.
        """
        here = [one for one in self.attempts_in(lease.id) if one.node_id == lease.node_id]
        return not here and self.tidy(lease)

    def tidy(self, lease: LeaseSnapshot) -> bool:
        """Return True if the node is heard and has reported, since the lease's last exit, that the
        lease's slots are clean of ended attempts."""
        node = self.nodes[lease.node_id]
        clean = node.clean if lease.num_slots is None else node.dirty.isdisjoint(lease.slots)
        return node.heard and clean and self.heard_since_exit(lease)

    def heard_since_exit(self, lease: LeaseSnapshot) -> bool:
        """Return True if the node was heard after the lease's last exit, or if none has exited."""
        last_exit = self.last_exit.get(lease.id)
        seen_at = self.nodes[lease.node_id].last_seen_at
        return last_exit is None or (seen_at is not None and seen_at >= last_exit)


def _grouped(items: Iterable[Item], key: Callable[[Item], str]) -> dict[str, list[Item]]:
    found: dict[str, list[Item]] = defaultdict(list)
    for item in items:
        found[key(item)].append(item)
    return found


def take_snapshot(
    session: Session,
    now: datetime,
    *,
    fitting: Fitting,
    unreachable_after_s: float,
    waiting: Sequence[WaitingJob] | None = None,
) -> Snapshot:
    """Read a snapshot of the world.

    `fitting` caches, from one cycle to the next, the classes that each job fits. A node is heard
    if its last heartbeat is at most `unreachable_after_s` seconds old. `waiting` are the waiting
    jobs where they have been read already: of ten thousand that takes longer than all the rest.
    """
    nodes = _nodes(session, now, timedelta(seconds=unreachable_after_s))
    hardware = {
        name: (version, Hardware.model_validate(document))
        for name, version, document in session.execute(
            select(NodeClass.name, NodeClass.version, NodeClass.hardware)
        )
    }
    used = {node.class_name for node in nodes.values() if node.state is not NodeState.RETIRED}
    fitting.offer({name: hardware[name] for name in used})
    leases = _leases(session, nodes)
    attempts = _attempts(session, leases)
    policies = _policies(session, nodes)
    lends = any(policy.scheduling.shares for policy in policies.values())
    walked_in = _in_walk_ins(attempts, leases) if lends else []
    if waiting is None:
        waiting = _waiting(session, now, fitting, also=walked_in)
    else:
        fitting.learn(session, [*(job.id for job in waiting), *walked_in])
    last_exit, used_leases = _exits(session, leases)
    return Snapshot(
        now=now,
        nodes=nodes,
        classes={name: hardware[name][1] for name in used},
        holds=_holds(session, now),
        leases=leases,
        attempts=attempts,
        last_exit=last_exit,
        waiting=waiting,
        due=_due(session, now),
        reclaim_after_s=_reclaim_after(session, leases),
        policies=policies,
        labs=_labs(session) if lends else {},
        savers=frozenset(one for one in walked_in if fitting.need_of(one).checkpointable),
        used=used_leases,
    )


def _nodes(session: Session, now: datetime, patience: timedelta) -> dict[str, NodeSnapshot]:
    rows = session.execute(
        select(
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
    )
    not_ready: dict[tuple[str, SlotState], set[int]] = {}
    for slot in session.execute(
        select(NodeSlot.node_id, NodeSlot.slot, NodeSlot.state).where(
            NodeSlot.state != SlotState.READY
        )
    ):
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


def _leases(session: Session, nodes: Mapping[str, NodeSnapshot]) -> dict[str, LeaseSnapshot]:
    named = select(Job.lease_id).where(Job.state == JobState.QUEUED, Job.lease_id.is_not(None))
    rows = session.execute(
        select(
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
        ).where(or_(Lease.state.in_(LIVE_LEASE), Lease.id.in_(named)))
    )
    slots: dict[str, set[int]] = {}
    parts = select(Lease.id, NodeSlot.slot).join(NodeSlot, NodeSlot.lease_id == Lease.id)
    for lease_id, slot in session.execute(parts.where(Lease.num_slots.is_not(None))):
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


def _reclaim_after(session: Session, leases: Mapping[str, LeaseSnapshot]) -> dict[str, float]:
    rows = session.execute(
        select(Appointment.lease_id, Appointment.due_at).where(
            Appointment.kind == AppointmentKind.RECLAIM,
            Appointment.state.in_((AppointmentState.DUE, AppointmentState.CLAIMED)),
        )
    )
    return {
        lease_id: (due_at - leases[lease_id].hold_start).total_seconds()
        for lease_id, due_at in rows
        if lease_id in leases
    }


def _holds(session: Session, now: datetime) -> list[NodeHold]:
    rows = session.execute(
        select(
            Occupancy.node_id,
            Occupancy.lease_id,
            Occupancy.hold_start,
            Occupancy.hold_end,
            Occupancy.kind,
            Occupancy.num_slots,
        )
        .where(Occupancy.live, Occupancy.hold_end > now)
        .order_by(Occupancy.node_id, Occupancy.hold_start)
    )
    return [NodeHold(*row) for row in rows]


def _attempts(session: Session, leases: Mapping[str, LeaseSnapshot]) -> list[AttemptSnapshot]:
    rows = session.execute(
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
    session: Session, leases: Mapping[str, LeaseSnapshot]
) -> tuple[dict[str, datetime], frozenset[str]]:
    """Map lease id -> time of the last exit in it; also return the ids of the leases in which a
    job of the owner has run."""
    held = [
        one.id for one in leases.values() if one.state in (LeaseState.ACTIVE, LeaseState.ENDING)
    ]
    rows = session.execute(
        select(AttemptPart.lease_id, Job.user_id, func.max(AttemptPart.ended_at))
        .join(Attempt, Attempt.id == AttemptPart.attempt_id)
        .join(Job, Job.id == Attempt.job_id)
        .where(AttemptPart.lease_id.in_(held))
        .group_by(AttemptPart.lease_id, Job.user_id)
    ).all()
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


def _labs(session: Session) -> dict[str, str]:
    """Map user id -> name of the user's lab; of several labs the one with the first id."""
    rows = session.execute(
        select(Membership.user_id, Lab.name)
        .join(Lab, Lab.id == Membership.lab_id)
        .order_by(Lab.id.desc())
    )
    return {user_id: name for user_id, name in rows}


def _waiting(
    session: Session, now: datetime, fitting: Fitting, *, also: Sequence[str]
) -> list[WaitingJob]:
    """Return the queued jobs; `fitting` learns these and the jobs in `also`."""
    disabled = set(session.scalars(select(User.id).where(User.disabled)))
    saving = _saving(session, now)
    rows = session.execute(
        select(
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
    ).all()
    fitting.learn(session, [*(row.id for row in rows), *also])
    closing = _closing_workspaces(session, now)
    in_vain = _stopped_in_vain(session)
    turns = read_turns(session)
    waiting = []
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
                other_classes=fitting.other_classes(row.id),
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


def _leases_of(lease_id: str | None, need: Need) -> tuple[str, ...]:
    """Return the ids of the leases that a job names.

    For a single lease the job's row counts, not its spec: the lease may have been swapped since.
    """
    if len(need.leases) > 1:
        return need.leases
    return (lease_id,) if lease_id else ()


def _saving(session: Session, now: datetime) -> dict[str, str]:
    """Map job id -> id of a node that is still copying the last attempt's files to the store."""
    rows = session.execute(
        select(Job.id, AttemptPart.node_id)
        .join(Attempt, and_(Attempt.job_id == Job.id, Attempt.epoch == Job.epoch))
        .join(AttemptPart, AttemptPart.attempt_id == Attempt.id)
        .where(
            Job.state == JobState.QUEUED,
            AttemptPart.files_kept.is_(False),
            AttemptPart.exit.is_not(None),
            Attempt.ended_at > now - SAVING_PATIENCE,
        )
        .order_by(AttemptPart.position.desc())
    )
    return {job_id: node_id for job_id, node_id in rows}


def _closing_workspaces(session: Session, now: datetime) -> dict[str, str]:
    """Map user id -> id of the node that is still bringing the last snapshot of the user's
    workspace."""
    rows = session.execute(
        select(Workspace.user_id, Attempt)
        .join(Attempt, Attempt.id == Workspace.writer_id)
        .where(Attempt.state == AttemptState.EXITED)
    )
    return {user_id: attempt.node_id for user_id, attempt in rows if is_closing(attempt, now=now)}


def _stopped_in_vain(session: Session) -> dict[str, int]:
    """Map queued job id -> number of attempts since its newest checkpoint that the platform
    stopped."""
    newest = (
        select(func.max(Checkpoint.epoch))
        .where(Checkpoint.job_id == Job.id)
        .correlate(Job)
        .scalar_subquery()
    )
    rows = session.execute(
        select(Attempt.job_id, func.count())
        .join(Job, Job.id == Attempt.job_id)
        .where(
            Job.state == JobState.QUEUED,
            Job.interruptions >= CUTS_IN_VAIN,
            Attempt.outcome.in_(INTERRUPTED),
            Attempt.epoch > func.coalesce(newest, 0),
            # Resuming a job that was held resets its count.
            or_(Job.queued_at.is_(None), Attempt.assigned_at >= Job.queued_at),
        )
        .group_by(Attempt.job_id)
    )
    return {job_id: count for job_id, count in rows}
