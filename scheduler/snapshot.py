"""The world, read once a cycle: nodes, what holds them, what runs, who waits.

Read without the writer's lock. Whatever is decided from it is checked again by the transaction that
writes it down.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import and_, func, or_, select
from sqlalchemy.orm import Session

from core.policy import usable_end
from core.states import LIVE_ATTEMPT, LIVE_LEASE, AttemptState, JobState, LeaseState, NodeState
from core.tables import Attempt, Job, Lease, LeaseKind, Node, NodeClass, Occupancy, User
from scheduler.fitting import Fitting
from strategies.hardware import Hardware

# A node that stays silent so long about the files of an attempt does not keep the job waiting.
SAVING_PATIENCE = timedelta(minutes=10)


@dataclass(frozen=True)
class NodeSeen:
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
    """Its last heartbeat is recent enough to give it work."""

    @property
    def usable(self) -> bool:
        """Whether it may be given work, now or later."""
        return self.state is NodeState.READY and self.heard


@dataclass(frozen=True)
class LeaseSeen:
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


@dataclass(frozen=True)
class AttemptSeen:
    """An attempt that has not exited."""

    id: str
    job_id: str
    epoch: int
    node_id: str
    lease_id: str
    state: AttemptState
    job_state: JobState
    boot_id: str
    assigned_at: datetime
    missing_since: datetime | None
    hold_end: datetime
    """Of its lease, which may be over already: a node that is given up leaves its attempts."""
    ends_at: datetime
    """When its wall time is used up at the latest."""


@dataclass(frozen=True)
class Waiting:
    """A queued job."""

    id: str
    epoch: int
    lease_id: str | None
    owner_disabled: bool
    queued_at: datetime
    not_before: datetime | None
    wall_time_s: int
    wall_left_s: int
    failures: int
    saving_on: str | None
    """Id of the node that still brings the last attempt's checkpoints to the store."""
    classes: tuple[str, ...]
    """Names of the node classes that it fits, smallest first."""
    told: tuple[str, str, datetime | None]
    """Reason code, sentence and predicted start that its owner sees now."""


@dataclass(frozen=True)
class Hold:
    """Hours of a node that somebody has."""

    node_id: str
    lease_id: str | None
    start: datetime
    end: datetime


@dataclass(frozen=True)
class Snapshot:
    """Everything a cycle decides from."""

    now: datetime
    nodes: Mapping[str, NodeSeen]
    classes: Mapping[str, Hardware]
    holds: Sequence[Hold]
    leases: Mapping[str, LeaseSeen]
    attempts: Sequence[AttemptSeen]
    last_exit: Mapping[str, datetime]
    """When the last attempt in a lease exited, by lease id."""
    waiting: Sequence[Waiting]

    def attempts_in(self, lease_id: str) -> list[AttemptSeen]:
        """The live attempts in a lease."""
        return [attempt for attempt in self.attempts if attempt.lease_id == lease_id]

    def attempts_on(self, node_id: str) -> list[AttemptSeen]:
        """The live attempts on a node."""
        return [attempt for attempt in self.attempts if attempt.node_id == node_id]

    def verified_clean(self, lease: LeaseSeen) -> bool:
        """Whether the node has said, after the lease's last attempt ended, that nothing is left."""
        node = self.nodes[lease.node_id]
        if not node.heard or not node.clean or self.attempts_in(lease.id):
            return False
        last_exit = self.last_exit.get(lease.id)
        assert node.last_seen_at is not None
        return last_exit is None or node.last_seen_at >= last_exit


def take_snapshot(
    session: Session, now: datetime, *, fitting: Fitting, unreachable_after_s: float
) -> Snapshot:
    """Read it all. `fitting` remembers, from one cycle to the next, which class fits which job."""
    nodes = _nodes(session, now, timedelta(seconds=unreachable_after_s))
    hardware = {
        name: (version, Hardware.model_validate(document))
        for name, version, document in session.execute(
            select(NodeClass.name, NodeClass.version, NodeClass.hardware)
        )
    }
    used = {node.class_name for node in nodes.values() if node.state is not NodeState.RETIRED}
    fitting.offer({name: hardware[name] for name in used})
    leases = _leases(session)
    return Snapshot(
        now=now,
        nodes=nodes,
        classes={name: hardware[name][1] for name in used},
        holds=_holds(session, now),
        leases=leases,
        attempts=_attempts(session),
        last_exit=_last_exits(session, leases),
        waiting=_waiting(session, now, fitting),
    )


def _nodes(session: Session, now: datetime, patience: timedelta) -> dict[str, NodeSeen]:
    rows = session.execute(
        select(
            Node.id,
            Node.name,
            Node.class_name,
            Node.state,
            Node.reason,
            Node.clean,
            Node.boot_id,
            Node.last_seen_at,
            Node.unreachable_since,
        )
    )
    nodes = {}
    for row in rows:
        heard = row.last_seen_at is not None and now - row.last_seen_at <= patience
        nodes[row.id] = NodeSeen(**row._mapping, heard=heard)
    return nodes


def _leases(session: Session) -> dict[str, LeaseSeen]:
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
        ).where(or_(Lease.state.in_(LIVE_LEASE), Lease.id.in_(named)))
    )
    leases = {}
    for row in rows:
        fields = dict(row._mapping)
        usable = usable_end(row.hold_end, fields.pop("grace_s"))
        leases[row.id] = LeaseSeen(**fields, usable_end=usable)
    return leases


def _holds(session: Session, now: datetime) -> list[Hold]:
    rows = session.execute(
        select(Occupancy.node_id, Occupancy.lease_id, Occupancy.hold_start, Occupancy.hold_end)
        .where(Occupancy.live, Occupancy.hold_end > now)
        .order_by(Occupancy.node_id, Occupancy.hold_start)
    )
    return [Hold(*row) for row in rows]


def _attempts(session: Session) -> list[AttemptSeen]:
    rows = session.execute(
        select(
            Attempt.id,
            Attempt.job_id,
            Attempt.epoch,
            Attempt.node_id,
            Attempt.lease_id,
            Attempt.state,
            Job.state.label("job_state"),
            Attempt.boot_id,
            Attempt.assigned_at,
            Attempt.missing_since,
            Lease.hold_end,
            Attempt.started_at,
            Job.wall_time_s,
            Job.used_s,
        )
        .join(Job, Job.id == Attempt.job_id)
        .join(Lease, Lease.id == Attempt.lease_id)
        .where(Attempt.state.in_(LIVE_ATTEMPT))
        .order_by(Attempt.assigned_at)
    )
    attempts = []
    for row in rows:
        fields = dict(row._mapping)
        begun = fields.pop("started_at") or row.assigned_at
        left_s = fields.pop("wall_time_s") - fields.pop("used_s")
        attempts.append(AttemptSeen(**fields, ends_at=begun + timedelta(seconds=left_s)))
    return attempts


def _last_exits(session: Session, leases: Mapping[str, LeaseSeen]) -> dict[str, datetime]:
    held = [
        one.id for one in leases.values() if one.state in (LeaseState.ACTIVE, LeaseState.ENDING)
    ]
    rows = session.execute(
        select(Attempt.lease_id, func.max(Attempt.ended_at))
        .where(Attempt.lease_id.in_(held))
        .group_by(Attempt.lease_id)
    )
    return {lease_id: ended_at for lease_id, ended_at in rows if ended_at is not None}


def _waiting(session: Session, now: datetime, fitting: Fitting) -> list[Waiting]:
    disabled = set(session.scalars(select(User.id).where(User.disabled)))
    rows = session.execute(
        select(
            Job.id,
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
            Attempt.node_id,
        )
        .outerjoin(
            Attempt,
            and_(
                Attempt.job_id == Job.id,
                Attempt.epoch == Job.epoch,
                Attempt.files_kept.is_(False),
                Attempt.exit.is_not(None),
                Attempt.ended_at > now - SAVING_PATIENCE,
            ),
        )
        .where(Job.state == JobState.QUEUED)
    ).all()
    fitting.learn(session, [row.id for row in rows])
    waiting = []
    for row in rows:
        waiting.append(
            Waiting(
                id=row.id,
                epoch=row.epoch,
                lease_id=row.lease_id,
                owner_disabled=row.user_id in disabled,
                queued_at=row.queued_at or row.created_at,
                not_before=row.not_before,
                wall_time_s=row.wall_time_s,
                wall_left_s=max(1, row.wall_time_s - row.used_s),
                failures=row.infrastructure_failures,
                saving_on=row.node_id,
                classes=fitting.classes_for(row.id),
                told=(row.reason_code, row.reason, row.predicted_start),
            )
        )
    return waiting
