"""Lending between labs in the queue, and preemption to give nodes back. Pure.

A policy may promise labs shares: a number of slots (GPUs) of the nodes that it names. Jobs of other
labs may *borrow* the part of a share that its lab does not use. Waiting jobs for which their lab's
share has room come before all others, and if nothing is free for one, borrowing jobs give way: the
fewest that free enough nodes, of those the youngest. Each is stopped as a whole, and saved first.
A job in a booked lease is never stopped, nor one that has not yet run as long as the policy grants.

Preemption can't go in a circle: a job that gets nodes back is within its lab's share from then on,
so no job may preempt it, and a job that had to leave is beyond its lab's share as long as the lab's
other jobs run.

A claim that saves checkpoints is soft-fitted like any job, also on nodes that others have to leave
for it. Otherwise a lab of long jobs would never get back the nodes that it has lent if people book
leases every day.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import NamedTuple

from core.policy.document import Policy
from core.states import JobState, LeaseState
from core.tables.kinds import LeaseKind
from scheduler.queue.backfill import SoftNodes
from scheduler.queue.masks import lowest
from scheduler.queue.timeline import CLEANING_S, Timeline
from scheduler.snapshot import AttemptSnapshot, LeaseSnapshot, NodeSnapshot, Snapshot, WaitingJob

LEAVING_S = 300.0  # most time to save and stop; a lease may begin no sooner after the wall time
Cost = tuple[int, int, float]
"""Number of jobs stopped, number of nodes freed, seconds that the jobs have run."""


class JobGroup(NamedTuple):
    """Jobs that share nodes and free them only together. Mostly it is one job."""

    jobs: tuple[str, ...]
    nodes: int
    """Mask of the nodes that they would free."""
    ran_s: float
    """Sum of the times that they have run, in seconds."""


@dataclass(frozen=True)
class ShareClaim:
    """Right of a waiting job to nodes for which its lab's share has room."""

    policy: Policy
    lab: str
    classes: tuple[str, ...]
    """Names of the classes on which it would fit into the share, smallest first."""


@dataclass(frozen=True)
class Clearing:
    """Nodes on which a job starts as soon as other jobs have left them."""

    lab: str
    """Name of the lab whose share the nodes are taken back for."""
    nodes: tuple[NodeSnapshot, ...]
    victims: tuple[AttemptSnapshot, ...]
    """Attempts of borrowing jobs that must be stopped for it now, one for each of their nodes."""
    leaving: tuple[str, ...]
    """Ids of all jobs on these nodes and all victims: they leave, or will be asked to."""
    cut_at: float | None = None
    """Time at which a lease takes the nodes before the job's wall time is over, if one does: the
    job is saved then, and goes on later."""


class _Choice(NamedTuple):
    """Nodes that a claim could have if the jobs of `groups` left."""

    class_name: str
    nodes: int
    groups: tuple[JobGroup, ...]
    freed: int
    """Number of nodes that the groups have to free."""
    end: float
    """Time until which the claim has the nodes."""


@dataclass
class _Company:
    """Walk-in leases that share jobs, with the attempts in them."""

    user_id: str
    node_ids: list[str] = field(default_factory=list)
    attempts: list[AttemptSnapshot] = field(default_factory=list)

    @property
    def is_leaving(self) -> bool:
        return all(each.job_state is JobState.STOPPING for each in self.attempts)


def fewest(groups: Iterable[JobGroup], needed: int) -> tuple[JobGroup, ...] | None:
    """Return the choice of groups with the fewest jobs that frees `needed` nodes; None if none
    does.

    Of equal choices the one that frees the fewest nodes, then the one whose jobs have run least.
    """
    best: list[tuple[Cost, tuple[JobGroup, ...]] | None] = [None] * (needed + 1)
    best[0] = (0, 0, 0.0), ()
    for group in groups:
        freed = group.nodes.bit_count()
        for have in range(needed - 1, -1, -1):
            before = best[have]
            if before is None:
                continue
            (jobs, nodes, ran_s), chosen = before
            cost = (jobs + len(group.jobs), nodes + freed, ran_s + group.ran_s)
            reached = min(needed, have + freed)
            known = best[reached]
            if freed and (known is None or cost < known[0]):
                best[reached] = cost, (*chosen, group)
    found = best[needed]
    return found[1] if found else None


class Lending:
    """Use of the labs' shares, and claims on them, while a cycle gives nodes out."""

    def __init__(
        self, world: Snapshot, timeline: Timeline, soft: Mapping[str, SoftNodes] | None = None
    ) -> None:
        """Read the use of the shares from `world`.

        `soft` gives by class the nodes on which jobs may be cut, and the shortest gap; None: none.
        """
        self._world, self._timeline, self._soft = world, timeline, soft or {}
        policies = {policy.id: policy for policy in world.policies.values()}
        self._policies = [policy for policy in policies.values() if policy.scheduling.shares]
        self._place = {
            node.id: (class_name, 1 << number)
            for class_name, nodes in timeline.nodes.items()
            for number, node in enumerate(nodes)
        }
        self._used: Counter[tuple[str, str | None]] = Counter()
        """Slots in use, by policy and lab."""
        self._leaving: dict[tuple[str, str], int] = {}
        """Map (policy, class) -> mask of the nodes that jobs are leaving."""
        self._borrowed: dict[tuple[str, str], list[JobGroup]] = {}
        """Map (policy, class) -> groups of borrowing jobs that may be stopped."""
        self._promised: Counter[str] = Counter()
        """Map class -> mask of the nodes that claims have got in this cycle."""
        if self._policies:
            self._look()

    def claims(self, queue: Sequence[WaitingJob]) -> Mapping[str, ShareClaim]:
        """Map job id -> claim, for the jobs of a queue for which their labs' shares have room.

        The queue's order is kept. A job that would fit if other jobs of its lab had ended holds
        back its lab's later ones: otherwise small jobs would always come before it.
        """
        found: dict[str, ShareClaim] = {}
        taken = self._used.copy()
        for policy in self._policies:
            kept_back: set[str] = set()
            for job in queue:
                lab = self._world.labs.get(job.user_id)
                share = policy.scheduling.shares.get(lab or "", 0)
                sizes = self._sizes(job, policy)
                if lab is None or lab in kept_back or job.id in found or not sizes:
                    continue
                left = share - taken[policy.id, lab]
                classes = tuple(name for name, size in sizes if size <= left)
                if classes:
                    found[job.id] = ShareClaim(policy, lab, classes)
                    taken[policy.id, lab] += dict(sizes)[classes[0]]
                elif min(size for _, size in sizes) <= share:
                    kept_back.add(lab)
        return found

    def lends_to(self, node_ids: Iterable[str]) -> bool:
        """Return True if a policy of one of these nodes promises shares, so that a job beyond its
        lab's share may have to give them back."""
        return any(self._world.scheduling_of(node_id).shares for node_id in node_ids)

    def clear(self, job: WaitingJob, claim: ShareClaim) -> Clearing | None:
        """Return the nodes that a claim gets because other jobs leave them; None if too few can be
        freed.

        The nodes are free for its whole wall time; if none are, and the job may be cut, in the
        longest gap in front of a lease that is long enough for a start.
        """
        end = self._timeline.now + job.wall_left_s + CLEANING_S
        whole = (self._choose(job, claim, name, end, spare_s=LEAVING_S) for name in claim.classes)
        best = min((one for one in whole if one), key=_cost, default=None)
        if best is None and job.may_be_cut:
            best = self._choose_gap(job, claim, end)
        return self._promise(job, claim, best, is_cut=best.end != end) if best else None

    def _choose_gap(self, job: WaitingJob, claim: ShareClaim, end: float) -> _Choice | None:
        """Pick the gap in front of a lease: the longest, then the one with the fewest preemptions.

        Gaps are cut to `end`, the end of the job's wall time.
        """
        found = []
        for class_name in claim.classes:
            for least_s, nodes in self._soft.get(class_name, {}).items():
                for gap_end in self._timeline.gap_ends(class_name):
                    choice = self._choose(job, claim, class_name, min(end, gap_end), among=nodes)
                    if choice is None:
                        continue
                    leaving_s = LEAVING_S if choice.groups else 0.0
                    if gap_end - self._timeline.now >= least_s + leaving_s:
                        found.append(choice)
                    break
        return min(found, key=lambda one: (-one.end, _cost(one)), default=None)

    def _choose(
        self,
        job: WaitingJob,
        claim: ShareClaim,
        class_name: str,
        end: float,
        *,
        among: int = -1,
        spare_s: float = 0.0,
    ) -> _Choice | None:
        """Choose the jobs that leave, so that a claim has nodes of a class (of the mask `among`)
        until `end`; no lease takes them until `spare_s` later. None if too few can be freed."""
        key, until = (claim.policy.id, class_name), end + spare_s
        free = self._timeline.lanes[class_name].free(self._timeline.now, until)
        open_to_it = self._timeline.clearable(class_name, until) & ~self._promised[class_name]
        open_to_it &= among & ~self._timeline.short(class_name, job.ranks)
        at_hand = (free | self._leaving.get(key, 0)) & open_to_it
        groups = [
            group._replace(nodes=group.nodes & open_to_it) for group in self._borrowed.get(key, [])
        ]
        needed = max(0, job.num_nodes - at_hand.bit_count())
        chosen = fewest(groups, needed)
        if chosen is None:
            return None
        nodes = lowest(at_hand, job.num_nodes)
        for group in chosen:
            nodes |= lowest(group.nodes, job.num_nodes - nodes.bit_count())
        return _Choice(class_name, nodes, chosen, needed, end)

    def _promise(
        self, job: WaitingJob, claim: ShareClaim, choice: _Choice, *, is_cut: bool
    ) -> Clearing:
        """Take the chosen nodes from all later jobs of this cycle; return the clearing."""
        class_name, nodes = choice.class_name, choice.nodes
        key = claim.policy.id, class_name
        stopped = {job_id for group in choice.groups for job_id in group.jobs}
        whole = [each for each in self._borrowed.get(key, []) if stopped & set(each.jobs)]
        self._borrowed[key] = [each for each in self._borrowed.get(key, []) if each not in whole]
        for group in whole:
            self._leaving[key] = self._leaving.get(key, 0) | group.nodes
        self._promised[class_name] |= nodes
        self._timeline.lanes[class_name].take(nodes, -math.inf, choice.end)
        self._timeline.planned(class_name, nodes, choice.end, job.id)
        victims = [
            attempt
            for attempt in self._world.attempts
            if attempt.job_id in stopped and attempt.job_state is not JobState.STOPPING
        ]
        node_ids = set(self._timeline.node_ids(class_name, nodes))
        there = {each.job_id for each in self._world.attempts if each.node_id in node_ids}
        return Clearing(
            claim.lab,
            tuple(self._world.nodes[node_id] for node_id in sorted(node_ids)),
            tuple(victims),
            tuple(sorted(there | stopped)),
            choice.end if is_cut else None,
        )

    def _sizes(self, job: WaitingJob, policy: Policy) -> list[tuple[str, int]]:
        """Return (class, slots) that a job would take of the policy's nodes, smallest first."""
        found = []
        for class_name in job.classes:
            nodes = self._timeline.nodes.get(class_name, ())
            named = sum(self._policy_of(node.id) is policy for node in nodes)
            if named >= job.num_nodes:
                found.append((class_name, self._slots(class_name) * job.num_nodes))
        return found

    def _look(self) -> None:
        """Add up the slots of every lab, oldest jobs first: jobs beyond its share borrow."""
        own: Counter[tuple[str, str | None]] = Counter()
        for company in sorted(self._companies(), key=_begun):
            lab = self._world.labs.get(company.user_id)
            sizes: Counter[str] = Counter()
            for node_id in company.node_ids:
                policy = self._policy_of(node_id)
                if policy is not None:
                    slots = self._slots(self._world.nodes[node_id].class_name)
                    sizes[policy.id] += slots
            for policy in self._policies:
                size = sizes[policy.id]
                if not size:
                    continue
                key = policy.id, lab
                if company.is_leaving:
                    self._note_leaving(company, policy)
                    continue
                self._used[key] += size
                if own[key] + size <= policy.scheduling.shares.get(lab or "", 0):
                    own[key] += size
                elif len(sizes) == 1:
                    self._note_borrowed(company, policy)

    def _companies(self) -> list[_Company]:
        """Return all walk-ins; those with a job in common form one company."""
        in_lease: dict[str, list[AttemptSnapshot]] = {}
        parts: dict[str, list[AttemptSnapshot]] = {}
        for attempt in self._world.attempts:
            in_lease.setdefault(attempt.lease_id, []).append(attempt)
            parts.setdefault(attempt.job_id, []).append(attempt)
        left = {lease.id: lease for lease in self._world.leases.values() if _is_walk_in(lease)}
        found = []
        while left:
            _, lease = left.popitem()
            company, next_ones = _Company(lease.user_id), [lease]
            while next_ones:
                lease = next_ones.pop()
                company.node_ids.append(lease.node_id)
                company.attempts += in_lease.get(lease.id, [])
                beside = {
                    part.lease_id
                    for attempt in in_lease.get(lease.id, [])
                    for part in parts[attempt.job_id]
                }
                next_ones += [left.pop(lease_id) for lease_id in sorted(beside & left.keys())]
            found.append(company)
        return found

    def _note_leaving(self, company: _Company, policy: Policy) -> None:
        for node_id in company.node_ids:
            place = self._place.get(node_id)
            if place is not None and self._policy_of(node_id) is policy:
                class_name, bit = place
                key = policy.id, class_name
                self._leaving[key] = self._leaving.get(key, 0) | bit

    def _note_borrowed(self, company: _Company, policy: Policy) -> None:
        """Add a company's jobs to those that may be stopped, if the policy lets them be now."""
        rules, now = policy.scheduling, self._world.now
        places = [self._place.get(node_id) for node_id in company.node_ids]
        least = timedelta(minutes=rules.min_run_min)
        running = (JobState.RUNNING, JobState.STOPPING)
        for attempt in company.attempts:
            saves = attempt.job_id in self._world.savers or rules.preemptible == "all"
            if not saves or attempt.job_state not in running or now - attempt.assigned_at < least:
                return
        classes = {place[0] for place in places if place}
        if None in places or len(classes) != 1:
            return
        jobs = {attempt.job_id: attempt for attempt in company.attempts}
        ran_s = sum((now - attempt.assigned_at).total_seconds() for attempt in jobs.values())
        nodes = 0
        for place in places:
            nodes |= place[1] if place else 0
        key = policy.id, classes.pop()
        self._borrowed.setdefault(key, []).append(JobGroup(tuple(sorted(jobs)), nodes, ran_s))

    def _policy_of(self, node_id: str) -> Policy | None:
        return self._world.policies.get(node_id)

    def _slots(self, class_name: str) -> int:
        return self._world.classes[class_name].slots


def _is_walk_in(lease: LeaseSnapshot) -> bool:
    # Nothing is taken back from a part of a node: its neighbours would stay.
    is_whole = lease.num_slots is None
    is_live = lease.state in (LeaseState.ACTIVE, LeaseState.ENDING)
    return lease.kind is LeaseKind.WALK_IN and is_live and is_whole


def _cost(choice: _Choice) -> tuple[int, int]:
    return sum(len(group.jobs) for group in choice.groups), choice.freed


def _begun(company: _Company) -> tuple[float, str]:
    """Return a sort key: oldest first; companies in which nothing runs any more come last."""
    starts = [attempt.assigned_at.timestamp() for attempt in company.attempts]
    return min(starts, default=math.inf), min(company.node_ids)
