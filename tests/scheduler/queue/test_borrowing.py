"""Labs lend each other what they do not use, and get it back: the fewest jobs, whole and saved."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import select

from core.base.ids import IdKind, new_id
from core.database.database import Database
from core.policy.document import load
from core.states import AttemptState, JobState, LeaseState, NodeState, Outcome, Phase
from core.tables.jobs import Event
from core.tables.kinds import LeaseKind
from core.tables.people import Lab, Membership
from scheduler.queue.backfill import QueueRules
from scheduler.queue.borrowing import Clearing, JobGroup, fewest
from scheduler.queue.placement import Decision, WalkIn, cut_hold_end, decide
from scheduler.snapshot import (
    AttemptSnapshot,
    LeaseSnapshot,
    NodeHold,
    NodeSnapshot,
    Snapshot,
    WaitingJob,
)
from strategies.plan.hardware import Hardware
from tests.scheduler.world import World, at, waiting_job

NOW = at(10, 57)
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
LABS = {"user_ada": "vision", "user_bob": "speech"}  # eve is in no lab
SHARES = """
policy: {id: shared, version: 1}
scheduling: {shares: {vision: 4, speech: 2}, min_run_min: 30}
"""


# -------------------------------------------------------------------------------------- the choice

GROUPS = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 4), st.integers(0, 99)), max_size=7)


def groups_of(sizes: Sequence[tuple[int, int, int]]) -> list[JobGroup]:
    """Groups of so many jobs, nodes and seconds; no two have a node in common."""
    found, first = [], 0
    for number, (jobs, nodes, ran_s) in enumerate(sizes):
        names = tuple(f"job_{number}_{each}" for each in range(jobs))
        found.append(JobGroup(names, ((1 << nodes) - 1) << first, float(ran_s)))
        first += nodes
    return found


def cost(chosen: Sequence[JobGroup]) -> tuple[int, int, float]:
    return (
        sum(len(group.jobs) for group in chosen),
        sum(group.nodes.bit_count() for group in chosen),
        sum(group.ran_s for group in chosen),
    )


@settings(max_examples=200)
@given(GROUPS, st.integers(0, 8))
def test_of_all_choices_that_free_enough_the_one_of_the_fewest_jobs_is_taken(
    sizes: list[tuple[int, int, int]], needed: int
) -> None:
    groups = groups_of(sizes)
    every = [
        cost(chosen)
        for count in range(len(groups) + 1)
        for chosen in combinations(groups, count)
        if sum(group.nodes.bit_count() for group in chosen) >= needed
    ]
    found = fewest(groups, needed)
    assert (found is None) is (not every)
    if found is not None:
        assert cost(found) == min(every)
        assert len(set(found)) == len(found)


def test_of_equal_jobs_the_one_that_has_run_least_leaves() -> None:
    old, young, wide = groups_of([(1, 1, 90), (1, 1, 10), (1, 2, 5)])
    assert fewest([old, young, wide], 1) == (young,)
    assert fewest([old, young, wide], 2) == (wide,)  # one job, not two


# ------------------------------------------------------------------------------- any small cluster


@dataclass(frozen=True)
class Running:
    """A job on some nodes, since so many minutes ago."""

    id: str
    user: str
    nodes: tuple[int, ...]
    minutes: int
    saves: bool = True
    booked: bool = False
    stopping: bool = False


def node(number: int) -> NodeSnapshot:
    return NodeSnapshot(
        id=f"node_{number}",
        name=f"n-{number}",
        class_name="cpu2",
        state=NodeState.READY,
        reason="",
        clean=True,
        boot_id="b",
        last_seen_at=NOW,
        unreachable_since=None,
        heard=True,
    )


def waiting(job_id: str, user: str, num_nodes: int = 1, *, wall_s: int = 1200) -> WaitingJob:
    return waiting_job(job_id, user_id=user, queued_at=NOW, wall_time_s=wall_s, num_nodes=num_nodes)


def cluster(
    num_nodes: int,
    running: Sequence[Running],
    queue: Sequence[WaitingJob],
    policy: str = SHARES,
    *,
    booked: Mapping[int, datetime] | None = None,
) -> Snapshot:
    """What a scheduler would see of it. `booked` says from when on somebody has a node."""
    booked = booked or {}
    nodes = [node(number) for number in range(num_nodes)]
    leases, attempts = {}, []
    for job in running:
        for position, number in enumerate(job.nodes):
            began = NOW - job.minutes * MINUTE
            lease = LeaseSnapshot(
                id=f"lease_{job.id}_{number}",
                user_id=job.user,
                node_id=f"node_{number}",
                kind=LeaseKind.BOOKED if job.booked else LeaseKind.WALK_IN,
                state=LeaseState.ACTIVE,
                reason="",
                hold_start=began,
                hold_end=booked.get(number, at(16)),
                usable_end=booked.get(number, at(16)) - 5 * MINUTE,
            )
            leases[lease.id] = lease
            attempts.append(
                AttemptSnapshot(
                    id=f"att_{job.id}",
                    job_id=job.id,
                    epoch=1,
                    node_id=lease.node_id,
                    lease_id=lease.id,
                    state=AttemptState.STOPPING if job.stopping else AttemptState.RUNNING,
                    job_state=JobState.STOPPING if job.stopping else JobState.RUNNING,
                    position=position,
                    slots=(0, 1),
                    phase=Phase.RUNNING,
                    boot_id="b",
                    assigned_at=began,
                    prepared_at=None,
                    missing_since=None,
                    hold_end=lease.hold_end,
                    ends_at=min(at(15), lease.usable_end),
                )
            )
    rules = load(policy)
    return Snapshot(
        now=NOW,
        nodes={each.id: each for each in nodes},
        classes={"cpu2": Hardware(class_name="cpu2", device="cpu", slots=2, memory_gib=8.0)},
        holds=sorted(
            [
                *(NodeHold(x.node_id, x.id, x.hold_start, x.hold_end) for x in leases.values()),
                *(
                    NodeHold(f"node_{n}", f"booked_{n}", begin, at(23))
                    for n, begin in booked.items()
                ),
            ],
            key=lambda hold: (hold.node_id, hold.start),
        ),
        leases=leases,
        attempts=attempts,
        last_exit={},
        waiting=list(queue),
        policies={each.id: rules for each in nodes},
        labs=LABS,
        savers=frozenset(job.id for job in running if job.saves and not job.booked),
    )


def decisions_of(world: Snapshot) -> list[tuple[WaitingJob, Decision]]:
    return decide(world.waiting, world, rules=QueueRules(), grace_s=300)


def clearings(world: Snapshot) -> Iterator[tuple[WaitingJob, Clearing]]:
    for job, decision in decisions_of(world):
        if isinstance(decision, Clearing):
            yield job, decision


def stopped_by(world: Snapshot) -> set[str]:
    return {one.job_id for _, clearing in clearings(world) for one in clearing.victims}


USERS = st.sampled_from(["user_ada", "user_bob", "user_eve"])
SIZES = st.lists(
    st.tuples(USERS, st.integers(1, 3), st.integers(0, 90), st.booleans(), st.booleans()),
    max_size=6,
)
QUEUES = st.lists(st.tuples(USERS, st.integers(1, 3)), min_size=1, max_size=5)
POLICIES = st.builds(
    lambda vision, speech, least, which: (
        "policy: {id: shared, version: 1}\nscheduling: {shares: "
        f"{{vision: {vision}, speech: {speech}}}, min_run_min: {least}, preemptible: {which}}}\n"
    ),
    st.integers(1, 12),
    st.integers(1, 12),
    st.sampled_from([0, 30]),
    st.sampled_from(["checkpointable", "all"]),
)


def placed(sizes: list[tuple[str, int, int, bool, bool]], num_nodes: int) -> list[Running]:
    """As many of the jobs as fit, beside each other."""
    running: list[Running] = []
    first = 0
    for number, (user, wide, minutes, saves, booked) in enumerate(sizes):
        if first + wide > num_nodes:
            break
        nodes = tuple(range(first, first + wide))
        running.append(Running(f"run_{number}", user, nodes, minutes, saves, booked))
        first += wide
    return running


def used(running: Sequence[Running], lab: str | None) -> int:
    """Slots outside booked leases."""
    return sum(2 * len(r.nodes) for r in running if LABS.get(r.user) == lab and not r.booked)


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 8), SIZES, QUEUES, POLICIES)
def test_who_is_stopped_may_be_and_had_to_be(
    num_nodes: int,
    sizes: list[tuple[str, int, int, bool, bool]],
    wanted: list[tuple[str, int]],
    policy: str,
) -> None:
    running = placed(sizes, num_nodes)
    queue = [waiting(f"job_{n}", user, wide) for n, (user, wide) in enumerate(wanted)]
    world = cluster(num_nodes, running, queue, policy)
    rules = load(policy).scheduling
    by_id = {job.id: job for job in running}
    free = num_nodes - sum(len(job.nodes) for job in running)
    found = list(clearings(world))
    promised = [one.id for _, clearing in found for one in clearing.nodes]
    assert len(promised) == len(set(promised)), "two were promised one node"
    for job, clearing in found:
        lab = LABS[job.user_id]
        assert len(clearing.nodes) == job.num_nodes
        assert used(running, lab) + 2 * job.num_nodes <= rules.shares[lab]
        victims = {by_id[one.job_id] for one in clearing.victims}
        parts = {(one.job_id, one.node_id) for one in clearing.victims}
        assert parts == {(v.id, f"node_{n}") for v in victims for n in v.nodes}, "a part of a gang"
        for victim in victims:
            assert not victim.booked
            assert victim.saves or rules.preemptible == "all"
            assert victim.minutes >= rules.min_run_min
            its_lab = LABS.get(victim.user)
            assert used(running, its_lab) > rules.shares.get(its_lab or "", 0)
            assert its_lab != lab  # who is within its share has borrowed nothing
    if len(found) == 1 and found[0][1].victims:  # with several, one may use what another freed
        ((first, clearing),) = found
        for job, decision in decisions_of(world):
            if job.id == first.id:
                break
            free -= len(decision.node_ids) if isinstance(decision, WalkIn) else 0
        needed = len(clearing.nodes) - free
        victims = {by_id[one.job_id] for one in clearing.victims}
        freed = [len(victim.nodes) for victim in victims]
        assert sum(freed) >= needed
        assert all(sum(freed) - each < needed for each in freed), "one less would have done"


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 8), SIZES, QUEUES, POLICIES)
def test_nobody_is_stopped_in_a_circle(
    num_nodes: int,
    sizes: list[tuple[str, int, int, bool, bool]],
    wanted: list[tuple[str, int]],
    policy: str,
) -> None:
    """Even if nobody had to run for any time first, and whoever leaves waits at once again."""
    policy = policy.replace("min_run_min: 30", "min_run_min: 0")
    running = placed(sizes, num_nodes)
    queue = [waiting(f"job_{n}", user, wide) for n, (user, wide) in enumerate(wanted)]
    got_back: set[str] = set()
    for _ in range(30):
        world = cluster(num_nodes, running, queue, policy)
        decisions = decide(queue, world, rules=QueueRules(), grace_s=300)
        began: list[Running] = []
        gone: set[str] = set()
        for job, decision in decisions:
            if isinstance(decision, Clearing):
                gone |= {one.job_id for one in decision.victims}
                got_back.add(job.id)
                node_ids = [one.id for one in decision.nodes]
            elif isinstance(decision, WalkIn):
                node_ids = list(decision.node_ids)
            else:
                continue
            nodes = tuple(int(node_id.removeprefix("node_")) for node_id in node_ids)
            began.append(Running(job.id, job.user_id, nodes, 0))
        assert not gone & got_back, "who got its share back was stopped"
        if not began:
            return
        again = [waiting(r.id, r.user, len(r.nodes)) for r in running if r.id in gone]
        running = [replace(r, minutes=r.minutes + 1) for r in running if r.id not in gone] + began
        queue = again + [job for job in queue if job.id not in {r.id for r in began}]
    raise AssertionError("it never comes to rest")


# ------------------------------------------------------------------------------- told by examples


def test_borrowed_jobs_leave_for_one_within_the_share_the_youngest_first() -> None:
    running = [Running(f"run_{n}", "user_bob", (n,), 90 - n) for n in range(3)]
    world = cluster(3, running, [waiting("job_ada", "user_ada")])
    ((job, clearing),) = clearings(world)
    assert (job.id, clearing.lab) == ("job_ada", "vision")
    assert [one.job_id for one in clearing.victims] == ["run_2"]
    assert [one.id for one in clearing.nodes] == ["node_2"]


def test_one_wide_job_leaves_rather_than_two_small_ones() -> None:
    running = [
        Running("oldest", "user_bob", (0,), 99),
        Running("small_1", "user_bob", (1,), 31),
        Running("small_2", "user_bob", (2,), 31),
        Running("wide", "user_bob", (3, 4), 90),
    ]
    world = cluster(5, running, [waiting("job_ada", "user_ada", 2)])
    assert stopped_by(world) == {"wide"}


@pytest.mark.parametrize(
    "spared",
    [
        Running("job", "user_bob", (0,), 90),  # the first of its lab: it is within the share
        Running("job", "user_eve", (0,), 29),  # has hardly begun
        Running("job", "user_eve", (0,), 90, saves=False),
        Running("job", "user_eve", (0,), 90, booked=True),
        Running("job", "user_ada", (0,), 90),
    ],
)
def test_who_must_not_be_stopped_is_not(spared: Running) -> None:
    assert stopped_by(cluster(1, [spared], [waiting("job_ada", "user_ada")])) == set()
    eve = replace(spared, user="user_eve", minutes=90, saves=True, booked=False)
    assert stopped_by(cluster(1, [eve], [waiting("job_ada", "user_ada")])) == {"job"}


def test_a_lab_beyond_its_share_stops_nobody() -> None:
    running = [
        Running("ada_1", "user_ada", (0,), 60),
        Running("ada_2", "user_ada", (1,), 60),
        Running("eve", "user_eve", (2,), 90),
    ]
    assert stopped_by(cluster(3, running, [waiting("job_ada", "user_ada")])) == set()


def test_who_waits_for_a_node_that_is_being_left_stops_nobody_else() -> None:
    running = [
        Running("leaving", "user_eve", (0,), 60, stopping=True),
        Running("eve", "user_eve", (1,), 90),
    ]
    world = cluster(2, running, [waiting("job_ada", "user_ada")])
    ((_, clearing),) = clearings(world)
    assert (clearing.victims, clearing.leaving) == ((), ("leaving",))


def test_a_small_job_of_a_lab_does_not_pass_its_wide_one_with_the_labs_share() -> None:
    running = [Running("own", "user_ada", (0,), 99), Running("eve", "user_eve", (1,), 90)]
    queue = [waiting("wide", "user_ada", 2), waiting("small", "user_ada", 1)]
    assert stopped_by(cluster(2, running, queue)) == set()


EVES = [Running(f"eve_{n}", "user_eve", (n,), 90 - n) for n in range(3)]
LONG_S = 6 * 3600
NO_SOFT_FIT = "soft_fit: off, min_run"
TWO_HOURS = "min_useful_min: 120, min_run"  # there are 1 h 59 min to the end of the job's time


def test_a_claim_gets_borrowed_nodes_in_front_of_a_lease_as_far_as_it_may_be_cut() -> None:
    claim = waiting("job_ada", "user_ada", wall_s=LONG_S)
    world = cluster(1, EVES[:1], [claim], booked={0: at(13)})
    ((_, clearing),) = clearings(world)
    assert [one.job_id for one in clearing.victims] == ["eve_0"]
    assert clearing.cut_at is not None
    assert cut_hold_end(clearing.cut_at, 300) == at(13)
    for unfit in (
        cluster(1, EVES[:1], [replace(claim, may_be_cut=False)], booked={0: at(13)}),
        cluster(1, EVES[:1], [claim], SHARES.replace("min_run", NO_SOFT_FIT), booked={0: at(13)}),
        cluster(1, EVES[:1], [claim], SHARES.replace("min_run", TWO_HOURS), booked={0: at(13)}),
    ):
        assert stopped_by(unfit) == set()
    assert decide([claim], world, rules=QueueRules(soft_fit=False), grace_s=300)[0][1] != clearing


def test_time_for_the_jobs_that_leave_is_no_part_of_a_gap() -> None:
    claim = waiting("job_ada", "user_ada", wall_s=LONG_S)
    for minutes, stopped in ((115, set()), (113, {"eve_0"})):  # of 119, and 5 to leave
        policy = SHARES.replace("min_run", f"min_useful_min: {minutes}, min_run")
        assert stopped_by(cluster(1, EVES[:1], [claim], policy, booked={0: at(13)})) == stopped


def test_nodes_for_the_whole_wall_time_come_before_a_gap_and_long_gaps_before_short_ones() -> None:
    claim = waiting("job_ada", "user_ada", wall_s=LONG_S)
    tomorrow = at(23)
    for booked, victim in (
        ({0: tomorrow, 1: at(13), 2: at(13)}, "eve_0"),  # though it has run longest
        ({0: at(13), 1: at(15), 2: at(14)}, "eve_1"),
        ({0: at(13), 1: at(13), 2: at(13)}, "eve_2"),
    ):
        assert stopped_by(cluster(3, EVES, [claim], booked=booked)) == {victim}
    gang = waiting("job_ada", "user_ada", 2, wall_s=LONG_S)
    booked = {0: at(13), 1: at(15), 2: at(14)}
    ((_, clearing),) = clearings(cluster(3, EVES, [gang], booked=booked))
    assert {one.id for one in clearing.nodes} == {"node_1", "node_2"}
    assert clearing.cut_at is not None
    assert cut_hold_end(clearing.cut_at, 300) == at(14)


def test_without_shares_nobody_is_stopped() -> None:
    running = [Running("eve", "user_eve", (0,), 900)]
    policy = "policy: {id: shared, version: 1}\n"
    assert stopped_by(cluster(1, running, [waiting("job_ada", "user_ada")], policy)) == set()


# ------------------------------------------------------------------------------------ in the cycle


@pytest.fixture
def world(database: Database) -> World:
    world = World(database, at(10))
    with database.write() as session:
        for name, user in (("vision", "user_ada"), ("speech", "user_bob")):
            lab = Lab(id=new_id(IdKind.LAB), name=name, created_at=world.now)
            session.add(lab)
            session.flush()
            session.add(Membership(lab_id=lab.id, user_id=user))
    return world


def run_on(world: World, *job_ids: str) -> None:
    """These jobs start, and train for a while."""
    assert sorted(world.cycle()) == sorted(job_ids)
    for job_id in job_ids:
        world.runs(job_id)
    world.now += 40 * MINUTE
    world.report()


def test_a_borrowed_job_is_saved_stopped_whole_and_queued_again(world: World) -> None:
    for number in range(2):
        world.node(f"north-0{number}")
    world.apply(SHARES)
    gang = world.job(wall="3h", user="bob", nodes=2)
    run_on(world, gang)
    assert "another lab may reclaim its share" in world.lease_of(gang).reason
    claim = world.job(wall="20min", user="ada")
    world.bells.nodes.clear()
    assert world.cycle() == []
    job, attempt = world.get_job(gang), world.attempt(gang)
    assert (job.state, attempt.stop_reason) == (JobState.STOPPING, Outcome.PREEMPTED)
    assert job.reason == (
        "Preempted: a job of vision needs north-00, which is within that lab's share and was only "
        "borrowed."
    )
    assert world.bells.nodes == ["north-00", "north-01"]
    told = world.get_job(claim)
    assert told.reason_code == "share_taken_back"
    assert "Starts on north-00 as soon as another person's job has saved and left it" in told.reason
    assert world.cycle(after_s=5) == []  # and nobody is stopped twice, or instead
    world.exits(gang, Outcome.PREEMPTED)
    assert world.cycle(after_s=5) == [claim]  # before the one that left, which came earlier
    job = world.get_job(gang)
    assert (job.state, job.interruptions, job.infrastructure_failures) == ("queued", 1, 0)
    with world.database.read() as session:
        last = session.scalars(
            select(Event.message).where(Event.subject == gang, Event.to_state == "queued")
        ).all()[-1]
    assert last.startswith("Queued again. Preempted: a job of vision needs north-00")
    assert "is borrowed" not in world.lease_of(claim).reason
    world.runs(claim)
    world.now += 10 * MINUTE
    world.report()
    world.exits(claim)
    assert world.cycle() == [gang]


def test_a_claim_starts_in_the_gap_that_others_have_left_for_it_and_is_cut_there(
    world: World,
) -> None:
    for number in range(2):
        world.book(world.node(f"north-0{number}"), at(13), 8, user="bob")
    world.apply(SHARES)
    borrowers = [world.job(wall="2h", user="bob") for _ in range(2)]
    run_on(world, *borrowers)
    claim = world.job(wall="6h", user="ada")
    assert world.cycle() == []
    told = world.get_job(claim)
    assert told.reason_code == "share_taken_back"
    assert "A lease stops it before its wall time is used up" in told.reason
    (leaves,) = [one for one in borrowers if world.get_job(one).state is JobState.STOPPING]
    world.exits(leaves, Outcome.PREEMPTED)
    assert world.cycle(after_s=5) == [claim]
    lease = world.lease_of(claim)
    assert (lease.hold_end, "is borrowed" in lease.reason) == (at(13), False)


def test_a_job_in_its_owners_lease_is_never_preempted(world: World) -> None:
    node_id = world.node()
    world.apply(SHARES)
    lease = world.book(node_id, at(11), 3, user="bob")
    inside = world.job(wall="2h", user="bob", lease=lease)
    world.now = at(11)
    world.report()
    run_on(world, inside)
    world.job(user="ada")
    assert world.cycle() == []
    assert world.get_job(inside).state is JobState.RUNNING


def test_a_claim_that_the_policy_refuses_stops_nobody(world: World) -> None:
    world.node()
    world.apply(SHARES)
    borrowed = world.job(wall="3h", user="bob", ranks=2)
    second = world.node("north-02")
    other = world.job(wall="3h", user="bob", ranks=2)
    run_on(world, borrowed, other)
    world.apply(SHARES.replace("version: 1", "version: 2") + "walk_in: {max_hours: 1}\n")
    claim = world.job(wall="2h", user="ada")
    assert world.cycle() == []
    assert world.get_job(borrowed).state is world.get_job(other).state is JobState.RUNNING
    assert world.cycle(after_s=1) == []
    assert world.get_job(claim).reason_code == "bad_block_length"
    assert second
