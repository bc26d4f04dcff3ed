"""The process: it works without Redis, hears the doorbell with it, and ends when asked."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import IO

import pytest
import redis
from sqlalchemy import select, update

from core.base.clock import utc_now
from core.database.database import Database
from core.process.cycle_numbers import CycleNumbers
from core.states import JobState
from core.tables.jobs import Job
from core.tables.nodes import Node
from core.tables.processes import Leadership as Row
from core.wire.doorbell import SCHEDULER
from scheduler.cycle import Scheduler
from scheduler.main import BellListener, rest_s, run
from tests.forked import Forked, origin
from tests.scheduler.world import CPU2, CPU8, World

NO_REDIS = "unix:///nonexistent/valkey.sock?db=0"


@contextmanager
def running(database: Database, redis_url: str, **settings: str) -> Iterator["Process"]:
    """A scheduler of its own on this database."""
    url = database.url.render_as_string(hide_password=False)
    environment = {
        **os.environ,
        "TRAINYARD_DATABASE_URL": url,
        "TRAINYARD_REDIS_URL": redis_url,
        **{f"TRAINYARD_{name.upper()}": value for name, value in settings.items()},
    }
    reads, writes = os.pipe()
    child = origin().start("scheduler.main", environment=environment, log=writes)
    os.close(writes)
    output = os.fdopen(reads)
    process = Process(child, output)
    try:
        yield process
    finally:
        child.kill()
        child.wait()
        process.reader.join(10)
        output.close()


class Process:
    """A running scheduler and what it has logged."""

    def __init__(self, child: Forked, output: IO[str]) -> None:
        self.child = child
        self.lines: list[dict[str, object]] = []
        self.reader = threading.Thread(target=self._read, args=(output,), daemon=True)
        self.reader.start()

    def _read(self, output: IO[str]) -> None:
        for line in output:
            self.lines.append(json.loads(line))

    def logged(self, event: str) -> bool:
        return any(line["event"] == event for line in self.lines)


def wait_for(ask: Callable[[], bool], what: str, within_s: float = 60) -> None:
    deadline = time.monotonic() + within_s
    while not ask():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.02)


def state_of(database: Database, job_id: str) -> JobState:
    with database.read() as session:
        return session.get_one(Job, job_id).state


def world_now(database: Database) -> World:
    """A world in real time, led by nobody."""
    world = World(database, utc_now())
    world.scheduler.leadership.resign()
    return world


def test_without_redis_it_starts_jobs_and_resigns_when_asked_to_end(database: Database) -> None:
    world = world_now(database)
    world.node()
    job_id = world.job()
    with running(database, NO_REDIS) as process:
        wait_for(lambda: state_of(database, job_id) is JobState.STARTING, "the start")
        process.child.send_signal(signal.SIGTERM)
        assert process.child.wait(30) == 0
    assert process.logged("doorbell_away")
    assert process.logged("scheduler_stopped")
    with database.read() as session:
        assert session.scalars(select(Row.expires_at)).one() <= utc_now() + timedelta(seconds=1)


def test_a_ring_wakes_it_long_before_its_cycle(
    migrated_database: Database, valkey_url: str
) -> None:
    world = world_now(migrated_database)
    world.node()
    first = world.job()
    with running(migrated_database, valkey_url, cycle_s="600") as process:
        wait_for(lambda: state_of(migrated_database, first) is JobState.STARTING, "the first cycle")
        client = redis.Redis.from_url(valkey_url)
        wait_for(lambda: client.pubsub_numsub(SCHEDULER)[0][1] >= 1, "its subscription")
        world.node("north-02")
        second = world.job()
        client.publish(SCHEDULER, b"\xff forged, and not even text")
        wait_for(lambda: state_of(migrated_database, second) is JobState.STARTING, "the second job")
        client.close()
        assert process.child.poll() is None


@pytest.mark.parametrize(
    ("second", "is_quiet", "rest"),
    [(20, False, 1.0), (20, True, 5.0), (54.5, True, 5.0), (57.5, True, 2.5), (59.75, True, 0.25)],
)
def test_it_rests_longer_when_nothing_happens_but_never_over_a_whole_minute(
    second: float, is_quiet: bool, rest: float
) -> None:
    now = datetime(2026, 11, 29, 9, 59, tzinfo=UTC) + timedelta(seconds=second)
    assert rest_s(1.0, now, is_quiet=is_quiet, turn_at=None) == pytest.approx(rest)


@pytest.mark.parametrize(
    ("in_s", "is_quiet", "rest"), [(0.5, False, 1.0), (2.5, True, 2.5), (6, True, 5.0)]
)
def test_nor_over_the_begin_or_the_end_of_a_lease(in_s: float, is_quiet: bool, rest: float) -> None:
    now = datetime(2026, 11, 29, 9, 59, 20, tzinfo=UTC)
    turn_at = now + timedelta(seconds=in_s)
    assert rest_s(1.0, now, is_quiet=is_quiet, turn_at=turn_at) == pytest.approx(rest)


@pytest.mark.parametrize(("hears", "rests"), [(True, [1.0, 1.0, 5.0, 5.0]), (False, [1.0] * 4)])
def test_a_cycle_that_writes_nothing_is_followed_by_a_longer_rest(
    hears: bool, rests: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    leadership = SimpleNamespace(numbers=CycleNumbers(), writes=0)
    rested: list[float] = []

    class Listener(BellListener):
        def wait(self, seconds: float) -> None:
            rested.append(round(seconds, 1))
            self.closed = len(rested) == len(rests)

        def pause(self, seconds: float) -> None:
            assert seconds < 0.1

    def cycle(_: Scheduler) -> bool:
        leadership.writes += len(rested) < 2
        return True

    monkeypatch.setattr("scheduler.main.cycle", cycle)
    monkeypatch.setattr("scheduler.main.utc_now", lambda: datetime(2026, 11, 29, 9, 59, tzinfo=UTC))
    listener = Listener(NO_REDIS)
    listener.hears = hears
    scheduler = SimpleNamespace(leadership=leadership, turn_at=None)
    run(scheduler, listener, 1.0)  # type: ignore[arg-type]
    assert rested == rests


def test_a_killed_scheduler_is_followed_by_the_next(migrated_database: Database) -> None:
    world = world_now(migrated_database)
    with running(migrated_database, NO_REDIS, leader_ttl_s="3") as first:
        wait_for(lambda: first.logged("leadership_taken"), "the first leader")
        with running(migrated_database, NO_REDIS, leader_ttl_s="3") as second:
            wait_for(lambda: second.logged("scheduler_started"), "the second scheduler")
            first.child.kill()
            first.child.wait()
            world.node()
            job_id = world.job()
            wait_for(
                lambda: state_of(migrated_database, job_id) is JobState.STARTING, "the takeover"
            )
            assert second.logged("leadership_taken")


def test_a_row_that_makes_no_sense_is_told_to_its_owner_and_stops_nobody_else(
    migrated_database: Database,
) -> None:
    world = world_now(migrated_database)
    world.node()
    broken, sound = world.job(), world.job()
    with migrated_database.write() as session:
        session.execute(update(Job).where(Job.id == broken).values(spec={"of": "another age"}))
    with running(migrated_database, NO_REDIS):
        wait_for(lambda: state_of(migrated_database, sound) is JobState.STARTING, "the sound job")
        wait_for(lambda: "cannot read" in world.get_job(broken).reason, "the sentence")


def test_an_error_in_a_cycle_is_logged_and_the_next_cycle_tried(
    migrated_database: Database,
) -> None:
    world = world_now(migrated_database)
    node_id = world.node()
    job_id = world.job()
    with migrated_database.write() as session:
        session.connection().exec_driver_sql("UPDATE node_classes SET hardware = '{}'")
    with running(migrated_database, NO_REDIS, cycle_s="0.1") as process:
        wait_for(lambda: process.logged("cycle_failed"), "the error")
        assert process.child.poll() is None
        with migrated_database.write() as session:
            for hardware in (CPU2, CPU8):
                session.connection().exec_driver_sql(
                    "UPDATE node_classes SET hardware = ? WHERE name = ?",
                    (hardware.model_dump_json(), hardware.class_name),
                )
            session.get_one(Node, node_id).last_seen_at = utc_now()
        wait_for(lambda: state_of(migrated_database, job_id) is JobState.STARTING, "the start")


def test_the_bell_listener_comes_back_after_redis_does(tmp_path: Path, valkey_url: str) -> None:
    """The socket's path leads nowhere at first; then Redis is there."""
    path = tmp_path / "later.sock"
    listener = BellListener(f"unix://{path}?db=0")
    listener.start()
    listener.wait(0.05)  # nothing rings: it returns all the same
    path.symlink_to(valkey_url.removeprefix("unix://").partition("?")[0])
    client = redis.Redis.from_url(valkey_url)
    wait_for(lambda: client.pubsub_numsub(SCHEDULER)[0][1] >= 1, "the subscription")
    client.close()
    begun = time.monotonic()
    listener.wait(30)  # being back is a ring: something may have rung meanwhile
    assert time.monotonic() - begun < 20
    listener.close()
    listener.pause(30)
    assert time.monotonic() - begun < 25


@pytest.mark.parametrize("ttl_s", ["1.2", pytest.param("0", marks=pytest.mark.slow)])
def test_a_time_to_live_that_is_too_short_is_refused_at_the_start(
    migrated_database: Database, ttl_s: str
) -> None:
    environment = {
        **os.environ,
        "TRAINYARD_DATABASE_URL": str(migrated_database.url),
        "TRAINYARD_REDIS_URL": NO_REDIS,
        "TRAINYARD_LEADER_TTL_S": ttl_s,
    }
    ended = subprocess.run(
        [sys.executable, "-m", "scheduler.main"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode != 0
    assert "leader_ttl_s" in ended.stderr.lower()
