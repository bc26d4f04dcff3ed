"""Snapshot of the world, taken once a cycle: nodes, holds, leases, attempts and waiting jobs.

Each decision made from it is checked again by the transaction that writes the decision.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import NamedTuple, TypeVar

from core.agendas.turns import Turn
from core.leases.appointments import Due
from core.policy.document import DEFAULT, Policy
from core.policy.sections import Scheduling
from core.spec.workbench import WhenIdle
from core.states import (
    AttemptState,
    JobState,
    LeaseState,
    NodeState,
    Phase,
    Sharing,
)
from core.tables.kinds import (
    AppointmentKind,
    LeaseKind,
    OccupancyKind,
)
from strategies.plan.hardware import Hardware

LENDING = (WhenIdle.LEND, WhenIdle.RELEASE)
Item = TypeVar("Item")


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
    other_classes: Callable[[str], Sequence[str]] = lambda _: ()
    """Names, by id of a waiting job, of further classes that it would fit if it did not name one,
    smallest first; asked only for jobs near their start, as each answer is a plan."""

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

    @cached_property
    def _waited_for(self) -> frozenset[str]:
        """Ids of the leases that waiting jobs name."""
        return frozenset(lease_id for job in self.waiting for lease_id in job.lease_ids)

    @property
    def turn_at(self) -> datetime | None:
        """Next moment at which a lease begins or ends; None if none will."""
        turns = (
            turn
            for lease in self.leases.values()
            for turn in (lease.hold_start, lease.usable_end, lease.hold_end)
            if turn > self.now
        )
        return min(turns, default=None)

    def scheduling_of(self, node_id: str) -> Scheduling:
        """Return the rules by which the queue uses a node."""
        return self.policies.get(node_id, DEFAULT).scheduling

    def due_of(self, lease_id: str, kind: AppointmentKind) -> Due | None:
        """Return the first due appointment of this kind; None if there is none."""
        return next((due for due in self.due.get(lease_id, ()) if due.kind is kind), None)

    def has_run_in(self, lease_id: str) -> bool:
        """Return True if a job of its owner has run in the lease, or if a waiting job names it."""
        return lease_id in self.used or lease_id in self._waited_for

    def lends(self, lease_id: str) -> bool:
        """Return True if its owner's workbenches in the lease are all idle and may be lent, and
        nothing else of the owner runs in it or waits for it."""
        own = [one for one in self.attempts_in(lease_id) if not one.guest]
        is_wanted = lease_id in self._waited_for
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
