"""One decides. A stale one writes nothing, whatever it believes; two that believe do no harm."""

import threading
import time
from collections import Counter
from datetime import timedelta

import pytest
from sqlalchemy import func, select
from sqlalchemy.exc import DBAPIError

from core.base.reasons import ReasonCode
from core.database.database import Database
from core.states import LIVE_ATTEMPT, JobState
from core.tables.jobs import Attempt
from core.tables.leases import Occupancy
from core.tables.processes import Leadership as Row
from core.transitions import Explanation, explain
from scheduler import leadership
from scheduler.cycle import Scheduler, keep_up, run_cycle
from scheduler.leadership import LeadershipClaim, LeadershipLost
from scheduler.outbox.dispatch import Dispatcher
from tests.one_database import quick_on_postgresql
from tests.scheduler.world import NOON, Bells, World

pytestmark = pytest.mark.race


class Clocks:
    """The database's time and a process's monotonic clock, both moved by hand."""

    def __init__(self) -> None:
        self.wall, self.monotonic = NOON, 1000.0

    def pass_by(self, seconds: float) -> None:
        self.wall += timedelta(seconds=seconds)
        self.monotonic += seconds


class SteppedLeadership(LeadershipClaim):
    """Leadership on any database by the clocks of a test instead of the server's."""

    def _database_time(self, session: object) -> object:  # type: ignore[override]
        return self._clock()


@pytest.fixture
def clocks() -> Clocks:
    return Clocks()


def candidate(
    database: Database, clocks: Clocks, holder: str, ttl_s: float = 15
) -> LeadershipClaim:
    return SteppedLeadership(
        database,
        holder=holder,
        ttl_s=ttl_s,
        clock=lambda: clocks.wall,
        monotonic=lambda: clocks.monotonic,
    )


def row(database: Database) -> tuple[str, int]:
    with database.read() as session:
        found = session.scalars(select(Row)).one()
        return found.holder, found.term


def test_the_first_leads_and_the_second_waits(database: Database, clocks: Clocks) -> None:
    first, second = candidate(database, clocks, "first"), candidate(database, clocks, "second")
    assert first.hold()
    assert (first.term, first.leader_since) == (1, NOON)
    assert not second.hold()
    assert second.term is None
    with pytest.raises(LeadershipLost), second.write():
        pass


def test_a_silent_leader_is_followed_within_its_time_to_live(
    database: Database, clocks: Clocks
) -> None:
    first, second = candidate(database, clocks, "first"), candidate(database, clocks, "second")
    first.hold()
    for _ in range(14):
        clocks.pass_by(1)
        assert not second.hold()
    clocks.pass_by(1.1)
    assert second.hold()
    assert row(database) == ("second", 2)
    assert not first.hold()
    assert first.term is None


def test_a_leader_that_renews_is_never_followed(database: Database, clocks: Clocks) -> None:
    first, second = candidate(database, clocks, "first"), candidate(database, clocks, "second")
    for _ in range(200):
        assert first.hold()
        assert not second.hold()
        clocks.pass_by(1)
    assert row(database) == ("first", 1)


def test_it_renews_only_every_third_of_its_time(database: Database, clocks: Clocks) -> None:
    first = candidate(database, clocks, "first")
    first.hold()
    with database.read() as session:
        before = session.scalars(select(Row.expires_at)).one()
    clocks.pass_by(4.9)
    first.hold()
    with database.read() as session:
        assert session.scalars(select(Row.expires_at)).one() == before
    clocks.pass_by(0.2)
    first.hold()
    with database.read() as session:
        assert session.scalars(select(Row.expires_at)).one() == clocks.wall + timedelta(seconds=15)


def test_trust_counts_from_before_the_renewal_was_sent(database: Database, clocks: Clocks) -> None:
    """A renewal that took long is no reason to trust oneself for longer."""
    first = candidate(database, clocks, "first")
    claim = first._claim

    def slow(session: object) -> int | None:
        clocks.pass_by(14.5)  # the database answers after 14.5 s
        return claim(session)  # type: ignore[arg-type]

    first._claim = slow  # type: ignore[method-assign,assignment]
    assert not first.hold()


def test_a_leader_that_slept_through_its_term_writes_nothing(
    database: Database, clocks: Clocks
) -> None:
    """SIGSTOP inside the cycle: decided as leader, woken when another one leads."""
    first, second = candidate(database, clocks, "first"), candidate(database, clocks, "second")
    first.hold()
    frozen = clocks.monotonic
    clocks.pass_by(16)
    assert second.hold()
    first._monotonic = lambda: frozen  # it has not noticed that time went by
    wrote = False
    with pytest.raises(LeadershipLost), first.write():
        wrote = True
    assert not wrote
    assert first.term is None
    with second.write() as session:
        assert session.scalar(select(Row.term)) == 2


def test_a_leader_steps_aside_when_its_trust_ends_though_nobody_followed(
    database: Database, clocks: Clocks
) -> None:
    first = candidate(database, clocks, "first")
    first.hold()
    renew = first._renew_or_take_over
    first._renew_or_take_over = lambda: False  # type: ignore[method-assign]
    clocks.pass_by(14)
    with pytest.raises(LeadershipLost), first.write():
        pass
    first._renew_or_take_over = renew  # type: ignore[method-assign]
    assert first.hold()
    assert row(database) == ("first", 1)


def test_who_resigns_is_followed_at_once(database: Database, clocks: Clocks) -> None:
    first, second = candidate(database, clocks, "first"), candidate(database, clocks, "second")
    first.hold()
    first.resign()
    assert second.hold()
    assert row(database) == ("second", 2)
    first.resign()  # again: it is nobody's business any more
    assert second.hold()


def test_many_candidates_at_once_make_one_leader(database: Database) -> None:
    candidates = [LeadershipClaim(database, holder=f"c{n}", ttl_s=15) for n in range(8)]
    gate, held = threading.Barrier(8), [False] * 8

    def run(number: int) -> None:
        gate.wait(30)
        held[number] = candidates[number].hold()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sum(held) == 1
    assert row(database)[1] == 1


@pytest.mark.parametrize(("ttl_s", "renew_s"), [(10, 5), (10, 6), (15, 7.5), (1.4, None)])
def test_times_that_cost_the_leadership_at_one_late_renewal_are_refused(
    migrated_database: Database, ttl_s: float, renew_s: float | None
) -> None:
    with pytest.raises(ValueError, match=r"leader_ttl_s|leadership is renewed"):
        LeadershipClaim(migrated_database, holder="x", ttl_s=ttl_s, renew_s=renew_s)


@pytest.mark.db
def test_a_leader_stopped_inside_a_transaction_is_cut_off_by_the_server(
    postgresql_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds the row's lock; nobody could follow while it sleeps, were it not ended."""
    monkeypatch.setattr(leadership, "IDLE_TIMEOUT", "500ms")
    monkeypatch.setattr(leadership, "LOCK_TIMEOUT", "100ms")
    first = LeadershipClaim(postgresql_database, holder="first", ttl_s=1.6)
    second = LeadershipClaim(postgresql_database, holder="second", ttl_s=1.6)
    assert first.hold()
    session = first.write()
    session.__enter__()
    deadline = time.monotonic() + 30
    while not second.hold():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    with pytest.raises(DBAPIError):
        session.__exit__(None, None, None)
    assert row(postgresql_database) == ("second", 2)


class Unfenced(LeadershipClaim):
    """A scheduler that believes whatever happens: no row, no term."""

    def hold(self) -> bool:
        return True

    def require(self, session: object) -> None:
        return None


def test_who_waits_to_lead_has_planned_the_queue_and_decides_nothing(database: Database) -> None:
    world = World(database)
    world.node()
    first = world.job()
    claim = LeadershipClaim(database, holder="standby", ttl_s=15)
    standby = Scheduler(database, claim, Dispatcher(Bells()))
    keep_up(standby, world.now)
    assert standby.fitting.classes_for(first)
    second = world.job()
    keep_up(standby, world.now + timedelta(seconds=9))
    with pytest.raises(KeyError):
        standby.fitting.need_of(second)
    keep_up(standby, world.now + timedelta(seconds=10))
    assert standby.fitting.classes_for(second)
    assert {world.get_job(job).state for job in (first, second)} == {JobState.QUEUED}
    with database.read() as session:
        assert session.scalars(select(Attempt.job_id)).all() == []


@quick_on_postgresql
def test_two_schedulers_without_any_election_place_nothing_twice(database: Database) -> None:
    world = World(database)
    for number in range(4):
        world.node(f"north-{number}")
    jobs = [world.job(user=("ada", "bob")[number % 2]) for number in range(12)]
    rivals = []
    for number in range(2):
        unfenced = Unfenced(database, holder=f"rival-{number}", ttl_s=15)
        unfenced.leader_since = world.now - timedelta(hours=1)
        rivals.append(Scheduler(database, unfenced, Dispatcher(Bells())))
    started: list[list[str]] = [[], []]
    while sum(map(len, started)) < len(jobs):  # 3 rounds, or more where one overtook the other
        gate = threading.Barrier(2)

        def run(number: int, gate: threading.Barrier = gate) -> None:
            gate.wait(30)
            started[number] += run_cycle(rivals[number], world.now)

        threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        for job_id in {*started[0], *started[1]}:
            if world.get_job(job_id).state is JobState.STARTING:
                world.exits(job_id)
        world.report()
        world.now += timedelta(seconds=5)
    assert not set(started[0]) & set(started[1])
    assert sorted(started[0] + started[1]) == sorted(jobs)
    with database.read() as session:
        per_job = Counter(session.scalars(select(Attempt.job_id)))
        assert set(per_job.values()) == {1}
        assert session.scalar(select(func.count()).select_from(Attempt)) == 12
        left = select(func.count()).select_from(Attempt).where(Attempt.state.in_(LIVE_ATTEMPT))
        assert session.scalar(left) == 0
        assert session.scalar(select(func.count()).select_from(Occupancy)) == 12


def test_what_two_schedulers_say_of_a_job_is_said_of_its_present_state_only(
    database: Database,
) -> None:
    world = World(database)
    job_id = world.job()
    stale = world.get_job(job_id)
    world.node()
    world.cycle()
    with database.write() as session:
        explain(session, [Explanation(job_id, stale.epoch, ReasonCode.QUEUE, "Waits.")])
    assert world.get_job(job_id).reason_code == "starting"
