"""Labs in a simulation: shares and borrowing by the functions of the live scheduler. Pure.

`SimulatedCluster` shows a replay to `scheduler.queue.borrowing` as the cluster's snapshot: claims,
borrowing and preemption are decided by the same code as for real jobs. In the simulation a node has
one slot, every job saves checkpoints, and a preempted job leaves at once.
"""

import math
from bisect import insort
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from statistics import fmean

from core.policy.document import DEFAULT, Policy
from core.policy.sections import Scheduling
from core.states import AttemptState, JobState, LeaseState, NodeState, Phase
from core.tables.kinds import LeaseKind
from scheduler.queue.backfill import ALL_NODES, QueueRules
from scheduler.queue.borrowing import Lending
from scheduler.queue.masks import ClassLane, bits
from scheduler.queue.timeline import Timeline
from scheduler.snapshot import AttemptSnapshot, LeaseSnapshot, NodeSnapshot, Snapshot, WaitingJob
from simulation.traces import BadTrace, TracedJob, Workload
from strategies.plan.hardware import Hardware

END_OF_TIME = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True)
class LabResult:
    """Results for one lab; node hours are those that its jobs had, their work kept or lost."""

    share: int
    """Number of nodes that it was promised."""
    jobs: int
    node_h: float
    borrowed_h: float
    """Node hours beyond its share."""
    mean_wait_h: float
    preempted: int
    """Number of times that one of its jobs was stopped for another lab's share."""


def dealt(workload: Workload, count: int) -> Workload:
    """Return the workload with its users dealt into `count` labs, in order of their first jobs."""
    users = dict.fromkeys(job.user for job in workload.jobs)
    lab_of = {user: f"lab-{number % count + 1}" for number, user in enumerate(users)}
    return replace(workload, jobs=[replace(job, lab=lab_of[job.user]) for job in workload.jobs])


def equal_shares(workload: Workload) -> Policy:
    """Return a policy that promises every lab the same number of nodes.

    Raises BadTrace if the workload has no labs.
    """
    labs = _labs_in(workload)
    if not labs:
        raise BadTrace(f"{workload.name} has no groups; deal its users into labs with --labs 4")
    each = max(1, sum(workload.nodes.values()) // len(labs))
    return DEFAULT.model_copy(update={"scheduling": Scheduling(shares=dict.fromkeys(labs, each))})


def require_labs(workload: Workload, policy: Policy) -> None:
    """Raise BadTrace if the policy has no shares, or one for a lab that the workload lacks."""
    labs, shares = _labs_in(workload), policy.scheduling.shares
    unknown = ", ".join(sorted(shares.keys() - set(labs)))
    if unknown or not shares:
        wrong = f"the policy promises shares to {unknown}" if shares else "the policy has no shares"
        there = ", ".join(labs) or "no groups; --labs 4 deals its users into lab-1 to lab-4"
        raise BadTrace(f"{wrong}; {workload.name} has {there}")


def _labs_in(workload: Workload) -> list[str]:
    return sorted({job.lab for job in workload.jobs} - {""})


class SimulatedCluster:
    """The nodes and jobs of a replay as the live scheduler would see them."""

    def __init__(self, workload: Workload, policy: Policy, rules: QueueRules) -> None:
        self._rules = rules
        self._nodes = {
            name: [_node(name, number) for number in range(count)]
            for name, count in workload.nodes.items()
        }
        every = {node.id: node for nodes in self._nodes.values() for node in nodes}
        self._world = Snapshot(
            now=END_OF_TIME,
            nodes=every,
            classes={
                name: Hardware(class_name=name, device="cpu", slots=1, memory_gib=1.0)
                for name in workload.nodes
            },
            holds=(),
            leases={},
            attempts=(),
            last_exit={},
            waiting=(),
            policies=dict.fromkeys(every, policy),
            labs={_user(job): job.lab for job in workload.jobs if job.lab},
        )
        self._leases: dict[int, list[LeaseSnapshot]] = {}
        self._attempts: dict[int, list[AttemptSnapshot]] = {}
        self._until: dict[str, float] = {}
        """Map node id -> latest time at which the job on it leaves."""
        self._booked: dict[str, list[tuple[float, float]]] = {node_id: [] for node_id in every}
        """Map node id -> (start, end) of the leases on it, in order."""

    def book(self, class_name: str, nodes: int, start: float, end: float) -> None:
        """Record a lease of the nodes of a mask from `start` to `end`, in seconds."""
        for number in bits(nodes):
            insort(self._booked[self._nodes[class_name][number].id], (start, end))

    def start(
        self, number: int, job: TracedJob, class_name: str, nodes: int, now: float, end: float
    ) -> None:
        """Record a job that has started and has its nodes until `end` at the latest."""
        began = datetime.fromtimestamp(now, UTC)
        here = [self._nodes[class_name][each] for each in bits(nodes)]
        self._leases[number] = [_walk_in(number, job, node, began) for node in here]
        self._attempts[number] = [
            _attempt(number, lease, position) for position, lease in enumerate(self._leases[number])
        ]
        self._until |= dict.fromkeys((node.id for node in here), end)

    def stop(self, number: int) -> None:
        """Record that a job has left its nodes."""
        for lease in self._leases.pop(number):
            del self._until[lease.node_id]
        del self._attempts[number]

    def lending(self, lanes: Mapping[str, ClassLane], now: float) -> Lending:
        """Return the present use of the labs' shares; nodes given to claims leave `lanes`."""
        leases = {lease.id: lease for of_job in self._leases.values() for lease in of_job}
        world = replace(
            self._world,
            now=datetime.fromtimestamp(now, UTC),
            leases=leases,
            attempts=[attempt for of_job in self._attempts.values() for attempt in of_job],
            savers=frozenset(str(number) for number in self._attempts),
        )
        least_s = self._rules.least_gap_s
        soft = {name: {least_s: ALL_NODES} for name in lanes} if self._rules.soft_fit else None
        return Lending(world, self._timeline(lanes, now), soft)

    def _timeline(self, lanes: Mapping[str, ClassLane], now: float) -> Timeline:
        timeline = Timeline(now, self._nodes)
        timeline.lanes = dict(lanes)
        for class_name, nodes in self._nodes.items():
            for number, node in enumerate(nodes):
                booked = [span for span in self._booked[node.id] if span[1] > now]
                self._booked[node.id] = booked
                until = self._until.get(node.id, now)
                if booked and booked[0][0] <= now:
                    (_, until), *booked = booked
                next_start = booked[0][0] if booked else math.inf
                timeline.occupied(class_name, number, until, next_start)
        return timeline


class Ledger:
    """Present and past use of nodes by every lab."""

    def __init__(self, workload: Workload, policy: Policy) -> None:
        shares = policy.scheduling.shares
        jobs = Counter(job.lab for job in workload.jobs)
        self._accounts = {lab: _Account(shares.get(lab, 0), jobs[lab]) for lab in sorted(jobs)}
        self._now = -math.inf

    def change(self, lab: str, nodes: int, now: float) -> None:
        """Add `nodes` (negative: remove them) to the nodes that a lab has from `now` on."""
        for account in self._accounts.values():
            if account.nodes:
                passed_s = now - self._now
                account.node_s += account.nodes * passed_s
                account.borrowed_s += max(0, account.nodes - account.share) * passed_s
        self._now = now
        self._accounts[lab].nodes += nodes

    def preempted(self, lab: str) -> None:
        """Count that one of a lab's jobs was stopped for another lab."""
        self._accounts[lab].preempted += 1

    def measured(self, waits_h: Mapping[str, Sequence[float]]) -> dict[str, LabResult]:
        """Map lab -> results; `waits_h` are the hours that each of its jobs waited."""
        return {
            lab: LabResult(
                share=account.share,
                jobs=account.jobs,
                node_h=account.node_s / 3600,
                borrowed_h=account.borrowed_s / 3600,
                mean_wait_h=fmean(waits_h[lab]),
                preempted=account.preempted,
            )
            for lab, account in self._accounts.items()
        }


@dataclass
class _Account:
    share: int
    jobs: int
    nodes: int = 0
    node_s: float = 0.0
    borrowed_s: float = 0.0
    preempted: int = 0


def as_waiting(number: int, job: TracedJob, wall_left_s: float, *, may_be_cut: bool) -> WaitingJob:
    """Return a job of a replay as the live scheduler sees a waiting job."""
    submitted = datetime.fromtimestamp(job.submitted_s, UTC)
    return WaitingJob(
        id=str(number),
        name=str(number),
        user_id=_user(job),
        epoch=0,
        lease_ids=(),
        ranks=1,
        owner_disabled=False,
        queued_at=submitted,
        not_before=None,
        wall_time_s=round(job.wall_s),
        wall_left_s=round(wall_left_s),
        failures=0,
        saving_on=None,
        classes=job.classes,
        num_nodes=job.num_nodes,
        may_be_cut=may_be_cut,
        in_vain=0,
        told=("", "", None),
    )


def _user(job: TracedJob) -> str:
    """Return a user id; a user in several labs counts as several people."""
    return f"{job.user} of {job.lab}"


def _node(class_name: str, number: int) -> NodeSnapshot:
    return NodeSnapshot(
        id=f"{class_name} {number}",
        name=f"{class_name} {number}",
        class_name=class_name,
        state=NodeState.READY,
        reason="",
        clean=True,
        boot_id="",
        last_seen_at=None,
        unreachable_since=None,
        heard=True,
    )


def _walk_in(number: int, job: TracedJob, node: NodeSnapshot, began: datetime) -> LeaseSnapshot:
    return LeaseSnapshot(
        id=f"{number} on {node.id}",
        user_id=_user(job),
        node_id=node.id,
        kind=LeaseKind.WALK_IN,
        state=LeaseState.ACTIVE,
        reason="",
        hold_start=began,
        hold_end=END_OF_TIME,
        usable_end=END_OF_TIME,
    )


def _attempt(number: int, lease: LeaseSnapshot, position: int) -> AttemptSnapshot:
    return AttemptSnapshot(
        id=str(number),
        job_id=str(number),
        epoch=1,
        node_id=lease.node_id,
        lease_id=lease.id,
        state=AttemptState.RUNNING,
        job_state=JobState.RUNNING,
        position=position,
        slots=(0,),
        phase=Phase.RUNNING,
        boot_id="",
        assigned_at=lease.hold_start,
        prepared_at=None,
        missing_since=None,
        hold_end=lease.hold_end,
        ends_at=lease.hold_end,
        user_id=lease.user_id,
    )
