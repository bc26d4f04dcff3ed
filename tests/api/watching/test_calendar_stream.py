"""The calendar's stream: what changed is sent once to everybody, and what is one's own is told."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import select

from api.watching import board
from api.watching.holds import Calendar, Hold, NodeHolds, changed_nodes
from api.watching.hub import Hub
from api.web.identity import Person
from core.base.clock import utc_now
from core.database.database import Database
from core.process.settings import ApiSettings
from core.states import NodeState
from core.tables.kinds import Scope
from core.tables.nodes import Node
from core.tables.people import User
from core.tables.policies import PoolWindow
from core.wire.doorbell import Topic
from tests.api.conftest import World, running_world
from tests.api.policies.test_policies import document, post
from tests.api.shapes import job_spec
from tests.api.times import next_hour
from tests.api.watching.hubs import hub_of

DEADLINE_S = 20


def person(database: Database, name: str) -> Person:
    """As they are signed in."""
    with database.read() as session:
        user = session.scalars(select(User).where(User.name == name)).one()
    return Person(user.id, name, user.role, "UTC", "token", frozenset(Scope))


@dataclass
class Page:
    """An open calendar: what it was told, and the nodes as it shows them."""

    hub: Hub
    person: Person
    version: str = ""
    told: list[str] = field(default_factory=list)
    nodes: dict[str, Any] = field(default_factory=dict)

    async def watch(self) -> None:
        """Read the stream until cancelled."""
        async for payload in self.hub.stream_calendar(self.person, self.version):
            for block in payload.decode().split("\n\n"):
                fields = dict(line.split(": ", 1) for line in block.split("\n") if ": " in line)
                self.version = fields.get("id", self.version)
                if "event" in fields:
                    self._take(fields["event"], json.loads(fields["data"]))

    def _take(self, kind: str, said: Any) -> None:
        if kind == "holds":
            if said["whole"]:
                self.nodes = {}
            self.nodes |= {node["node"]: node for node in said["nodes"]}
            kind = "whole" if said["whole"] else "holds"
        self.told.append(kind)

    @property
    def starts(self) -> list[str]:
        """Of all that holds the node `box`."""
        return [hold["start"] for hold in self.nodes["box"]["holds"]]


async def watched(
    *pages: Page, then: Callable[[], object], until: Callable[[], bool] = lambda: True
) -> None:
    """Open the pages; once all show something do `then` in a thread, watch `until`, hang up."""
    watching = [asyncio.create_task(page.watch()) for page in pages]
    try:
        async with asyncio.timeout(DEADLINE_S):
            while not all(page.told for page in pages) or pages[0].hub.num_viewers < len(pages):
                await asyncio.sleep(0.01)
            await asyncio.to_thread(then)
            while not until():
                await asyncio.sleep(0.01)
    finally:
        for task in watching:
            task.cancel()
        await asyncio.gather(*watching, return_exceptions=True)


def book(world: World, more: int, *, who: str = "ann") -> str:
    block = {"node": "box", "start": next_hour(more), "hours": 1}
    answer = getattr(world, who).post("/v1/leases", json=block)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


@pytest.fixture
def hub(world: World, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """Of another process, without Redis: it looks by itself, every 50 ms."""
    monkeypatch.setattr(board, "POLL_S", 0.05)
    monkeypatch.setattr(board, "REST_S", 0.0)
    return hub_of(world)


def test_a_booking_is_sent_to_every_calendar_and_only_its_owner_reads_anew(
    world: World, hub: Hub
) -> None:
    ann, bob, staff = (Page(hub, person(world.database, who)) for who in ("ann", "bob", "stefan"))
    pages = (ann, bob, staff)
    lease_id = ""

    def make() -> None:
        nonlocal lease_id
        lease_id = book(world, 3)

    asyncio.run(watched(*pages, then=make, until=lambda: all(page.starts for page in pages)))
    assert ann.told == ["whole", "own", "holds"]
    assert bob.told == staff.told == ["whole", "holds"]
    start = datetime.fromisoformat(next_hour(3)).astimezone(UTC)
    hours = {"start": f"{start:%Y-%m-%dT%H:%M:%SZ}", "kind": "lease", "gpus": None}
    hours["end"] = f"{start + timedelta(hours=1):%Y-%m-%dT%H:%M:%SZ}"
    assert bob.nodes == {"box": {"node": "box", "state": "ready", "holds": [hours]}}, "no names"
    [seen] = staff.nodes["box"]["holds"]
    assert seen == {**hours, "user": "ann", "lease": lease_id}
    assert len({page.version for page in pages}) == 1


def test_who_comes_back_is_sent_what_came_since_and_nothing_else(world: World, hub: Hub) -> None:
    book(world, 3)
    ann, bob = (Page(hub, person(world.database, who)) for who in ("ann", "bob"))

    async def scene() -> None:
        await watched(ann, bob, then=lambda: None)
        assert hub.num_viewers == 0
        before = book(world, 5), book(world, 7, who="bob")
        assert all(before)
        ann.told, bob.told = [], []
        await watched(ann, bob, then=lambda: None, until=lambda: len(ann.starts) == 3)

    asyncio.run(scene())
    assert ann.told == bob.told == ["own", "holds"]
    assert ann.nodes == bob.nodes


@pytest.mark.parametrize("version", ["0badcafe-3", "nonsense", "-"])
def test_a_version_of_another_process_begins_anew_and_misses_nothing(
    world: World, hub: Hub, version: str
) -> None:
    page = Page(hub, person(world.database, "ann"), version)
    asyncio.run(watched(page, then=lambda: None, until=lambda: "whole" in page.told))
    assert page.told == ["own", "rules", "whole"]
    assert page.version != version


def test_versions_that_are_no_longer_kept_begin_anew(
    world: World, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = Page(hub, person(world.database, "bob"))
    late = Page(hub, person(world.database, "bob"))

    async def scene() -> None:
        await watched(page, then=lambda: None)
        late.version = page.version
        for more in range(4):
            count = len(page.starts) + 1
            await watched(
                page,
                then=lambda more=more: book(world, 3 + 2 * more),
                until=lambda count=count: len(page.starts) == count,
            )
        await watched(late, then=lambda: None, until=lambda: "whole" in late.told)

    monkeypatch.setattr(board, "CHANGES", 3)
    hub = hub_of(world)
    page.hub = late.hub = hub
    asyncio.run(scene())
    assert page.told.count("whole") == 1
    assert late.told == ["own", "rules", "whole"]
    assert late.nodes == page.nodes


def test_another_process_is_told_through_redis_at_once(
    settings: ApiSettings, valkey_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(board, "POLL_S", 3600.0)  # so that only the doorbell can do it
    with running_world(settings.model_copy(update={"redis_url": valkey_url})) as world:
        other = hub_of(world)
        page = Page(other, person(world.database, "bob"))

        async def scene() -> None:
            other.start()
            watching = asyncio.create_task(page.watch())
            booked = 0
            while not page.told or not page.starts:  # it may not listen yet
                booked += 1
                await asyncio.to_thread(book, world, 2 * booked)
                await asyncio.wait([watching], timeout=0.2)
            await other.close()
            await watching

        asyncio.run(scene())


def test_a_job_rings_no_calendar_but_its_owner_s_while_it_is_in_a_lease(
    world: World, hub: Hub
) -> None:
    lease_id = book(world, 3)
    ann, bob = (Page(hub, person(world.database, who)) for who in ("ann", "bob"))

    def submit(spec: dict[str, Any]) -> str:
        answer = world.ann.post("/v1/jobs", json=spec)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    async def scene() -> None:
        def without_a_lease() -> None:
            submit(job_spec())

        def in_a_lease() -> None:
            submit({**job_spec(), "lease": lease_id})

        await watched(ann, bob, then=without_a_lease)
        await watched(ann, bob, then=in_a_lease, until=lambda: "own" in ann.told)

    asyncio.run(scene())
    assert ann.told == ["whole", "own"]
    assert set(bob.told) == {"whole"}


def test_rules_are_told_to_those_whom_they_concern(world: World, hub: Hub) -> None:
    ann, bob = (Page(hub, person(world.database, who)) for who in ("ann", "bob"))

    async def scene() -> None:
        def make_an_exception() -> None:
            grant = {
                "user": "ann",
                "rule": "too_many_open",
                "extra": 2,
                "starts_at": next_hour(),
                "ends_at": next_hour(48),
                "why": "A long run.",
            }
            answer = world.staff.post("/v1/grants", json=grant)
            assert answer.status_code == 201, answer.text

        await watched(ann, bob, then=make_an_exception, until=lambda: "rules" in ann.told)
        assert "rules" not in bob.told
        await watched(
            ann,
            bob,
            then=lambda: post(world, document()),
            until=lambda: ann.told.count("rules") == 2 and "rules" in bob.told,
        )

        def open_soon() -> None:
            with world.database.write() as session:
                for window in session.scalars(select(PoolWindow)):
                    window.opens_at = utc_now() + timedelta(seconds=0.3)

        await watched(
            bob, then=open_soon, until=lambda: bob.told.count("rules") == 3
        )  # it changed, and then it opened

    asyncio.run(scene())
    assert "own" not in ann.told + bob.told


def test_a_retired_node_is_told_and_then_no_longer_there(world: World, hub: Hub) -> None:
    page = Page(hub, person(world.database, "bob"))

    def retire() -> None:
        with world.database.write() as session:
            session.scalars(select(Node)).one().state = NodeState.RETIRED

    async def scene() -> Page:
        await watched(page, then=retire, until=lambda: page.nodes["box"]["state"] == "retired")
        again = Page(hub, page.person)
        await watched(again, then=lambda: None)
        return again

    again = asyncio.run(scene())
    assert again.told == ["whole"]
    assert again.nodes == {}


def test_the_calendar_s_stream_is_for_people_who_have_signed_in(world: World) -> None:
    assert world.nobody.get("/v1/leases/stream").status_code == 401
    assert world.node.get("/v1/leases/stream").status_code == 401


def test_a_transaction_knows_what_it_wrote_about(world: World) -> None:
    rung: list[frozenset[Topic]] = []

    def written(work: Callable[[], object]) -> set[Topic]:
        rung.clear()
        work()
        return {topic for topics in rung for topic in topics}

    ring = world.process.ringer.ring
    world.process.ringer.ring = lambda bells: (rung.append(frozenset(bells.topics)), ring(bells))  # type: ignore[method-assign]
    lease_id = ""

    def reserve() -> None:
        nonlocal lease_id
        lease_id = book(world, 3)

    assert written(reserve) == {Topic.CALENDAR}
    assert written(lambda: world.ann.delete(f"/v1/leases/{lease_id}")) == {Topic.CALENDAR}
    assert written(lambda: post(world, document())) == {Topic.RULES}
    assert written(lambda: world.ann.post("/v1/jobs", json=job_spec())) == set()


TIMES = st.integers(0, 5).map(lambda n: datetime(2026, 12, 1, n, tzinfo=UTC))
HOLDS = st.builds(Hold, TIMES, TIMES, st.just("lease"), st.none(), st.none())
NODES = st.dictionaries(
    st.sampled_from("abc"),
    st.tuples(st.sampled_from([NodeState.READY, NodeState.DIRTY]), st.lists(HOLDS, max_size=3)),
).map(
    lambda found: {
        name: NodeHolds(name, state, tuple(holds)) for name, (state, holds) in found.items()
    }
)


@given(st.lists(NODES, min_size=1, max_size=5))
def test_changes_lead_from_every_state_to_the_next(states: list[dict[str, NodeHolds]]) -> None:
    shown = dict(states[0])
    for before, after in pairwise(states):
        changed = changed_nodes(Calendar(before, {}), Calendar(after, {}))
        shown |= {node.node: node for node in changed}
        assert {name: one for name, one in shown.items() if one.state != "retired"} == after
        assert all(before.get(node.node) != node for node in changed)
