"""A heartbeat that changes nothing: orders are not repeated until anything about them changes."""

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select, text, update
from sqlalchemy.exc import IntegrityError, NoResultFound
from sqlalchemy.orm import Session, sessionmaker

from api.app import create_app
from api.nodes import order_marks
from api.nodes.order_marks import read_bases
from api.nodes.orders import orders_for
from core.base.clock import utc_now
from core.base.secret_text import digest
from core.database.database import EnumText
from core.leases import leases
from core.leases.leases import lock_nodes
from core.policy.grid import HOUR
from core.process.settings import ApiSettings
from core.tables.base import Base
from core.tables.jobs import Attempt, AttemptPart, Job
from core.tables.kinds import LeaseKind
from core.tables.leases import Lease, Occupancy
from core.tables.nodes import Node
from core.tables.people import User
from core.wire.messages import ORDERS_MARK, Heartbeat, Orders
from core.workspaces.quota import Quota
from tests.api.conftest import World, client, enrol
from tests.api.nodes.test_gangs import submit as submit_gang
from tests.api.scripts.test_scripts import code, script_spec
from tests.api.shapes import INVENTORY, TELEMETRY, heartbeat, job_spec, place
from tests.one_database import quick_on_sqlite
from tests.running import wait_for

pytestmark = pytest.mark.db
__all__ = ["code"]  # a fixture

QUOTA = Quota(max_bytes=10**9, max_files=10**5)
# What `api.nodes.order_marks` says that never changes, ids by which rows are found, and what a
# heartbeat writes.
FIXED: dict[type[Base], set[str]] = {
    Node: {"id", "inventory", "last_seen_at", "telemetry"},
    Attempt: {"id", "job_id", "node_id", "rendezvous", "resume_checkpoint_id"},
    AttemptPart: {"attempt_id", "position", "slots"},
    Job: {"id", "user_id", "spec", "plan", "dataset_id", "model_id", "tokenizer_id", "traceparent"}
    | {"code_sha256"},
    Lease: {"id"},
}


WAITERS = text(
    "SELECT count(*) FROM pg_stat_activity "
    "WHERE datname = current_database() AND wait_event_type = 'Lock'"
)


@dataclass
class Box:
    """The node `box`, which sends back the mark that it was given."""

    http: TestClient
    observed: list[dict[str, Any]] = field(default_factory=list)
    inventory: dict[str, Any] = field(default_factory=lambda: INVENTORY)
    mark: str = ""

    def beat(self, **changes: Any) -> Orders | None:
        """Send a heartbeat; return the orders, None if they are the same as before."""
        body = heartbeat(*self.observed, clean=True, inventory=self.inventory, **changes)
        headers = {ORDERS_MARK: self.mark} if self.mark else {}
        answer = self.http.post("/v1/node/heartbeat", json=body, headers=headers)
        if answer.status_code == 204:
            assert answer.content == b""
            return None
        assert answer.status_code == 200, answer.text
        self.mark = answer.headers.get(ORDERS_MARK, "")
        return Orders.model_validate(answer.json())

    def settle(self) -> Orders:
        """Send heartbeats until nothing changes any more; return the orders that stand then."""
        self.mark = ""
        orders = self.beat()
        for _ in range(5):
            assert orders is not None
            found = self.beat()
            if found is None:
                return orders
            orders = found
        raise AssertionError(f"it gets no rest: {self.mark=}")

    def runs(self, job_id: str, epoch: int = 1) -> None:
        """Take up an attempt, which runs from now on."""
        seen = {"job_id": job_id, "epoch": epoch, "phase": "running", "step": 3}
        self.observed.append(seen)


@pytest.fixture
def box(world: World) -> Box:
    return Box(world.node)


@pytest.fixture
def job(world: World, box: Box) -> str:
    """A job that runs on the node, which knows all about it."""
    made = world.ann.post("/v1/jobs", json=job_spec())
    assert made.status_code == 201, made.text
    job_id = str(made.json()["id"])
    place(world.database, job_id)
    box.runs(job_id)
    box.settle()
    return job_id


def booked(world: World, start: datetime, hours: int, node_name: str = "box") -> str:
    """A lease of ann."""
    with world.database.write() as session:
        node = session.scalars(select(Node).where(Node.name == node_name)).one()
        ann = session.scalars(select(User.id).where(User.name == "ann")).one()
        made = leases.take(
            session,
            user_id=ann,
            node=node,
            kind=LeaseKind.BOOKED,
            start=start,
            end=start + hours * HOUR,
            grace_s=300,
            now=utc_now(),
            actor="test",
            message="Booked.",
        )
        return made.id


def as_booked(world: World) -> datetime:
    """Make all walk-ins booked leases of two full hours; return their end."""
    begun = utc_now().replace(minute=0, second=0, microsecond=0)
    with world.database.write() as session:
        for kind in (Lease, Occupancy):
            session.execute(update(kind).values(hold_start=begun, hold_end=begun + 2 * HOUR))
        session.execute(update(Lease).values(kind=LeaseKind.BOOKED))
    return begun + 2 * HOUR


def test_a_node_at_rest_is_told_nothing_and_is_seen(world: World, box: Box) -> None:
    assert box.settle().attempts == []
    load = {**TELEMETRY, "cpu_pct": 77.0}
    assert box.beat(telemetry=load) is None
    with world.database.read() as session:
        node = session.scalars(select(Node)).one()
        assert node.telemetry is not None
        assert node.telemetry["cpu_pct"] == 77.0
        assert node.last_seen_at is not None
        assert utc_now() - node.last_seen_at < timedelta(seconds=5)


def seen_at(world: World) -> datetime:
    with world.database.read() as session:
        seen = session.scalars(select(Node.last_seen_at)).one()
    assert seen is not None
    return seen


def silent_for(world: World, seconds: float) -> datetime:
    with world.database.write() as session:
        session.execute(update(Node).values(last_seen_at=utc_now() - timedelta(seconds=seconds)))
    return seen_at(world)


def test_a_heartbeat_that_comes_late_is_not_more_work(world: World, box: Box) -> None:
    box.settle()
    before = silent_for(world, 25)
    assert box.beat() is None
    assert seen_at(world) > before


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_row_that_bookings_hold_is_waited_for_once_it_is_old(world: World, box: Box) -> None:
    box.settle()
    with ThreadPoolExecutor(1) as pool:
        before = silent_for(world, 5)
        with world.database.write() as booking:
            lock_nodes(booking, [node_of(world)])
            assert box.beat() is None
            assert seen_at(world) == before, "the next heartbeat writes it"
        before = silent_for(world, 25)
        with world.database.write() as booking:
            lock_nodes(booking, [node_of(world)])
            waiting = pool.submit(box.beat)
            wait_for(lambda: waits_for_a_lock(world), what="a heartbeat that waits")
            assert not waiting.done()
        assert waiting.result(30) is not None
    assert seen_at(world) > before


def waits_for_a_lock(world: World) -> bool:
    with world.database.read() as session:  # a transaction sees its first look again and again
        return bool(session.scalar(WAITERS))


def node_of(world: World) -> str:
    with world.database.read() as session:
        return session.scalars(select(Node.id)).one()


def test_steps_are_no_news_and_all_else_that_a_node_reports_is(
    world: World, box: Box, job: str
) -> None:
    box.observed[0] |= {"step": 400, "message": "Training."}
    assert box.beat() is None
    box.observed[0] |= {"launcher": "warm"}
    assert box.beat() is not None
    assert box.beat() is None
    box.inventory = {**INVENTORY, "driver": "560.1"}
    assert box.beat() is not None
    with world.database.read() as session:
        assert session.scalars(select(Node)).one().inventory["driver"] == "560.1"
        assert session.scalars(select(Attempt)).one().launcher == "warm"
    assert box.beat() is None
    box.observed.clear()  # the attempt is gone
    assert box.beat() is not None
    with world.database.read() as session:
        assert session.scalars(select(AttemptPart)).one().missing_since is not None
    assert box.mark == ""


def test_a_worker_that_sends_no_mark_gets_all_orders_each_time(
    world: World, box: Box, job: str
) -> None:
    for wrong in (
        "",
        "mark",
        "9" * 30,
        f"{int(utc_now().timestamp()) + 9}-{'0' * 40}",
        box.mark + "0",
    ):
        box.mark = wrong
        orders = box.beat()
        assert orders is not None
        assert [one.job_id for one in orders.attempts] == [job]
    box.settle()
    assert (
        world.nobody.post(
            "/v1/node/heartbeat", json=heartbeat(), headers={ORDERS_MARK: box.mark}
        ).status_code
        == 401
    )
    assert (
        world.ann.post(
            "/v1/node/heartbeat", json=heartbeat(), headers={ORDERS_MARK: box.mark}
        ).status_code
        == 401
    )


def test_a_mark_of_another_node_or_of_before_is_worth_nothing(world: World, box: Box) -> None:
    crate = Box(client(world.app, enrol(world.app, world.database, "crate")))
    crate.settle()
    box.settle()
    box.mark, crate.mark = crate.mark, box.mark
    assert box.beat() is not None
    assert crate.beat() is not None


@pytest.mark.parametrize(("nodes", "shortest_s"), [(0, 60), (300, 60), (301, 60), (1000, 200)])
def test_orders_of_many_nodes_are_sent_again_to_five_a_second(
    nodes: int, shortest_s: float
) -> None:
    now = utc_now()
    lasting = [order_marks.good_until(now, nodes) - now.timestamp() for _ in range(200)]
    assert min(lasting) >= shortest_s - 1  # whole seconds
    assert max(lasting) <= 1.5 * max(shortest_s, nodes / 5)


def test_all_orders_are_sent_again_after_a_minute(
    world: World, box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    box.settle()
    assert 59 <= order_marks.end_of(box.mark) - utc_now().timestamp() <= 90
    monkeypatch.setattr(order_marks, "SHORTEST_S", -1.0)
    monkeypatch.setattr(order_marks, "REPEATS_PER_S", math.inf)
    box.mark = ""
    box.beat()
    assert box.mark
    assert box.beat() is not None


def test_another_api_knows_the_mark_after_the_first_was_killed(
    world: World, box: Box, job: str, settings: ApiSettings
) -> None:
    other = create_app(settings)
    elsewhere = Box(client(other, world.tokens["box"]), box.observed, mark=box.mark)
    try:
        assert elsewhere.beat() is None
        world.ann.post(f"/v1/jobs/{job}/cancel").raise_for_status()
        orders = elsewhere.beat()
        assert orders is not None
        assert orders.attempts[0].stop is not None
    finally:
        other.state.process.ringer.close()
        other.state.looks.close()
        other.state.process.database.close()


def cancelled(world: World, job: str) -> None:
    world.ann.post(f"/v1/jobs/{job}/cancel").raise_for_status()


def asked_for_a_profile(world: World, job: str) -> None:
    with world.database.write() as session:
        attempt = session.scalars(select(Attempt)).one()
        attempt.request = {"number": 1, "action": "profile"}


def lease_cut(world: World, job: str) -> None:
    with world.database.write() as session:
        session.scalars(select(Lease)).one().hold_end -= HOUR


def wall_time_extended(world: World, job: str) -> None:
    with world.database.write() as session:
        session.get_one(Job, job).wall_time_s += 600


def given_up(world: World, job: str) -> None:
    with world.database.write() as session:
        session.scalars(select(AttemptPart)).one().ended_at = utc_now()


def drained(world: World, job: str) -> None:
    world.admin.post("/v1/admin/nodes/box/drain", json={"reason": "A new fan."}).raise_for_status()


def dirty(world: World, job: str) -> None:
    with world.database.write() as session:
        session.scalars(select(Node)).one().clean = False


@pytest.mark.parametrize(
    "change",
    [cancelled, asked_for_a_profile, lease_cut, wall_time_extended, given_up, drained, dirty],
)
def test_a_change_is_told_at_the_next_heartbeat(
    world: World, box: Box, job: str, change: Callable[[World, str], None]
) -> None:
    before = box.mark
    change(world, job)
    assert box.beat() is not None
    assert change is dirty or box.mark != before  # the heartbeat has made it clean again


def test_a_new_job_and_the_end_of_it_are_told(world: World, box: Box) -> None:
    box.settle()
    job = str(world.ann.post("/v1/jobs", json=job_spec()).json()["id"])
    assert box.beat() is None  # it waits
    place(world.database, job)
    orders = box.beat()
    assert orders is not None
    assert [one.job_id for one in orders.attempts] == [job]
    assert box.mark == ""  # until it runs here
    box.runs(job)
    box.settle()
    record = {"job_id": job, "epoch": 1, "boot_id": "boot-1", "outcome": "succeeded"}
    box.observed[0] |= {
        "phase": "exited",
        "exit": {**record, "reason": "Done.", "duration_s": 3.0},
        "kept": True,
    }
    orders = box.beat()
    assert orders is not None
    assert [one.job_id for one in orders.forget] == [job]
    box.observed.clear()
    box.settle()


def test_a_lease_that_follows_moves_the_deadline(world: World, box: Box) -> None:
    job = str(world.ann.post("/v1/jobs", json=job_spec()).json()["id"])
    place(world.database, job)
    end = as_booked(world)
    box.runs(job)
    before = box.settle().attempts[0].deadlines
    booked(world, end, 2)
    after = box.beat()
    assert after is not None
    moved_s = after.attempts[0].deadlines.checkpoint_in_s - before.checkpoint_in_s
    assert moved_s == pytest.approx(7200, abs=30)
    box.settle()


def test_hosts_labs_and_policies_are_told_to_programs(world: World, box: Box, code: str) -> None:
    box.inventory = {**INVENTORY, "egress": ""}
    box.settle()
    lists = "/v1/admin/network/node-classes/cpu2"
    world.admin.put(lists, json={"hosts": ["pypi.org"]}).raise_for_status()
    assert box.beat() is None  # it runs no program
    spec = {**script_spec(code), "network": ["pypi.org"]}
    made = world.ann.post("/v1/jobs", json=spec)
    assert made.status_code == 201, made.text
    place(world.database, made.json()["id"])
    box.runs(made.json()["id"])
    box.settle()
    world.admin.put(lists, json={"hosts": ["pypi.org", "*.hf.co"]}).raise_for_status()
    orders = box.beat()
    assert orders is not None
    assert orders.attempts[0].network is not None
    assert orders.attempts[0].network.granted == ["pypi.org", "*.hf.co"]
    box.settle()
    lab = world.admin.post("/v1/labs", json={"name": "vision"}).json()["id"]
    world.admin.post(f"/v1/labs/{lab}/members", json={"user": "ann"}).raise_for_status()
    assert box.beat() is not None
    box.settle()
    policy = "policy: {id: idle, zone: UTC}\nscheduling: {idle_after_min: 15}\n"
    yaml = {"Content-Type": "application/yaml"}
    world.admin.post("/v1/policies", content=policy, headers=yaml).raise_for_status()
    assert box.beat() is not None


def test_what_is_fetched_ahead_is_told_when_its_hour_comes(
    world: World, box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    box.settle()
    start = utc_now().replace(minute=0, second=0, microsecond=0) + 3 * HOUR
    lease = booked(world, start, 1)
    spec = {**job_spec(), "lease": lease}
    world.ann.post("/v1/jobs", json=spec).raise_for_status()
    assert box.beat() is None
    monkeypatch.setattr(order_marks, "AHEAD", timedelta(hours=4))  # as if time had gone by
    assert box.beat() is not None
    box.settle()


def values_instead(session: Session, column: Any, value: Any) -> Iterator[Any]:
    """Other values of a column."""
    if column.foreign_keys:
        [key] = column.foreign_keys
        others = session.scalars(select(key.column).where(key.column != value)).all()
        yield from others[:2]
    elif isinstance(column.type, EnumText):
        yield from (one for one in column.type.enum if one is not value)
    elif isinstance(value, StrEnum):
        yield from (one for one in type(value) if one is not value)
    elif isinstance(value, datetime) or "DateTime" in type(column.type).__name__:
        yield utc_now() - HOUR if value is None else value + HOUR
        if column.nullable and value is not None:
            yield None
    elif isinstance(value, bool):
        yield not value
    elif isinstance(value, int) or "Integer" in type(column.type).__name__:
        yield (value or 0) + 1
    elif isinstance(value, str):
        yield f"{value}x"
    elif column.name == "request":
        yield {"number": 7, "action": "profile"}


@quick_on_sqlite
def test_no_column_changes_orders_and_not_their_mark(world: World, box: Box) -> None:
    """Each column of the rows behind a gang's orders is changed in turn, and all is undone."""
    crate = Box(client(world.app, enrol(world.app, world.database, "crate")))
    crate.settle()
    job = submit_gang(world)
    for node in (box, crate):
        node.runs(job)
        node.observed[0] |= {"phase": "starting"}
        node.beat()
    for node in (box, crate):
        node.observed[0] |= {"phase": "running"}
        node.beat()
    for node in (box, crate):
        node.settle()
    end, now = as_booked(world), utc_now()
    booked(world, end, 1)
    booked(world, end, 1, "crate")
    beat = Heartbeat.model_validate(heartbeat(*box.observed, clean=True))
    token = digest(world.tokens["box"])
    with world.database.read() as session:
        node_id = session.scalars(select(Node.id).where(Node.name == "box")).one()

    def told(session: Session) -> tuple[str, str]:
        basis = read_bases(session, [token], now=now).get(token)
        mark = "" if basis is None else basis.mark(beat, QUOTA, until=1)
        try:
            orders = orders_for(session, node_id, beat.attempts, quota=QUOTA, now=now)
        except NoResultFound:  # such as of a workspace, which this job has not
            return "none", mark
        return orders.model_dump_json(), mark

    make = sessionmaker(world.database.engine)
    tried = changed = 0
    with make() as session:
        before = told(session)
        keys = [
            (table, row)
            for table in FIXED
            for row in session.execute(select(table.__table__)).mappings().all()
        ]
        session.rollback()
    assert "gang" in before[0]
    for table, row in keys:
        primary = [column == row[column.name] for column in table.__table__.primary_key]
        for column in table.__table__.columns:
            if column.name in FIXED[table]:
                continue
            with make() as session:
                others = list(values_instead(session, column, row[column.name]))
            for other in others:
                with make() as session:
                    try:
                        session.execute(
                            update(table).where(*primary).values({column.key: other}),
                            execution_options={"synchronize_session": False},
                        )
                    except IntegrityError:
                        continue
                    after = told(session)
                tried += 1
                if after[0] != before[0]:
                    changed += 1
                    assert after[1] != before[1], f"{column} = {other} changes orders, not the mark"
    assert tried > 150
    assert changed > 20
