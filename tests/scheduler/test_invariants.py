"""Anything may happen in any order: nodes fall silent, restart, leak; owners book, cancel, pause.

A state machine drives the real cycle on a real database with fake nodes that obey as the worker
does: they start what is wanted, stop what is not, and stop by themselves when a lease is over.
"""

import os
import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from sqlalchemy import select

from core import attempts, leases
from core.database import Database
from core.errors import HourTaken
from core.messages import ExitRecord
from core.policy import hour_ceiling, usable_end
from core.states import (
    LIVE_ATTEMPT,
    LIVE_JOB,
    TERMINAL_JOB,
    WAITING_JOB,
    AttemptState,
    Desired,
    JobState,
    LeaseState,
    NodeState,
    Outcome,
)
from core.tables import Attempt, Job, Lease, LeaseKind, Node, Occupancy
from core.transitions import advance
from tests.scheduler.world import NOON, World

# Thousands of commits, and what survives a power cut is not the question here.
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
TICK_S = 661.0  # more than the 10 min of a mass silence, and never a full hour
KILLED_AFTER = timedelta(seconds=30)  # of the usable end: the shim's own deadline
ENDINGS = st.sampled_from(
    [Outcome.SUCCEEDED, Outcome.USER_ERROR, Outcome.KILLED, Outcome.START_FAILED]
)
PICK = st.integers(0, 999)
WALLS = st.sampled_from(["2min", "20min", "55min", "3h", "3h"])
USERS = st.sampled_from(["ada", "bob"])


@dataclass
class FakeNode:
    """A machine: what runs on it, and what it has still to tell."""

    id: str
    boot: int = 1
    connected: bool = True
    leaks: bool = False
    said_clean: bool = True
    heard_at: datetime = NOON
    running: dict[tuple[str, int], datetime] = field(default_factory=dict)
    """(job, epoch) -> when its shim kills it, whatever anybody says."""
    exits: dict[tuple[str, int], Outcome] = field(default_factory=dict)


class SchedulerMachine(RuleBasedStateMachine):
    """The world, and what may happen in it."""

    template: Path

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="ty-machine-", dir=MEMORY))
        shutil.copy(self.template, self.folder / "machine.db")
        self.database = Database(f"sqlite:///{self.folder / 'machine.db'}")
        self.world = World(self.database, NOON + timedelta(minutes=7))
        self.fakes: dict[str, FakeNode] = {}
        self.jobs: list[str] = []
        self.leases: list[str] = []
        self.schedulers = 1

    # ----------------------------------------------------------------------------------- beginning

    @initialize(
        classes=st.lists(st.sampled_from(["cpu2", "cpu8"]), min_size=2, max_size=4),
        walls=st.lists(WALLS, min_size=1, max_size=4),
    )
    def begin(self, classes: list[str], walls: list[str]) -> None:
        for number, class_name in enumerate(classes):
            node_id = self.world.node(f"n-{number}", class_name)
            self.fakes[node_id] = FakeNode(node_id)
        self.jobs = [self.world.job(wall=wall) for wall in walls]
        for _ in range(2):
            self.tick(4)  # so that they run

    # ------------------------------------------------------------------------------ what may happen

    @rule(wall=WALLS, ranks=st.sampled_from([1, 1, 2, 4]), user=USERS, leased=st.booleans())
    def submit(self, wall: str, ranks: int, user: str, leased: bool) -> None:
        if len(self.jobs) >= 12:
            return
        lease = None
        if leased and self.leases:
            lease = self.leases[-1]
            user = self.world.get_lease(lease).user_id.removeprefix("user_")
        self.jobs.append(self.world.job(wall=wall, ranks=ranks, user=user, lease=lease))
        self.tick(4)

    @rule(pick=PICK, ahead=st.integers(0, 4), hours=st.integers(1, 3), user=USERS)
    def book_or_give_back(self, pick: int, ahead: int, hours: int, user: str) -> None:
        if len(self.leases) >= 6 or (self.leases and pick % 3 == 0):
            self.give_back(self.leases[pick % len(self.leases)])
            return
        start = hour_ceiling(self.world.now) + timedelta(hours=ahead)
        try:
            self.leases.append(self.world.book(self.pick_fake(pick).id, start, hours, user=user))
        except HourTaken:
            return

    @rule(seconds=st.sampled_from([1, 4, 20, 70]))
    def time_passes(self, seconds: int) -> None:
        self.tick(seconds)

    @rule(ticks=st.integers(1, 7))
    def an_hour_or_so_passes(self, ticks: int) -> None:
        for _ in range(ticks):
            self.tick(TICK_S)

    @rule(pick=PICK, ticks=st.sampled_from([1, 2, 6, 9]))
    def one_node_is_away_for_a_while(self, pick: int, ticks: int) -> None:
        fake = self.pick_fake(pick)
        fake.connected = False
        for _ in range(ticks):
            self.tick(TICK_S)
            self.tick(31)
        fake.connected = True
        self.tick(4)

    @rule(pick=PICK, ending=ENDINGS)
    def a_training_ends(self, pick: int, ending: Outcome) -> None:
        running = [(fake, key) for fake in self.fakes.values() for key in fake.running]
        if running:
            fake, key = running[pick % len(running)]
            del fake.running[key]
            fake.exits[key] = ending

    @rule(pick=PICK, trouble=st.sampled_from(["silence", "restart", "leak", "drain"]))
    def a_node_gets_into_trouble_or_out_of_it(self, pick: int, trouble: str) -> None:
        fake = self.pick_fake(pick)
        if trouble == "silence":
            fake.connected = not fake.connected
        elif trouble == "restart":
            fake.boot += 1
            fake.running.clear()
            fake.exits.clear()
        elif trouble == "leak":
            fake.leaks = not fake.leaks
        else:
            self.drain_or_resume(fake)

    @rule(pick=PICK, wish=st.sampled_from(["cancel", "pause", "resume", "preempt"]))
    def an_owner_changes_their_mind(self, pick: int, wish: str) -> None:
        if not self.jobs:
            return
        with self.database.write() as session:
            job = session.get_one(Job, self.jobs[pick % len(self.jobs)])
            if job.state in TERMINAL_JOB:
                return
            if wish == "resume":
                job.desired = Desired.RUN
                if job.state is JobState.PAUSED:
                    self.move(session, job, JobState.QUEUED)
                return
            if wish == "preempt":
                self.ask(session, job, Outcome.PREEMPTED)
                return
            job.desired = Desired.CANCEL if wish == "cancel" else Desired.PAUSE
            session.flush()
            target = JobState.CANCELLED if wish == "cancel" else JobState.PAUSED
            if job.state in WAITING_JOB:
                self.move(session, job, target)
            else:
                self.ask(session, job, Outcome(str(target)))

    @rule()
    def another_scheduler_takes_over(self) -> None:
        self.world.scheduler.leadership.resign()
        self.schedulers += 1
        self.world.scheduler = self.world.new_scheduler(f"s-{self.schedulers}")

    # ----------------------------------------------------------------------------- how time passes

    def tick(self, seconds: float) -> None:
        """Time passes, the shims keep their deadlines, the nodes that can report; one cycle."""
        self.world.now += timedelta(seconds=seconds)
        for fake in self.fakes.values():
            for key, deadline in list(fake.running.items()):
                if deadline <= self.world.now:
                    del fake.running[key]
                    fake.exits[key] = Outcome.LEASE_ENDED
            if fake.connected:
                self.heartbeat(fake)
        for job_id in self.world.cycle():
            self.was_right_to_start(job_id)
        self.everyone_who_waits_is_told_why()

    def heartbeat(self, fake: FakeNode) -> None:
        """What `api.heartbeat` and the agent make of one exchange."""
        now = self.world.now
        with self.database.write() as session:
            node = session.get_one(Node, fake.id)
            live = {
                (attempt.job_id, attempt.epoch): attempt
                for attempt in session.scalars(
                    select(Attempt).where(
                        Attempt.node_id == fake.id, Attempt.state.in_(LIVE_ATTEMPT)
                    )
                )
            }
            for key, outcome in list(fake.exits.items()):
                if key in live:
                    self.exit(session, live.pop(key), outcome, f"boot-{fake.boot}")
            fake.exits.clear()
            strays = [key for key in fake.running if key not in live]
            node.clean = not strays and not fake.leaks
            for key, attempt in live.items():
                job = session.get_one(Job, attempt.job_id)
                if attempt.state is AttemptState.STOPPING:
                    if key in fake.running:
                        del fake.running[key]
                    reason = attempt.stop_reason or Outcome.PREEMPTED
                    self.exit(session, attempt, reason, f"boot-{fake.boot}")
                elif key in fake.running:
                    attempt.missing_since = None
                    attempts.run(session, job, attempt, now=now, actor="node")
                elif attempt.state is AttemptState.ASSIGNED:
                    assert not fake.running, "something else is still running there"
                    attempt.boot_id = f"boot-{fake.boot}"
                    lease = session.get_one(Lease, attempt.lease_id)
                    end = usable_end(lease.hold_end, lease.grace_s)
                    fake.running[key] = end + KILLED_AFTER
                    attempts.start(session, attempt, now=now, actor="node")
                else:
                    attempt.missing_since = attempt.missing_since or now
            for key in strays:  # it takes until after this exchange to stop them
                del fake.running[key]
            node.last_seen_at, node.boot_id = now, f"boot-{fake.boot}"
            fake.said_clean, fake.heard_at = node.clean, now

    # ---------------------------------------------------------------------------- what always holds

    @invariant()
    def no_node_is_held_twice(self) -> None:
        with self.database.read() as session:
            holds = session.scalars(
                select(Occupancy)
                .where(Occupancy.live)
                .order_by(Occupancy.node_id, Occupancy.hold_start)
            ).all()
            live = session.scalars(select(Attempt).where(Attempt.state.in_(LIVE_ATTEMPT))).all()
            active = session.scalars(select(Lease).where(Lease.state == LeaseState.ACTIVE)).all()
        for before, after in pairwise(holds):
            assert before.node_id != after.node_id or before.hold_end <= after.hold_start
        assert max(Counter(lease.node_id for lease in active).values(), default=0) <= 1
        assert max(Counter(attempt.node_id for attempt in live).values(), default=0) <= 1

    @invariant()
    def a_job_is_alive_exactly_with_one_live_attempt_of_its_epoch(self) -> None:
        with self.database.read() as session:
            live = session.scalars(select(Attempt).where(Attempt.state.in_(LIVE_ATTEMPT))).all()
            jobs = session.scalars(select(Job)).all()
            owner = dict(session.execute(select(Lease.id, Lease.user_id)).all())
        by_job = {attempt.job_id: attempt for attempt in live}
        assert len(by_job) == len(live)
        for job in jobs:
            assert (job.id in by_job) is (job.state in LIVE_JOB), (job.state, job.reason)
            if job.id in by_job:
                assert by_job[job.id].epoch == job.epoch
                assert owner[by_job[job.id].lease_id] == job.user_id

    @invariant()
    def no_machine_runs_two_trainings_and_no_training_runs_twice(self) -> None:
        assert all(len(fake.running) <= 1 for fake in self.fakes.values())
        where = Counter(job_id for fake in self.fakes.values() for job_id, _ in fake.running)
        assert max(where.values(), default=0) <= 1, where

    def was_right_to_start(self, job_id: str) -> None:
        """Only a ready node that was heard, that said it was clean, for the hours of its lease."""
        attempt, lease = self.world.attempt(job_id), self.world.lease_of(job_id)
        fake = self.fakes[attempt.node_id]
        assert self.world.get_node(fake.id).state is NodeState.READY
        assert fake.said_clean
        assert self.world.now - fake.heard_at <= timedelta(seconds=30)
        assert lease.state is LeaseState.ACTIVE
        assert lease.hold_start <= self.world.now < usable_end(lease.hold_end, lease.grace_s)
        named = self.world.get_job(job_id).lease_id
        if lease.kind is LeaseKind.BOOKED:
            assert lease.id == named
        elif named is not None:
            assert self.world.get_lease(named).state not in (LeaseState.BOOKED, LeaseState.ACTIVE)

    def everyone_who_waits_is_told_why(self) -> None:
        """Holds after every cycle; in between a sentence may be of the moment before."""
        with self.database.read() as session:
            waiting = session.scalars(select(Job).where(Job.state == JobState.QUEUED)).all()
        for job in waiting:
            assert job.reason_code != "submitted", job.reason
            assert len(job.reason) > 20
            assert job.reason.endswith("."), job.reason
            if job.predicted_start is not None:
                assert job.predicted_start >= self.world.now - timedelta(minutes=1)

    def teardown(self) -> None:
        """Nobody waits for ever: when all is well again, every job comes to its end."""
        if not self.fakes:
            return
        for fake in self.fakes.values():
            fake.connected, fake.leaks = True, False
        for number in range(400):
            with self.database.write() as session:
                for node in session.scalars(select(Node)):
                    if node.state in (NodeState.MAINTENANCE, NodeState.DRAINING):
                        advance(
                            session,
                            node,
                            NodeState.READY,
                            now=self.world.now,
                            reason_code="admin",
                            message="Back.",
                            actor="admin",
                        )
                for job in session.scalars(select(Job).where(Job.state == JobState.PAUSED)):
                    job.desired = Desired.RUN
                    self.move(session, job, JobState.QUEUED)
                left = session.scalars(select(Job).where(Job.state.not_in(TERMINAL_JOB))).all()
            placeable = [job for job in left if self.can_ever_run(job)]
            if not placeable:
                break
            for fake in self.fakes.values():
                fake.exits |= dict.fromkeys(fake.running, Outcome.SUCCEEDED)
                fake.running.clear()
            self.tick(4 if number % 10 else 600)
        else:
            raise AssertionError([(job.state, job.reason) for job in placeable])
        self.database.close()
        shutil.rmtree(self.folder)

    # -------------------------------------------------------------------------------------- helpers

    def drain_or_resume(self, fake: FakeNode) -> None:
        with self.database.write() as session:
            node = session.get_one(Node, fake.id)
            to = NodeState.DRAINING if node.state is NodeState.READY else NodeState.READY
            advance(
                session,
                node,
                to,
                now=self.world.now,
                reason_code="admin",
                message="By hand.",
                actor="admin",
            )

    def give_back(self, lease_id: str) -> None:
        with self.database.write() as session:
            lease = session.get_one(Lease, lease_id)
            fields = {"now": self.world.now, "message": "Given back.", "actor": "owner"}
            if lease.state is LeaseState.BOOKED:
                leases.cancel(session, lease, **fields)  # type: ignore[arg-type]
            elif lease.state is LeaseState.ACTIVE:
                advance(session, lease, LeaseState.ENDING, reason_code="released", **fields)  # type: ignore[arg-type]

    def can_ever_run(self, job: Job) -> bool:
        """A job of 4 ranks on a world of small nodes waits, and is told so."""
        return job.spec["resources"]["ranks_per_node"] <= 2 or any(
            self.world.get_node(fake.id).class_name == "cpu8" for fake in self.fakes.values()
        )

    def pick_fake(self, pick: int) -> FakeNode:
        return list(self.fakes.values())[pick % len(self.fakes)]

    def move(self, session: object, job: Job, to: JobState) -> None:
        advance(
            session,  # type: ignore[arg-type]
            job,
            to,
            now=self.world.now,
            reason_code="owner",
            message="As its owner wants it.",
            actor="owner",
        )

    def ask(self, session: object, job: Job, reason: Outcome) -> None:
        attempts.ask_to_stop(
            session,  # type: ignore[arg-type]
            job,
            reason,
            now=self.world.now,
            message="Stopping.",
            actor="owner",
        )

    def exit(self, session: object, attempt: Attempt, outcome: Outcome, boot_id: str) -> None:
        now = self.world.now
        record = ExitRecord(
            job_id=attempt.job_id,
            epoch=attempt.epoch,
            boot_id=boot_id,
            outcome=outcome,
            reason=f"It ended: {outcome}.",
            duration_s=min(60.0, (now - attempt.assigned_at).total_seconds()),
        )
        attempt.files_kept = True
        attempts.conclude(
            session,  # type: ignore[arg-type]
            session.get_one(Job, attempt.job_id),  # type: ignore[attr-defined]
            attempt,
            outcome,
            message=record.reason,
            now=now,
            actor="node",
            record=record,
        )


@pytest.mark.db
@pytest.mark.parametrize(
    ("examples", "steps"), [(8, 25), pytest.param(80, 40, marks=pytest.mark.slow)]
)
@pytest.mark.timeout(900)
def test_no_node_twice_one_live_attempt_and_nobody_waits_for_ever(
    migrated_sqlite: Path, examples: int, steps: int
) -> None:
    class Machine(SchedulerMachine):
        template = migrated_sqlite

    Machine.TestCase.settings = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    Machine.TestCase("runTest").runTest()
