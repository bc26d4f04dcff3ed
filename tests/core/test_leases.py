"""One node, one holder, at any moment: in races, at the edges of hours, after a lease shrank."""

import shutil
from datetime import timedelta
from itertools import combinations, count
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import select, update
from sqlalchemy.exc import IntegrityError

from core.base.errors import HourTaken
from core.database.database import Database
from core.leases import leases
from core.states import LeaseState
from core.tables.jobs import Event
from core.tables.kinds import LeaseKind, OccupancyKind
from core.tables.leases import Lease, Occupancy
from core.tables.nodes import Node
from tests.core.people import NOW, add_node
from tests.core.yard import HOUR, Yard, race

pytestmark = pytest.mark.race


@pytest.fixture
def yard(database: Database) -> Yard:
    return Yard(database)


def test_thirty_two_clients_race_for_one_hour_and_one_wins(yard: Yard) -> None:
    got = race([yard.take] * 32)
    assert sum(isinstance(one, str) for one in got) == 1
    assert sum(isinstance(one, HourTaken) for one in got) == 31
    assert len(yard.holds()) == 1
    with yard.database.read() as session:  # the losers left nothing behind
        assert len(session.scalars(select(Lease)).all()) == 1
        assert len(session.scalars(select(Event).where(Event.kind == "booked")).all()) == 1


def test_fifty_clients_take_overlapping_blocks_and_no_two_of_the_winners_overlap(
    yard: Yard,
) -> None:
    got = race(
        [
            lambda number=number: yard.take(None, NOW + (number % 7) * HOUR, 1 + number % 3)  # type: ignore[misc]
            for number in range(50)
        ]
    )
    holds = yard.holds()
    assert len(holds) == sum(isinstance(one, str) for one in got) >= 3
    for (a_start, a_end), (b_start, b_end) in combinations(holds, 2):
        assert a_end <= b_start or b_end <= a_start


def test_blocks_that_touch_do_not_conflict(yard: Yard) -> None:
    yard.take(None, NOW, 2)
    yard.take(None, NOW + 2 * HOUR, 1)
    yard.take(None, NOW - HOUR, 1)
    assert len(yard.holds()) == 3


def test_other_nodes_are_other_hours(yard: Yard) -> None:
    yard.take()
    yard.take(node_id=yard.other_id)
    assert len(yard.holds()) == 2


@pytest.mark.parametrize(("start_h", "hours"), [(0, 1), (-1, 2), (1, 0.5), (0.5, 3), (-1, 5)])
def test_every_kind_of_overlap_is_refused_with_the_holders_hours(
    yard: Yard, start_h: float, hours: float
) -> None:
    yard.take(None, NOW, 2)
    with pytest.raises(HourTaken, match="is held from 2026-11-21T12:00:00") as caught:
        yard.take(None, NOW + start_h * HOUR, hours)
    assert caught.value.status == 409
    assert len(yard.holds()) == 1


def test_the_database_itself_refuses_what_the_check_did_not_see(yard: Yard) -> None:
    yard.take(None, NOW, 2)
    fields = {"node_id": yard.node_id, "kind": OccupancyKind.MAINTENANCE, "live": True}
    for start, end in ((NOW, NOW + HOUR), (NOW - HOUR, NOW + 9 * HOUR)):
        with pytest.raises(IntegrityError, match="one_holder"), yard.database.write() as session:
            session.add(Occupancy(hold_start=start, hold_end=end, **fields))
    with yard.database.write() as session:  # not live: of no account, until it is made so
        session.add(Occupancy(hold_start=NOW, hold_end=NOW + HOUR, **{**fields, "live": False}))
    with pytest.raises(IntegrityError, match="one_holder"), yard.database.write() as session:
        session.scalars(select(Occupancy).where(~Occupancy.live)).one().live = True


def test_a_lease_can_not_be_stretched_over_its_neighbour(yard: Yard) -> None:
    first = yard.take(None, NOW, 1)
    yard.take(None, NOW + HOUR, 1)
    longer = update(Occupancy).where(Occupancy.lease_id == first)
    with pytest.raises(IntegrityError, match="one_holder"), yard.database.write() as session:
        session.execute(longer.values(hold_end=NOW + HOUR + timedelta(seconds=1)))


def test_an_empty_or_backward_hold_is_refused(yard: Yard) -> None:
    for hours in (0, -1):
        with pytest.raises(IntegrityError, match="hold"):
            yard.take(None, NOW, hours)


def test_a_lease_that_ends_early_frees_the_rest_at_once(yard: Yard) -> None:
    lease_id = yard.take(None, NOW, 4, kind=LeaseKind.WALK_IN)
    early = NOW + timedelta(minutes=40)
    with yard.database.write() as session:
        lease = session.get_one(Lease, lease_id)
        assert leases.end(session, lease, at=early, now=early, message="Done.", actor="t")
        assert not leases.end(session, lease, at=early, now=early, message="Done.", actor="t")
        assert lease.state is LeaseState.ENDED
    assert yard.holds() == [(NOW, early)]
    yard.take(None, early, 3)


def test_a_cancelled_block_is_free_again_and_can_not_be_cancelled_twice(yard: Yard) -> None:
    lease_id = yard.take(None, NOW, 2)
    with yard.database.write() as session:
        lease = session.get_one(Lease, lease_id)
        assert leases.cancel(session, lease, now=NOW, message="Never mind.", actor="t")
        assert not leases.cancel(session, lease, now=NOW, message="Never mind.", actor="t")
    assert yard.holds() == []
    yard.take(None, NOW, 2)


def test_an_active_lease_can_not_be_cancelled(yard: Yard) -> None:
    lease_id = yard.take(None, NOW, 2, kind=LeaseKind.WALK_IN)
    with yard.database.write() as session:
        lease = session.get_one(Lease, lease_id)
        assert not leases.cancel(session, lease, now=NOW, message="No.", actor="t")
    assert len(yard.holds()) == 1


def test_an_hour_taken_inside_a_longer_transaction_leaves_the_rest_of_it_sound(yard: Yard) -> None:
    yard.take(None, NOW, 1)
    with yard.database.write() as session:
        node = session.get_one(Node, yard.node_id)
        with pytest.raises(HourTaken):
            yard.take_in(session)
        node.reason = "still written"
    with yard.database.read() as session:
        assert session.get_one(Node, yard.node_id).reason == "still written"


NUMBERS = count()
BLOCKS = st.lists(
    st.tuples(st.integers(0, 40), st.integers(1, 12), st.booleans()), min_size=1, max_size=12
)


@pytest.fixture(scope="module")
def sandbox(migrated_sqlite: Path, tmp_path_factory: pytest.TempPathFactory) -> Yard:
    path = tmp_path_factory.mktemp("blocks") / "blocks.db"
    shutil.copy(migrated_sqlite, path)
    return Yard(Database(f"sqlite:///{path}"))


@settings(max_examples=40)
@given(BLOCKS)
def test_any_blocks_are_taken_exactly_where_a_plain_model_says(
    sandbox: Yard, blocks: list[tuple[int, int, bool]]
) -> None:
    with sandbox.database.write() as session:
        node_id = add_node(session, f"n-{next(NUMBERS)}").id
    taken: list[tuple[int, int]] = []
    for start, hours, cancels in blocks:
        is_free = all(start + hours <= a or b <= start for a, b in taken)
        try:
            lease_id = sandbox.take(None, NOW + start * HOUR, hours, node_id=node_id)
        except HourTaken:
            assert not is_free
            continue
        assert is_free
        if cancels:
            with sandbox.database.write() as session:
                lease = session.get_one(Lease, lease_id)
                leases.cancel(session, lease, now=NOW, message="No.", actor="t")
        else:
            taken.append((start, start + hours))
