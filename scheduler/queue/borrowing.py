"""What labs lend each other in the queue, and how they get it back. Pure.

A policy may promise labs shares: so many slots (GPUs) of the nodes that it names. What a lab does
not use others may: their jobs *borrow* it. Waiting jobs that their lab's share has room for come
before all others, and where nothing is free for one, borrowed jobs give way: the fewest that free
enough nodes, of those the youngest, whole, and saved first. Never one in a booked lease, nor one
that has not run as long as the policy grants.

It can't go in a circle: who gets nodes back is within the share from then on, so that nobody may
preempt it, and who had to leave is beyond its own as long as its lab's other jobs run.

A claim that saves checkpoints is soft-fitted like any job, also on nodes that others have to leave
for it: else a lab of long jobs would never get back what it has lent where people book every day.
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
from scheduler.snapshot import AttemptSeen, LeaseSeen, NodeSeen, Snapshot, Waiting

LEAVING_S = 300.0  # to save and stop, at most: a lease sooner after the wall time is too near
Cost = tuple[int, int, float]
"""Jobs that are stopped, nodes that they free, seconds that they have run."""


class Group(NamedTuple):
    """Jobs that share nodes, so that only together do they free them. Mostly it is one job."""

    jobs: tuple[str, ...]
    nodes: int
    """A mask of the nodes that they would free."""
    ran_s: float
    """How long they have run, together."""


@dataclass(frozen=True)
class Claim:
    """A waiting job that its lab's share has room for."""

    policy: Policy
    lab: str
    classes: tuple[str, ...]
    """On which it would fit into the share, smallest first."""


@dataclass(frozen=True)
class Clearing:
    """It starts on these nodes as soon as others have left them."""

    lab: str
    """Whose share it is."""
    nodes: tuple[NodeSeen, ...]
    victims: tuple[AttemptSeen, ...]
    """Borrowed jobs that are to be stopped for it now, on each of their nodes."""
    leaving: tuple[str, ...]
    """Ids of all jobs that are, or will be, on their way out."""
    cut_at: float | None = None
    """When a lease takes the nodes before its wall time is over: it is saved, and goes on later."""


class _Choice(NamedTuple):
    """Nodes that a claim could have if these jobs left."""

    class_name: str
    nodes: int
    groups: tuple[Group, ...]
    freed: int
    """How many nodes they have to leave."""
    end: float
    """Until when it has them."""


@dataclass
class _Company:
    """Walk-ins that share jobs, and what runs in them."""

    user_id: str
    node_ids: list[str] = field(default_factory=list)
    attempts: list[AttemptSeen] = field(default_factory=list)

    @property
    def is_leaving(self) -> bool:
        return all(each.job_state is JobState.STOPPING for each in self.attempts)


def fewest(groups: Iterable[Group], needed: int) -> tuple[Group, ...] | None:
    """Of all choices that free so many nodes the one of the fewest jobs; None if there is none.

    Of equals the one that frees the fewest nodes, then that of the jobs that have run least.
    """
    best: list[tuple[Cost, tuple[Group, ...]] | None] = [None] * (needed + 1)
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
    """Who has what of whose share, while a cycle gives nodes out."""

    def __init__(
        self, world: Snapshot, timeline: Timeline, soft: Mapping[str, SoftNodes] | None = None
    ) -> None:
        """`soft` says by class where jobs may be cut, and in how long a gap; None: nowhere."""
        self._world, self._timeline, self._soft = world, timeline, soft or {}
        policies = {policy.id: policy for policy in world.policies.values()}
        self._policies = [policy for policy in policies.values() if policy.scheduling.shares]
        self._place = {
            node.id: (class_name, 1 << number)
            for class_name, nodes in timeline.nodes.items()
            for number, node in enumerate(nodes)
        }
        self._used: Counter[tuple[str, str | None]] = Counter()
        """Slots, by policy and lab."""
        self._leaving: dict[tuple[str, str], int] = {}
        """By policy and class the nodes that are being left."""
        self._borrowed: dict[tuple[str, str], list[Group]] = {}
        """By policy and class what may be stopped."""
        self._promised: Counter[str] = Counter()
        """By class the nodes, a mask, that a claim has got in this cycle."""
        if self._policies:
            self._look()

    def claims(self, queue: Sequence[Waiting]) -> Mapping[str, Claim]:
        """The jobs of a queue, in its order, that their labs' shares have room for, by id.

        One that would fit if others of its lab were over keeps its lab's later ones back: else the
        small ones would always come before it.
        """
        found: dict[str, Claim] = {}
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
                    found[job.id] = Claim(policy, lab, classes)
                    taken[policy.id, lab] += dict(sizes)[classes[0]]
                elif min(size for _, size in sizes) <= share:
                    kept_back.add(lab)
        return found

    def lends_to(self, node_ids: Iterable[str]) -> bool:
        """Whether who has these nodes beyond the own share must give them back if asked."""
        return any(self._world.scheduling_of(node_id).shares for node_id in node_ids)

    def clear(self, job: Waiting, claim: Claim) -> Clearing | None:
        """The nodes that it gets because others leave them; None if too few can be freed.

        For its whole wall time; if there are none, then in the longest gap in front of a lease
        that is worth it, as far as it may be cut.
        """
        end = self._timeline.now + job.wall_left_s + CLEANING_S
        whole = (self._choose(job, claim, name, end, spare_s=LEAVING_S) for name in claim.classes)
        best = min((one for one in whole if one), key=_cost, default=None)
        if best is None and job.may_be_cut:
            best = self._choose_gap(job, claim, end)
        return self._promise(job, claim, best, is_cut=best.end != end) if best else None

    def _choose_gap(self, job: Waiting, claim: Claim, end: float) -> _Choice | None:
        """In front of which lease it is cut: where it has longest, then where fewest leave."""
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
        job: Waiting,
        claim: Claim,
        class_name: str,
        end: float,
        *,
        among: int = -1,
        spare_s: float = 0.0,
    ) -> _Choice | None:
        """Who leaves, so that it has nodes of a class (of those `among`, a mask) until `end`, and
        for so long after it."""
        key, until = (claim.policy.id, class_name), end + spare_s
        free = self._timeline.lanes[class_name].free(self._timeline.now, until)
        open_to_it = self._timeline.clearable(class_name, until) & ~self._promised[class_name]
        open_to_it &= among
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

    def _promise(self, job: Waiting, claim: Claim, choice: _Choice, *, is_cut: bool) -> Clearing:
        """Let nobody else have the nodes in this cycle."""
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

    def _sizes(self, job: Waiting, policy: Policy) -> list[tuple[str, int]]:
        """By class, smallest first, the slots that it would take of the policy's nodes."""
        found = []
        for class_name in job.classes:
            nodes = self._timeline.nodes.get(class_name, ())
            named = sum(self._policy_of(node.id) is policy for node in nodes)
            if named >= job.num_nodes:
                found.append((class_name, self._slots(class_name) * job.num_nodes))
        return found

    def _look(self) -> None:
        """What every lab has, the oldest jobs first: those beyond its share borrow."""
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
        """All walk-ins, those together that have a job in common."""
        in_lease: dict[str, list[AttemptSeen]] = {}
        parts: dict[str, list[AttemptSeen]] = {}
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
        """If it may be stopped now."""
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
        self._borrowed.setdefault(key, []).append(Group(tuple(sorted(jobs)), nodes, ran_s))

    def _policy_of(self, node_id: str) -> Policy | None:
        return self._world.policies.get(node_id)

    def _slots(self, class_name: str) -> int:
        return self._world.classes[class_name].slots


def _is_walk_in(lease: LeaseSeen) -> bool:
    return lease.kind is LeaseKind.WALK_IN and lease.state in (
        LeaseState.ACTIVE,
        LeaseState.ENDING,
    )


def _cost(choice: _Choice) -> tuple[int, int]:
    return sum(len(group.jobs) for group in choice.groups), choice.freed


def _begun(company: _Company) -> tuple[float, str]:
    """The oldest first; those in which nothing runs any more do not matter."""
    starts = [attempt.assigned_at.timestamp() for attempt in company.attempts]
    return min(starts, default=math.inf), min(company.node_ids)
