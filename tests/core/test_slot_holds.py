"""No moment of a node has more slots held than it has, whoever books, extends, moves or swaps."""

from datetime import datetime
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import insert, select, update
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import Session

from core.base.errors import HourTaken
from core.database.database import Database
from core.leases import leases
from core.policy.slots import free_slots
from core.policy.verdict import Span
from core.states import LeaseState
from core.tables.kinds import OccupancyKind
from core.tables.leases import Lease, Occupancy
from core.tables.nodes import Node
from tests.core.holds import OVERBOOKED, guards, live_holds
from tests.core.people import NOW
from tests.core.yard import HOUR, SLOTS, Yard, race

SIZES = (1, 1, 1, 2, 3, 4, None)


@pytest.fixture
def yard(database: Database) -> Yard:
    return Yard(database)


WHOLE = st.none() | st.integers(1, SLOTS)
HOLDS = st.lists(st.tuples(st.integers(0, 8), st.integers(1, 5), WHOLE), max_size=6)


@given(HOLDS, st.integers(0, 8), st.integers(1, 5))
def test_free_slots_are_what_a_count_of_every_hour_finds(
    holds: list[tuple[int, int, int | None]], first: int, hours: int
) -> None:
    def at(hour: int) -> datetime:
        return NOW + hour * HOUR

    found = free_slots(
        [Span(at(start), at(start + length), None, num) for start, length, num in holds],
        of=SLOTS,
        start=at(first),
        end=at(first + hours),
    )
    held = [
        sum(num or SLOTS for start, length, num in holds if start <= hour < start + length)
        for hour in range(first, first + hours)
    ]
    assert found == max(0, SLOTS - max(held))


@pytest.mark.race
def test_the_migrations_leave_the_guards_of_the_table_on_it(database: Database) -> None:
    with database.read() as session:
        found = guards(session.connection())
    assert found == (
        {"one_holder_insert", "one_holder_update"} if database.is_sqlite else {"one_holder"}
    )


@pytest.mark.race
@pytest.mark.parametrize("rounds", [3, pytest.param(50, marks=pytest.mark.slow)])
def test_of_32_who_want_some_slots_of_one_hour_all_get_them_who_fit(
    yard: Yard, rounds: int
) -> None:
    random = Random(rounds)
    for number in range(rounds):
        start = NOW + number * HOUR
        sizes = [random.choice(SIZES) for _ in range(32)]
        got = race([lambda k=k, start=start: yard.take(k, start) for k in sizes])  # type: ignore[misc]
        outcome = [(k or SLOTS, isinstance(one, str)) for k, one in zip(sizes, got, strict=True)]
        taken = sum(k for k, won in outcome if won)
        assert taken <= SLOTS
        least = min(k for k, won in outcome if not won)
        assert least > SLOTS - taken, "one who would have fitted was refused"
        yard.check()


@pytest.mark.race
def test_the_database_itself_refuses_what_no_check_has_seen(yard: Yard) -> None:
    def row(num_slots: int | None, hour: int = 0, hours: int = 1, **more: Any) -> dict[str, Any]:
        fields = {"node_id": yard.node_id, "kind": OccupancyKind.MAINTENANCE, "live": True}
        start = NOW + hour * HOUR
        hold = {"hold_start": start, "hold_end": start + hours * HOUR, "num_slots": num_slots}
        return {**fields, **hold, **more}

    def add(*rows: dict[str, Any]) -> None:
        yard.change(lambda session: session.execute(insert(Occupancy).values(list(rows))))

    def refused(*rows: dict[str, Any]) -> None:
        with pytest.raises(IntegrityError, match="one_holder"):
            add(*rows)

    refused(row(5))
    refused(row(2), row(2), row(2))  # in one statement
    add(row(2), row(2, hour=1))
    refused(row(3))
    refused(row(None))
    refused(row(3, hour=-1, hours=9))
    add(row(2, hour=-1, hours=9))
    add(row(None, hour=9))
    refused(row(1, hour=9))
    refused(row(None, hour=8, hours=2))
    with pytest.raises(IntegrityError, match="num_slots"):
        add(row(0, hour=20))
    add(row(4, live=False))  # not live: of no account, until it is made so
    for change in ({"live": True, "num_slots": 3}, {"live": True}):
        revived = update(Occupancy).where(~Occupancy.live).values(change)
        with pytest.raises(IntegrityError, match="one_holder"):
            yard.change(lambda session, revived=revived: session.execute(revived))  # type: ignore[misc]
    yard.check()


@pytest.mark.race
def test_a_fault_on_a_full_node_is_written_and_hours_can_still_be_given_back(yard: Yard) -> None:
    lease_id = yard.take(SLOTS, NOW + HOUR, 4)
    broken = {"node_id": yard.node_id, "kind": OccupancyKind.DOWN, "live": True, "num_slots": 1}
    hours = {"hold_start": NOW, "hold_end": NOW + 99 * HOUR}
    yard.change(lambda session: session.execute(insert(Occupancy).values(**broken, **hours)))
    held = update(Occupancy).where(Occupancy.lease_id == lease_id)

    def hold(**change: object) -> None:
        yard.change(lambda session: session.execute(held.values(**change)))

    hold(hold_end=NOW + 3 * HOUR)
    for wider in (
        {"hold_end": NOW + 4 * HOUR},
        {"hold_start": NOW},
        {"node_id": yard.node_id, "hold_start": NOW + HOUR, "hold_end": NOW + 6 * HOUR},
    ):
        with pytest.raises(IntegrityError, match="one_holder"):
            hold(**wider)
    hold(live=False)
    with pytest.raises(IntegrityError, match="one_holder"):
        hold(live=True)
    hold(live=True, num_slots=3)
    # A row that states a fact is not made a wish without being counted.
    down = update(Occupancy).where(Occupancy.kind == OccupancyKind.DOWN)
    with pytest.raises(IntegrityError, match="one_holder"):
        yard.change(
            lambda session: session.execute(
                down.values(kind=OccupancyKind.MAINTENANCE, num_slots=2)
            )
        )


@pytest.mark.race
@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_holds_are_not_written_by_a_snapshot_that_is_older_than_the_lock(
    yard: Yard, level: str
) -> None:
    if yard.database.is_sqlite:
        pytest.skip("SQLite has one writer at a time")
    row = {"node_id": yard.node_id, "kind": OccupancyKind.MAINTENANCE, "live": True}
    hold = {"hold_start": NOW, "hold_end": NOW + HOUR, "num_slots": 1}
    engine = yard.database.engine.execution_options(isolation_level=level)
    with engine.connect() as connection, pytest.raises(DBAPIError, match="READ COMMITTED"):
        connection.execute(insert(Occupancy).values(**row, **hold))


@pytest.mark.race
def test_of_an_extension_and_a_booking_one_gets_the_last_slot(yard: Yard) -> None:
    for number in range(4):
        start = NOW + number * 3 * HOUR
        first = yard.take(2, start)
        yard.take(2, start + HOUR)

        def extend(first: str = first, end: datetime = start + 2 * HOUR) -> str:
            with yard.database.write() as session:
                leases.lock_nodes(session, [yard.node_id])
                lease = session.get_one(Lease, first)
                leases.lock_lease(session, lease)
                leases.extend(session, lease, end=end, now=NOW, message="Longer.", actor="t")
            return "extended"

        got = race([extend, lambda start=start: yard.take(1, start + HOUR)])  # type: ignore[misc]
        assert sum(isinstance(one, str) for one in got) == 1
        yard.check()


@pytest.mark.race
def test_a_swap_that_does_not_fit_leaves_the_lease_as_it_was(yard: Yard) -> None:
    lease_id = yard.take(2, NOW + HOUR)
    yard.take(3, NOW + HOUR, node_id=yard.other_id)

    def swap(session: Session, num_slots: int) -> None:
        lease = session.get_one(Lease, lease_id)
        leases.cancel(session, lease, now=NOW, message="Swapped.", actor="t")
        yard.take_in(session, num_slots, NOW + HOUR, node_id=yard.other_id)

    with pytest.raises(HourTaken, match="1 of the 4 slots of north-02 is free"):
        yard.change(lambda session: swap(session, 2))
    with yard.database.read() as session:
        assert session.get_one(Lease, lease_id).state is LeaseState.BOOKED
        held = select(Occupancy.live).where(Occupancy.lease_id == lease_id)
        assert session.scalars(held).all() == [True]
    yard.change(lambda session: swap(session, 1))
    yard.check()


@pytest.mark.race
@pytest.mark.parametrize(
    "steps", [100, pytest.param(2000, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])]
)
def test_a_long_walk_of_bookings_keeps_to_the_count_and_to_the_pure_rule(
    yard: Yard, steps: int
) -> None:
    random = Random(steps)
    nodes = (yard.node_id, yard.other_id)
    refused = 0
    for _ in range(steps):
        start, hours = NOW + random.randrange(1, 12) * HOUR, random.randint(1, 4)
        node_id, size = random.choice(nodes), random.choice(SIZES)
        try:
            with yard.database.write() as session:
                step(session, yard, random, node_id, size, start, hours)
        except HourTaken:
            refused += 1
        with yard.database.read() as session:
            assert session.scalar(OVERBOOKED) == 0
    assert steps // 10 < refused < steps


def step(
    session: Session,
    yard: Yard,
    random: Random,
    node_id: str,
    size: int | None,
    start: datetime,
    hours: int,
) -> None:
    """Take, extend, move or cancel; the database refuses exactly what the pure rule refuses."""
    held = session.scalars(select(Lease).where(Lease.state == LeaseState.BOOKED)).all()
    lease = random.choice(held) if held else None
    act = random.randrange(4)
    if act < 2 or lease is None:
        holds = live_holds(session, node_id)
        end = start + hours * HOUR
        fits = free_slots(holds, of=SLOTS, start=start, end=end) >= (size or SLOTS)
        row = Occupancy(
            node_id=node_id,
            kind=OccupancyKind.MAINTENANCE,
            hold_start=start,
            hold_end=end,
            num_slots=size,
            live=True,
        )
        try:
            with session.begin_nested() as unasked:
                session.add(row)
                session.flush()
                assert fits, "the database took what the rule refuses"
                unasked.rollback()
        except IntegrityError:
            assert not fits, "the database refused what the rule allows"
        yard.take_in(session, size, start, hours, node_id=node_id)
    elif act == 2:
        other = session.get_one(Node, node_id)
        if other.id != lease.node_id:
            leases.move(session, lease, other, now=NOW, message="Moved.", actor="t")
        else:
            end = lease.hold_end + HOUR
            leases.extend(session, lease, end=end, now=NOW, message="Longer.", actor="t")
    else:
        leases.cancel(session, lease, now=NOW, message="Never mind.", actor="t")
