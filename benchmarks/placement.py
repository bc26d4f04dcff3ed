"""Planning a long queue: 10,000 waiting jobs on 1,000 nodes over 14 days, leases booked ahead.

Once with whole nodes, and once with parts of nodes of eight slots.
"""

import random
import statistics
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from core.policy.document import DEFAULT, Policy
from core.policy.grid import hour_floor
from core.states import LeaseState, NodeState, Sharing
from core.tables.kinds import LeaseKind
from scheduler.main import collect_rarely
from scheduler.queue.backfill import QueueRules
from scheduler.queue.fitting import Need
from scheduler.queue.ordering import next_first
from scheduler.queue.placement import Later, WalkIn, decide
from scheduler.queue.sentences import reason_for
from scheduler.snapshot import LeaseSnapshot, NodeHold, NodeSnapshot, Snapshot, WaitingJob
from strategies.plan.hardware import Hardware

JOBS, NODES, DAYS = 10_000, 1_000, 14
BOOKED_SHARE = 0.3
CLASSES = ("cpu2", "a100x1", "a100x4", "v100x4")
GANGS = (1,) * 8 + (2, 4)  # nodes of a job
SLOTS = 8
SIZES = (1, 2, 4, 8)  # of leases and jobs, where parts of nodes are leased
REPEATS = 5


def measure(
    *, jobs: int = JOBS, nodes: int = NODES, repeats: int = REPEATS, slots: int = 1
) -> dict[str, float]:
    """Return the sizes of the world and the median CPU seconds of one planning.

    `plan_s` is the time to order and plan all jobs, `plan_and_sentences_s` that with a sentence for
    each job that waits.
    """
    world = make_world(jobs=jobs, nodes=nodes, slots=slots)
    collect_rarely()  # as the scheduler's process does
    plan_s, told_s = [], []
    started = later = 0
    for _ in range(repeats):
        begun = time.process_time()
        order = next_first(world.waiting, world.now, {})
        decisions = decide(order, world, rules=QueueRules(), grace_s=DEFAULT.grid.grace_s)
        planned = time.process_time()
        need = Need(node_class=None, ranks=1, needed_gib=1.0, device="cuda")
        for job, decision in decisions:
            if not isinstance(decision, WalkIn):
                reason_for(job, decision, world, need)
        plan_s.append(planned - begun)
        told_s.append(time.process_time() - begun)
        started = sum(isinstance(decision, WalkIn) for _, decision in decisions)
        later = sum(isinstance(d, Later) and d.slot is not None for _, d in decisions)
    assert started + later == jobs, "every job has a slot"
    return {
        "jobs": jobs,
        "nodes": nodes,
        "holds": len(world.holds),
        "started": started,
        "plan_s": statistics.median(plan_s),
        "plan_and_sentences_s": statistics.median(told_s),
    }


def rows() -> list[tuple[str, str, str]]:
    """Return rows for docs/benchmarks.md: name, measured value, goal."""
    return [_row(measure(), "nodes"), _row(measure(slots=SLOTS), f"nodes of {SLOTS} slots")]


def _row(found: dict[str, float], of: str) -> tuple[str, str, str]:
    return (
        f"{found['jobs']:,.0f} queued jobs planned on {found['nodes']:,.0f} {of} over "
        f"{DAYS} days with {found['holds']:,.0f} booked leases",
        f"{found['plan_s']:.2f} s; {found['plan_and_sentences_s']:.2f} s with a sentence each",
        "< 1 s",
    )


def make_world(*, jobs: int, nodes: int, slots: int = 1, seed: int = 1) -> Snapshot:
    """Return nodes of four classes, three tenths of their hours booked, and waiting jobs of 5
    minutes to 12 hours. With several slots, leases and jobs have 1, 2, 4 or 8 of them."""
    rng = random.Random(seed)
    parts = random.Random(seed)
    sizes = [size for size in SIZES if size <= slots]
    now = datetime(2026, 11, 21, 10, 57, tzinfo=UTC)
    seen = {
        f"node_{number:04}": NodeSnapshot(
            id=f"node_{number:04}",
            name=f"n-{number:04}",
            class_name=CLASSES[number % len(CLASSES)],
            state=NodeState.READY,
            reason="",
            clean=True,
            boot_id="b",
            last_seen_at=now,
            unreachable_since=None,
            heard=True,
            slots=slots,
            sharing=Sharing.FULL if slots > 1 else Sharing.NONE,
        )
        for number in range(nodes)
    }
    leases: dict[str, LeaseSnapshot] = {}
    holds: list[NodeHold] = []
    for node_id in seen:
        start = hour_floor(now) + timedelta(hours=rng.randint(1, 8))
        while start < now + timedelta(days=DAYS):
            end = start + timedelta(hours=rng.randint(1, 4))
            lease = LeaseSnapshot(
                id=f"lease_{len(leases)}",
                user_id="user",
                node_id=node_id,
                kind=LeaseKind.BOOKED,
                state=LeaseState.BOOKED,
                reason="",
                hold_start=start,
                hold_end=end,
                usable_end=end - timedelta(minutes=5),
            )
            leases[lease.id] = lease
            size = parts.choice(sizes)
            num_slots = None if size == slots else size
            holds.append(NodeHold(node_id, lease.id, start, end, num_slots=num_slots))
            free_hours = (end - start).total_seconds() / 3600 * (1 / BOOKED_SHARE - 1)
            start = end + timedelta(hours=round(rng.uniform(0, 2 * free_hours)))
    waiting = [
        WaitingJob(
            id=f"job_{number:05}",
            name=f"job_{number:05}",
            user_id="user",
            epoch=0,
            lease_ids=(),
            ranks=parts.choice(sizes),
            owner_disabled=False,
            queued_at=now - timedelta(seconds=rng.random() * 1e5),
            not_before=None,
            wall_time_s=(wall_s := rng.randint(5, 720) * 60),
            wall_left_s=wall_s,
            failures=0,
            saving_on=None,
            classes=CLASSES[rng.randint(0, 3) :],
            num_nodes=rng.choice(GANGS),
            may_be_cut=True,
            in_vain=0,
            told=("", "", None),
        )
        for number in range(jobs)
    ]
    return Snapshot(
        now=now,
        nodes=seen,
        classes={
            name: Hardware(class_name=name, device="cuda", slots=slots, memory_gib=80.0)
            for name in CLASSES
        },
        holds=holds,
        leases=leases,
        attempts=[],
        last_exit={},
        waiting=waiting,
        policies=dict.fromkeys(seen, selling(sizes)) if slots > 1 else {},
    )


def selling(sizes: Sequence[int]) -> Policy:
    """Return a policy that sells parts of the nodes of all classes."""
    pools = {name: {"class": name, "gpus": list(sizes)} for name in CLASSES}
    return Policy.model_validate({"policy": {"id": "parts"}, "pools": pools})
