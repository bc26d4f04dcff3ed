"""Replay of a workload, with a virtual clock, through the code that places real jobs. Pure.

A lease takes nodes that are free for the whole of it when it is booked, the lowest numbers first.
A job that is stopped for a lease keeps the work that it had saved (every 10 minutes), and pays 2
minutes for its next start. These two figures stand for a slow checkpoint; the live scheduler's jobs
also save when they are stopped.
"""

import hashlib
import heapq
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from core.policy.document import Policy
from scheduler.queue.backfill import Backfill, BackfillStart, QueueRules, Reservation, Want
from scheduler.queue.borrowing import ShareClaim
from scheduler.queue.fair_share import HALF_LIFE, MEAN_LIFE_H
from scheduler.queue.masks import ClassLane, lowest
from scheduler.queue.ordering import UserShare, points
from scheduler.snapshot import WaitingJob
from simulation.simulated_labs import LabResult, Ledger, SimulatedCluster, as_waiting
from simulation.traces import TracedJob, Workload

CHECKPOINT_EVERY_S = 600.0
RESTART_S = 120.0
CUTS_IN_VAIN = 2  # a job stopped so often before it saved is not started in a gap again

Progress = Callable[[float], None]


class Happening(IntEnum):
    """Kind of an event; at equal times events happen in the order of these numbers."""

    ENDED = 0
    CUT = 1
    FREED = 2
    """Event: a lease is over."""
    BOOKED = 3
    SUBMITTED = 4
    HAS_RUN = 5
    """Event: a job has run so long that it may be stopped for a lab's share."""


@dataclass(frozen=True)
class ReplayResult:
    """Results of a replay. Times in hours; a wait is all of the time in which a job did not
    advance."""

    workload: str
    jobs: int
    mean_wait_h: float
    median_wait_h: float
    p95_wait_h: float
    bounded_slowdown_10: float
    bounded_slowdown_600: float
    utilisation: float
    """Share of node hours until the last job's end that are leases or work that was kept."""
    fairness: float
    """Jain's index over the users' mean bounded slowdowns (600 s): 1 is the same for all."""
    leases: int
    accepted: float
    """Share of the leases for which enough nodes were free."""
    cuts: int
    """Number of times that a job was stopped for a lease."""
    lost_node_h: float
    """Node hours of work done again and of restarts."""
    put_off: int
    """Number of times that the reservation of the first job in the queue moved to later: only a
    lease booked meanwhile may cause that."""
    makespan_h: float
    hash: str
    """Hash of every start and end: equal runs have equal hashes."""
    labs: Mapping[str, LabResult] = field(default_factory=dict)
    """Results by lab, if a policy is given; "" stands for users in no lab."""


@dataclass
class JobRun:
    """Progress of one job through the replay."""

    job: TracedJob
    left_s: float
    wall_left_s: float
    starts: list[float] = field(default_factory=list)
    in_vain: int = 0
    ended_s: float = math.nan

    @property
    def restart_s(self) -> float:
        return RESTART_S if self.starts else 0.0

    @property
    def wait_h(self) -> float:
        """Hours in which it did not advance, once it has ended."""
        return (self.ended_s - self.job.submitted_s - self.job.run_s) / 3600


@dataclass(frozen=True)
class _HeldNodes:
    """Nodes that a running job has."""

    class_name: str
    nodes: int
    start: float
    end: float
    overhead_s: float
    stops: float
    """Time at which it will end or be cut, unless it has to leave before."""


class Simulation:
    """Replay of one workload under one set of rules."""

    def __init__(
        self,
        workload: Workload,
        rules: QueueRules,
        *,
        fair: bool = False,
        policy: Policy | None = None,
        lends: bool = False,
    ) -> None:
        """Prepare a replay under `rules`, which the live scheduler's code applies.

        With `fair` jobs are served in the live scheduler's order, else in order of submission. If a
        `policy` is given, use beyond its labs' shares is measured, and with `lends` the shares are
        enforced.
        """
        self._fair = fair
        self._ledger = Ledger(workload, policy) if policy else None
        self._cluster = SimulatedCluster(workload, policy, rules) if policy and lends else None
        self._least_run_s = 60.0 * policy.scheduling.min_run_min if policy else 0.0
        self._used: dict[str, tuple[float, float]] = {}
        """Map user -> (decayed node seconds, time of the decay)."""
        self._workload, self._rules = workload, rules
        begins = min((job.submitted_s for job in workload.jobs), default=0.0)
        begins = min([begins, *(lease.booked_s for lease in workload.leases)])
        self._begins = begins
        self._lanes = {
            name: ClassLane((1 << count) - 1, begins) for name, count in workload.nodes.items()
        }
        self.runs = [JobRun(job, job.run_s, job.wall_s) for job in workload.jobs]
        self._queue: list[int] = []
        self._held: dict[int, _HeldNodes] = {}
        self._events: list[tuple[float, Happening, int]] = [
            (job.submitted_s, Happening.SUBMITTED, number)
            for number, job in enumerate(workload.jobs)
        ]
        self._events += [
            (lease.booked_s, Happening.BOOKED, number)
            for number, lease in enumerate(workload.leases)
        ]
        heapq.heapify(self._events)
        self._accepted = self._cuts = 0
        self._lost_node_s = self._leased_node_s = 0.0
        self._put_off = 0
        self._promised: tuple[int, float] = (-1, math.inf)
        """Number of the first waiting job, and the start of its reservation."""

    def run(self, progress: Progress = lambda share: None) -> ReplayResult:
        """Replay the workload and return the results.

        `progress` is called with the share (0 to 1) of the jobs that have ended.
        """
        ended = 0
        while self._events:
            now = self._events[0][0]
            for lane in self._lanes.values():
                lane.pass_to(now)
            while self._events and self._events[0][0] <= now:
                when, what, number = heapq.heappop(self._events)
                if what in (Happening.ENDED, Happening.CUT) and not self._stops(number, when):
                    continue  # it had to leave before
                ended += what is Happening.ENDED
                self._happen(what, number, now)
            while self._queue and self._place(now):
                pass  # a preempted job has made room
            progress(ended / max(1, len(self.runs)))
        return self._measured()

    def _stops(self, number: int, when: float) -> bool:
        held = self._held.get(number)
        return held is not None and held.stops == when

    def _happen(self, what: Happening, number: int, now: float) -> None:
        match what:
            case Happening.SUBMITTED:
                self._queue.append(number)
            case Happening.BOOKED:
                self._book(number)
            case Happening.ENDED:
                held = self._leave(number, now)
                self.runs[number].ended_s = now
                self._lost_node_s += held.overhead_s * held.nodes.bit_count()
            case Happening.CUT:
                self._cut(number, now)
                self._cuts += 1

    def _book(self, number: int) -> None:
        lease = self._workload.leases[number]
        for class_name, lane in self._lanes.items():
            free = lane.free(lease.start_s, lease.start_s + lease.seconds)
            if free.bit_count() >= lease.num_nodes:
                nodes = lowest(free, lease.num_nodes)
                end = lease.start_s + lease.seconds
                lane.take(nodes, lease.start_s, end)
                if self._cluster:
                    self._cluster.book(class_name, nodes, lease.start_s, end)
                heapq.heappush(self._events, (end, Happening.FREED, number))
                self._accepted += 1
                self._leased_node_s += lease.num_nodes * lease.seconds
                return

    def _leave(self, number: int, now: float) -> _HeldNodes:
        """Let a job give its nodes back; return the nodes that it held."""
        held = self._held.pop(number)
        self._lanes[held.class_name].give(held.nodes, now, held.end)
        self._charge(number, held, now)
        if self._ledger:
            self._ledger.change(self.runs[number].job.lab, -held.nodes.bit_count(), now)
        if self._cluster:
            self._cluster.stop(number)
        return held

    def _cut(self, number: int, now: float) -> None:
        """Stop a job; it goes on later from its last checkpoint, at its old place in the queue."""
        run, held = self.runs[number], self._leave(number, now)
        ran_s = max(0.0, now - held.start - held.overhead_s)
        kept_s = ran_s - ran_s % CHECKPOINT_EVERY_S
        run.left_s -= kept_s
        run.wall_left_s -= kept_s
        run.in_vain = 0 if kept_s else run.in_vain + 1
        self._lost_node_s += (now - held.start - kept_s) * held.nodes.bit_count()
        self._queue.append(number)

    def _place(self, now: float) -> bool:
        """Walk once over the queue, with the rules of the live scheduler.

        Returns True if a job was preempted, so that another walk is due.
        """
        lanes = {name: lane.copy() for name, lane in self._lanes.items()}
        walk = Backfill(lanes, self._rules)
        lending = self._cluster.lending(lanes, now) if self._cluster else None
        self._queue.sort(key=self._order(now))
        claims: Mapping[str, ShareClaim] = {}
        if lending is not None:
            claims = lending.claims([self._waiting(number) for number in self._queue])
            self._queue.sort(key=lambda number: str(number) not in claims)
        started, leaving = set(), set()
        nobody_waits = True
        for number in self._queue:
            claim = claims.get(str(number))
            if walk.is_over and claim is None:
                break
            placed: BackfillStart | Reservation | None = walk.start(self._want(number))
            if placed is None and lending is not None and claim is not None:
                clearing = lending.clear(self._waiting(number), claim)
                if clearing is not None:
                    leaving |= {int(victim.job_id) for victim in clearing.victims}
                    continue
            placed = placed or walk.reserve(self._want(number))
            if isinstance(placed, BackfillStart):
                self._start(number, placed, now)
                started.add(number)
            elif nobody_waits:
                nobody_waits = False
                self._promise(number, placed)
        self._queue = [number for number in self._queue if number not in started]
        for number in sorted(leaving):
            self._preempt(number, now)
        return bool(leaving)

    def _preempt(self, number: int, now: float) -> None:
        self._cut(number, now)
        assert self._ledger is not None, "only lent nodes are taken back"
        self._ledger.preempted(self.runs[number].job.lab)

    def _waiting(self, number: int) -> WaitingJob:
        run, want = self.runs[number], self._want(number)
        return as_waiting(number, run.job, want.seconds, may_be_cut=want.may_be_cut)

    def _order(self, now: float) -> Callable[[int], tuple[float, int]]:
        if not self._fair:
            return lambda number: (0.0, number)  # numbers are in order of submission
        nodes = sum(self._workload.nodes.values())
        share_s = nodes * MEAN_LIFE_H * 3600 / max(1, len(self._used))

        def key(number: int) -> tuple[float, int]:
            job = self.runs[number].job
            standing = UserShare(self._used_by(job.user, now) / share_s)
            return -points(now - job.submitted_s, job.wall_s, standing), number

        return key

    def _used_by(self, user: str, now: float) -> float:
        node_s, at = self._used.get(user, (0.0, now))
        return node_s * math.exp2((at - now) / HALF_LIFE.total_seconds())

    def _charge(self, number: int, held: _HeldNodes, now: float) -> None:
        user = self.runs[number].job.user
        node_s = (now - held.start) * held.nodes.bit_count()
        self._used[user] = (self._used_by(user, now) + node_s, now)

    def _want(self, number: int) -> Want:
        run = self.runs[number]
        return Want(
            str(number),
            run.job.num_nodes,
            run.wall_left_s + run.restart_s,
            run.job.classes,
            may_be_cut=run.in_vain < CUTS_IN_VAIN,
        )

    def _promise(self, number: int, reservation: Reservation | None) -> None:
        """Record the reservation of the first waiting job; count it if it has moved to later."""
        start = reservation.start if reservation else math.inf
        first, promised = self._promised
        self._put_off += number == first and start > promised
        self._promised = number, start

    def _start(self, number: int, start: BackfillStart, now: float) -> None:
        run = self.runs[number]
        overhead_s = run.restart_s
        run.starts.append(now)
        self._lanes[start.class_name].take(start.nodes, now, start.end)
        done = now + overhead_s + run.left_s
        is_cut = start.is_cut and done > start.end
        what, when = (Happening.CUT, start.end) if is_cut else (Happening.ENDED, done)
        self._held[number] = _HeldNodes(
            start.class_name, start.nodes, now, start.end, overhead_s, when
        )
        heapq.heappush(self._events, (when, what, number))
        if self._ledger:
            self._ledger.change(run.job.lab, start.nodes.bit_count(), now)
        if self._cluster:
            self._cluster.start(number, run.job, start.class_name, start.nodes, now, start.end)
            heapq.heappush(self._events, (now + self._least_run_s, Happening.HAS_RUN, number))

    def _measured(self) -> ReplayResult:
        runs = self.runs
        waits_h = sorted(run.wait_h for run in runs)
        ends = [run.ended_s for run in runs] or [self._begins]
        nodes = sum(self._workload.nodes.values())
        makespan_s = max(max(ends) - self._begins, 1.0)
        useful_node_s = sum(run.job.run_s * run.job.num_nodes for run in runs)
        leases = len(self._workload.leases)
        return ReplayResult(
            workload=self._workload.name,
            jobs=len(runs),
            mean_wait_h=_mean(waits_h),
            median_wait_h=quantile(waits_h, 0.5),
            p95_wait_h=quantile(waits_h, 0.95),
            bounded_slowdown_10=_mean([_slowdown(run, 10.0) for run in runs]),
            bounded_slowdown_600=_mean([_slowdown(run, 600.0) for run in runs]),
            utilisation=(useful_node_s + self._leased_node_s) / (nodes * makespan_s),
            fairness=_jain(_by_user(runs)),
            leases=leases,
            accepted=self._accepted / leases if leases else 1.0,
            cuts=self._cuts,
            lost_node_h=self._lost_node_s / 3600,
            put_off=self._put_off,
            makespan_h=makespan_s / 3600,
            hash=_hash(runs),
            labs=self._ledger.measured(_waits_by_lab(runs)) if self._ledger else {},
        )


def _waits_by_lab(runs: Sequence[JobRun]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for run in runs:
        found.setdefault(run.job.lab, []).append(run.wait_h)
    return found


def _slowdown(run: JobRun, bound_s: float) -> float:
    """Return the bounded slowdown: turnaround time / run time, at least 1.

    A job shorter than the bound counts as that long.
    """
    took_s = run.ended_s - run.job.submitted_s
    return max(1.0, took_s / max(run.job.run_s, bound_s))


def _by_user(runs: Sequence[JobRun]) -> list[float]:
    found: dict[str, list[float]] = {}
    for run in runs:
        found.setdefault(run.job.user, []).append(_slowdown(run, 600.0))
    return [statistics.fmean(values) for values in found.values()]


def _jain(values: Sequence[float]) -> float:
    """Return Jain's fairness index: 1 if all are equal, 1/n if one has everything.

    Source: Jain, Chiu, Hawe 1984.
    """
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else 0.0


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the smallest value that at least a `share` (0 to 1) of the values does not exceed."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0


def _hash(runs: Sequence[JobRun]) -> str:
    digest = hashlib.sha256()
    for run in runs:
        digest.update(f"{[round(s, 3) for s in run.starts]} {run.ended_s:.3f}\n".encode())
    return digest.hexdigest()[:16]
