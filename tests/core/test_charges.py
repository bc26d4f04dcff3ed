"""An hour that was given back too late is charged while nobody else has it: once, to one person.

A number at the end of a name is that of the case in the list of edge cases.
"""

import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from sqlalchemy import delete, select

from core.base.ids import IdKind, new_id
from core.database.database import Database
from core.leases import charges, leases
from core.leases.charges import HoursClaim
from core.leases.settlement import Settlement, of_cancel, of_no_show, of_release
from core.policy.sections import Cancel, EarlyRelease
from core.states import LeaseState, NodeState
from core.tables.kinds import LeaseKind, Role
from core.tables.leases import Appointment, Lease, Occupancy
from core.tables.nodes import Node, NodeClass
from core.tables.people import User
from core.transitions import advance

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
RULES = Cancel(
    refund_if_before_start_min=120,
    late_cancel="charge_unless_rebooked",
    early_release=EarlyRelease(charge="block", refund_if_rebooked=True),
)


class Town:
    """Four people and a node; leases that they take and give back at noon."""

    def __init__(self, database: Database) -> None:
        self.database, self.moments = database, 0
        with database.write() as session:
            session.add(NodeClass(name="cpu2", hardware={}))
            for name in ("ada", "ann", "bob", "cy"):
                session.add(
                    User(
                        id=f"user_{name}",
                        name=name,
                        role=Role.USER,
                        password_hash=None,
                        created_at=NOON,
                    )
                )
            session.flush()
            node = Node(
                id=new_id(IdKind.NODE),
                name="north-01",
                class_name="cpu2",
                state=NodeState.READY,
                inventory={},
                clean=True,
                created_at=NOON,
            )
            session.add(node)
            self.node_id = node.id

    def take(self, user: str, start: int, end: int) -> str:
        """Book from one hour after noon to another; the lease's id."""
        with self.database.write() as session:
            return leases.take(
                session,
                user_id=f"user_{user}",
                node=session.get_one(Node, self.node_id),
                kind=LeaseKind.BOOKED,
                start=NOON + start * HOUR,
                end=NOON + end * HOUR,
                grace_s=300,
                now=self.next_moment(),
                actor="t",
                message="Booked.",
            ).id

    def cancel(self, lease_id: str) -> None:
        """In time: it is free of charge."""
        with self.database.write() as session:
            lease = session.get_one(Lease, lease_id)
            leases.cancel(session, lease, now=self.next_moment(), message="No.", actor="t")

    def cancel_late(self, lease_id: str, rules: Cancel = RULES) -> None:
        with self.database.write() as session:
            lease = session.get_one(Lease, lease_id)
            settled = of_cancel(lease.hold_start, now=NOON, rules=rules, by="its owner")
            if lease.hold_start - NOON >= 2 * HOUR:  # as if it were later
                settled = Settlement(True, "late_cancel", "Late.", refund_if_rebooked=True)
            leases.cancel(
                session,
                lease,
                now=self.next_moment(),
                message=settled.message,
                actor="t",
                settlement=settled,
            )

    def begin(self, lease_id: str) -> None:
        with self.database.write() as session:
            lease = session.get_one(Lease, lease_id)
            at = {"now": NOON, "reason_code": "t", "message": "Yours.", "actor": "t"}
            advance(session, lease, LeaseState.ACTIVE, **at)  # type: ignore[arg-type]

    def release(self, lease_id: str, end: int, *, came: bool = True, rules: Cancel = RULES) -> None:
        """Give back what begins so many hours after noon; or it is taken back, if nobody `came`."""
        self.begin(lease_id)
        with self.database.write() as session:
            lease = session.get_one(Lease, lease_id)
            freed = NOON + end * HOUR
            settled = of_release(lease.hold_end, freed_from=freed, rules=rules, by="its owner")
            if not came:
                settled = of_no_show(lease.hold_end, node_name="north-01")
            leases.release(
                session, lease, end=freed, settlement=settled, now=self.next_moment(), actor="t"
            )

    def extend(self, lease_id: str, end: int) -> None:
        with self.database.write() as session:
            lease, now = session.get_one(Lease, lease_id), self.next_moment()
            until = NOON + end * HOUR
            leases.extend(session, lease, end=until, now=now, message="Longer.", actor="t")

    def refund(self, lease_id: str) -> None:
        with self.database.write() as session:
            lease, now = session.get_one(Lease, lease_id), self.next_moment()
            leases.refund(session, lease, why="node_fault", message="Broken.", now=now)

    def next_moment(self) -> datetime:
        """Before noon, each a little later than the one before."""
        self.moments += 1
        return NOON - HOUR + self.moments * timedelta(seconds=1)

    def lease(self, lease_id: str) -> Lease:
        with self.database.read() as session:
            return session.get_one(Lease, lease_id)

    def hours(self, lease_id: str) -> float:
        """What it is charged for now."""
        lease = self.lease(lease_id)
        if not lease.counts:
            return 0
        if lease.charged_s is not None:
            return lease.charged_s / 3600
        return ((lease.charged_end or lease.hold_end) - lease.hold_start) / HOUR


@pytest.fixture
def town(migrated_sqlite: Path, tmp_path: Path) -> Iterator[Town]:
    path = tmp_path / "town.db"
    shutil.copy(migrated_sqlite, path)
    database = Database(f"sqlite:///{path}")
    yield Town(database)
    database.close()


@pytest.mark.db
def test_a_late_cancel_is_refunded_while_others_have_all_of_it_40(town: Town) -> None:
    late = town.take("ada", 1, 4)
    town.cancel_late(late)
    assert (town.hours(late), town.lease(late).settled_as) == (3, "late_cancel")
    first = town.take("bob", 1, 2)
    assert town.hours(late) == 2
    town.take("cy", 3, 6)
    assert town.hours(late) == 1  # the hour between theirs
    town.take("bob", 2, 3)
    assert (town.hours(late), town.lease(late).settled_as) == (0, "rebooked")
    town.cancel(first)
    assert (town.hours(late), town.lease(late).settled_as) == (1, "late_cancel")
    own = town.take("ada", 1, 2)  # one's own booking is charged for itself
    assert (town.hours(late), town.hours(own)) == (0, 1)


@pytest.mark.db
def test_what_is_booked_and_cancelled_at_once_takes_nobody_s_charge_away_43(town: Town) -> None:
    early = town.take("ann", 0, 8)
    town.release(early, 1)
    assert town.hours(early) == 8
    friend = town.take("bob", 4, 7)
    assert (town.hours(early), town.hours(friend)) == (5, 3)
    town.cancel(friend)
    lease = town.lease(early)
    assert (town.hours(early), town.hours(friend)) == (8, 0)
    assert (lease.settled_as, lease.charged_end) == ("released", NOON + 8 * HOUR)


@pytest.mark.db
def test_nor_is_it_taken_away_from_who_did_not_come_57(town: Town) -> None:
    missed = town.take("ann", 0, 4)
    town.release(missed, 1, came=False)
    friend = town.take("bob", 1, 4)
    assert (town.hours(missed), town.lease(missed).settled_as) == (1, "no_show")
    town.cancel(friend)
    assert (town.hours(missed), town.lease(missed).settled_as) == (4, "no_show")


@pytest.mark.db
def test_the_last_to_give_an_hour_back_too_late_is_charged_for_it(town: Town) -> None:
    first = town.take("ann", 1, 4)
    town.cancel_late(first)
    second = town.take("bob", 1, 4)
    town.cancel_late(second)
    assert (town.hours(first), town.hours(second)) == (0, 3)
    third = town.take("cy", 2, 3)
    assert (town.hours(first), town.hours(second), town.hours(third)) == (0, 2, 1)
    town.refund(second)  # for good: the hours are ann's again
    assert (town.hours(first), town.hours(second), town.hours(third)) == (2, 0, 1)
    town.cancel(third)
    assert (town.hours(first), town.hours(second)) == (3, 0)


@pytest.mark.db
def test_hours_that_were_let_go_free_of_charge_fall_back_far_beyond_its_end_too(
    town: Town,
) -> None:
    late = town.take("ann", 4, 8)
    town.cancel_late(late)
    second = town.take("bob", 0, 8)
    town.release(second, 1, rules=Cancel())  # it counts up to one o'clock
    assert (town.hours(late), town.hours(second)) == (4, 1)
    third = town.take("cy", 1, 8)
    town.release(third, 2)
    assert (town.hours(late), town.hours(third)) == (0, 7)
    town.refund(third)
    assert (town.hours(late), town.hours(third)) == (4, 0)


@pytest.mark.db
def test_where_the_policy_charges_late_cancels_one_hour_stays_whoever_has_them(
    town: Town,
) -> None:
    strict = Cancel(refund_if_before_start_min=120, late_cancel="charge")
    late = town.take("ann", 1, 3)
    town.cancel_late(late, strict)
    town.take("bob", 1, 3)
    lease = town.lease(late)
    assert (lease.counts, lease.settled_as, lease.charged_s) == (True, "late_cancel", 0)


@pytest.mark.db
def test_what_a_fault_has_refunded_stays_free_whatever_its_owner_does(town: Town) -> None:
    booked, active = town.take("ann", 1, 2), town.take("ann", 2, 8)
    town.refund(booked)
    town.cancel_late(booked)
    town.refund(active)
    town.release(active, 3)
    for lease_id in (booked, active):  # nor is it a no-show
        assert (town.hours(lease_id), town.lease(lease_id).settled_as) == (0, "node_fault")


@pytest.mark.db
def test_other_hours_of_the_node_are_no_ones_business(town: Town) -> None:
    late = town.take("ada", 1, 2)
    town.cancel_late(late)
    town.take("bob", 2, 3)
    town.take("bob", 0, 1)
    assert (town.hours(late), town.lease(late).settled_as) == (1, "late_cancel")


Step = tuple[int, int, int, int]  # what, who or which, from, for how long


@pytest.mark.db
@settings(
    max_examples=40,
    deadline=None,
    phases=(Phase.explicit, Phase.generate),  # no shrinking: they are short
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    st.lists(
        st.tuples(st.integers(0, 11), st.integers(0, 5), st.integers(0, 6), st.integers(1, 5)),
        max_size=14,
    )
)
def test_every_hour_is_charged_once_if_somebody_has_it_or_gave_it_back_too_late(
    town: Town, steps: list[Step]
) -> None:
    """Beside a model that keeps for each hour who holds it, and who has forfeited it, in order."""
    with town.database.write() as session:
        for lease in session.scalars(select(Lease).where(Lease.counts)):
            leases.refund(session, lease, why="t", message="New example.", now=NOON)
        for table in (Appointment, Occupancy):
            session.execute(delete(table))
    model = Model()
    for what, which, start, length in steps:
        model.step(town, what, which, start, length)
        charged = {one: town.hours(one) for one in model.ids}
        assert charged == model.charged(), steps


class Model:
    """Hours of one node, one by one."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.booked: dict[str, set[int]] = {}  # can be given back
        self.occupied: dict[str, set[int]] = {}
        self.held: dict[str, set[int]] = {}  # and counted
        self.forfeited: dict[int, list[str]] = {}  # by hour, the last one last

    def step(self, town: Town, what: int, which: int, start: int, length: int) -> None:
        hours = set(range(start, start + length))
        taken = set().union(*self.occupied.values())
        if what <= 3:
            if hours & taken:
                return
            new = town.take(("ada", "bob", "cy")[which % 3], start, start + length)
            self.ids.append(new)
            self.booked[new] = self.occupied[new] = self.held[new] = hours
            return
        if what == 11:
            given_back = [one for one in self.ids if one not in self.booked]
            if given_back:
                self.refund(town, given_back[which % len(given_back)])
            return
        if not self.booked:
            return
        lease_id = list(self.booked)[which % len(self.booked)]
        own = self.booked[lease_id]
        if what == 4 and not (set(range(max(own) + 1, max(own) + 2)) & taken):
            town.extend(lease_id, max(own) + 2)
            longer = own | {max(own) + 1}
            self.booked[lease_id] = self.occupied[lease_id] = self.held[lease_id] = longer
            return
        if what == 5:
            town.cancel(lease_id)
            lost, kept = set[int](), set[int]()
        elif what == 6:
            town.cancel_late(lease_id)
            lost, kept = own, set()
        elif what == 7:
            town.refund(lease_id)  # and its owner goes on to hold it, for nothing
            lost, kept = set(), set()
            town.cancel(lease_id)
        elif len(own) > 1 and what == 10:
            town.release(lease_id, min(own) + 1, rules=Cancel())  # it counts as far as it was used
            lost, kept = set(), {min(own)}
        elif len(own) > 1:
            town.release(lease_id, min(own) + 1, came=what == 8)
            lost, kept = own - {min(own)}, {min(own)}
        else:
            return
        del self.booked[lease_id]
        self.occupied[lease_id] = self.held[lease_id] = kept
        for hour in lost:
            self.forfeited.setdefault(hour, []).append(lease_id)

    def refund(self, town: Town, lease_id: str) -> None:
        """After the fact: it is as if it had never been."""
        town.refund(lease_id)
        self.held[lease_id] = set()
        self.forfeited = {
            hour: left
            for hour, owners in self.forfeited.items()
            if (left := [one for one in owners if one != lease_id])
        }

    def charged(self) -> dict[str, int]:
        """Hours by lease."""
        found = {one: len(self.held[one]) for one in self.ids}
        held = set().union(*self.held.values())
        for hour, owners in self.forfeited.items():
            if hour not in held:
                found[owners[-1]] += 1
        assert sum(found.values()) == len(held | set(self.forfeited))
        return found


# ---------------------------------------------------------------------------------- the pure part


def claim(
    number: int, start: int, length: int, more: int, *, num_slots: int | None = None
) -> HoursClaim:
    """The claim of the lease of a number: it has `length` hours from `start` on, and has forfeited
    `more` after them, later than leases with lower numbers."""
    begins = NOON + start * HOUR
    return HoursClaim(
        f"lease_{number}",
        begins,
        held_until=begins + length * HOUR,
        forfeited_until=begins + (length + more) * HOUR,
        forfeited_at=NOON + number * HOUR,
        num_slots=num_slots,
    )


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 5), st.integers(0, 5)), max_size=6))
def test_the_charges_of_a_node_are_its_hours_that_are_held_or_forfeited(
    blocks: list[tuple[int, int, int]],
) -> None:
    claims, held, forfeited = [], set[int](), set[int]()
    for number, (start, length, more) in enumerate(blocks):
        mine = set(range(start, start + length))
        if mine & held:
            continue
        lost = set(range(start + length, start + length + more))
        held, forfeited = held | mine, forfeited | lost
        claims.append(claim(number, start, length, more))
    found = charges.of(claims)
    assert sum(one.length / HOUR for one in found.values()) == len(held | forfeited)
    assert charges.of(reversed(claims)) == found


def test_a_charge_ends_where_others_begin_and_is_as_long_as_what_is_left() -> None:
    first = HoursClaim("a", NOON, NOON + HOUR, NOON + 8 * HOUR, NOON)
    between = HoursClaim("b", NOON + 3 * HOUR, NOON + 5 * HOUR)
    assert charges.of([first, between]) == {
        "a": charges.Charge(NOON + 3 * HOUR, 6 * HOUR, is_whole=False, is_passed_on=False)
    }


@given(
    st.lists(
        st.tuples(st.integers(0, 8), st.integers(0, 4), st.integers(0, 4), st.integers(1, 4)),
        max_size=8,
    )
)
def test_no_more_slots_are_charged_at_any_moment_than_the_node_has(
    blocks: list[tuple[int, int, int, int]],
) -> None:
    claims: list[HoursClaim] = []
    held = [0] * 20
    forfeited: dict[int, list[tuple[str, int]]] = {}
    for number, (start, length, more, size) in enumerate(blocks):
        mine = range(start, start + length)
        if any(held[hour] + size > 4 for hour in mine):
            continue
        for hour in mine:
            held[hour] += size
        for hour in range(start + length, start + length + more):
            forfeited.setdefault(hour, []).append((f"lease_{number}", size))
        claims.append(claim(number, start, length, more, num_slots=size))
    charged = {one.lease_id: (one.held_until - one.start) / HOUR for one in claims}
    for hour, owners in forfeited.items():
        billed = held[hour]
        for lease_id, size in reversed(owners):  # the earliest given back are relieved first
            if billed + size > 4:
                break
            billed += size
            charged[lease_id] += 1
    found = charges.of(claims, slots=4)
    assert {lease_id: one.length / HOUR for lease_id, one in found.items()} == charged


def test_hours_of_one_gpu_stay_charged_while_the_node_has_another_for_them() -> None:
    given_back = HoursClaim("a", NOON, NOON, NOON + 3 * HOUR, NOON, num_slots=1)
    others = [HoursClaim(name, NOON, NOON + 3 * HOUR, num_slots=1) for name in ("b", "c", "d")]
    assert charges.of([given_back, *others], slots=4)["a"].is_whole
    last = HoursClaim("e", NOON, NOON + 3 * HOUR, num_slots=1)
    assert charges.of([given_back, *others, last], slots=4)["a"].is_passed_on
