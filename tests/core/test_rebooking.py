"""Hours that were given back too late are charged until others take them up: never twice.

A number at the end of a name is that of the case in the list of edge cases.
"""

import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import permutations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core import leases
from core.database import Database
from core.ids import Kind, new_id
from core.policy.sections import Cancel, EarlyRelease
from core.rebooking import covered, refund_rebooked
from core.settlement import of_cancel, of_release
from core.states import LeaseState, NodeState
from core.tables.kinds import LeaseKind, Role
from core.tables.leases import Lease
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
    """Three people and a node; leases that they take and give back at noon."""

    def __init__(self, database: Database) -> None:
        self.database = database
        with database.write() as session:
            session.add(NodeClass(name="cpu2", hardware={}))
            for name in ("ada", "bob", "cy"):
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
                id=new_id(Kind.NODE),
                name="north-01",
                class_name="cpu2",
                state=NodeState.READY,
                inventory={},
                clean=True,
                created_at=NOON,
            )
            session.add(node)
            self.node_id = node.id

    def take(self, user: str, start: int, end: int) -> list[str]:
        """Book from one hour after noon to another; the ids of what that refunded."""
        with self.database.write() as session:
            lease = leases.take(
                session,
                user_id=f"user_{user}",
                node=session.get_one(Node, self.node_id),
                kind=LeaseKind.BOOKED,
                start=NOON + start * HOUR,
                end=NOON + end * HOUR,
                grace_s=300,
                now=NOON,
                actor="t",
                message="Booked.",
            )
            self.last = lease.id
            return refund_rebooked(session, lease, now=NOON)

    def cancel_late(self, lease_id: str) -> None:
        with self.database.write() as session:
            lease = session.get_one(Lease, lease_id)
            settled = of_cancel(lease.hold_start, now=NOON, rules=RULES, by="its owner")
            assert settled.refund_if_rebooked
            leases.cancel(
                session, lease, now=NOON, message=settled.message, actor="t", settlement=settled
            )

    def release(self, lease_id: str, end: int) -> None:
        with self.database.write() as session:
            lease = session.get_one(Lease, lease_id)
            at = {"now": NOON, "reason_code": "t", "message": "Yours.", "actor": "t"}
            advance(session, lease, LeaseState.ACTIVE, **at)  # type: ignore[arg-type]
            freed = NOON + end * HOUR
            settled = of_release(lease.hold_end, freed_from=freed, rules=RULES, by="its owner")
            leases.release(session, lease, end=freed, settlement=settled, now=NOON, actor="t")

    def lease(self, lease_id: str) -> Lease:
        with self.database.read() as session:
            return session.get_one(Lease, lease_id)


@pytest.fixture
def town(migrated_sqlite: Path, tmp_path: Path) -> Iterator[Town]:
    path = tmp_path / "town.db"
    shutil.copy(migrated_sqlite, path)
    database = Database(f"sqlite:///{path}")
    yield Town(database)
    database.close()


@pytest.mark.db
def test_a_late_cancel_is_refunded_once_others_have_booked_all_of_it_40(town: Town) -> None:
    town.take("ada", 1, 4)
    late = town.last
    town.cancel_late(late)
    assert (town.lease(late).counts, town.lease(late).settled_as) == (True, "late_cancel")
    assert town.take("bob", 1, 2) == []
    assert town.take("ada", 2, 3) == []  # one's own booking is no reason
    with town.database.write() as session:  # and gives them back in time for others
        leases.cancel(
            session, session.get_one(Lease, town.last), now=NOON, message="No.", actor="t"
        )
    assert town.take("cy", 3, 6) == []
    assert town.lease(late).counts
    assert town.take("bob", 2, 3) == [late]
    refunded = town.lease(late)
    assert (refunded.counts, refunded.settled_as, refunded.refund_if_rebooked) == (
        False,
        "rebooked",
        False,
    )


@pytest.mark.db
def test_what_is_booked_and_cancelled_again_refunds_nobody_40(town: Town) -> None:
    town.take("ada", 1, 3)
    late = town.last
    town.cancel_late(late)
    assert town.take("bob", 1, 2) == []
    with town.database.write() as session:
        leases.cancel(
            session, session.get_one(Lease, town.last), now=NOON, message="No.", actor="t"
        )
    assert town.take("cy", 2, 3) == []
    assert town.lease(late).counts
    assert town.take("cy", 1, 2) == [late]


@pytest.mark.db
def test_a_lease_released_early_pays_up_to_where_others_take_the_rest_up_43(
    town: Town,
) -> None:
    town.take("ada", 0, 4)
    early = town.last
    town.release(early, 1)
    before = town.lease(early)
    assert (before.hold_end, before.charged_end) == (NOON + HOUR, NOON + 4 * HOUR)
    town.take("cy", 4, 5)
    assert town.lease(early).charged_end == NOON + 4 * HOUR
    town.take("bob", 2, 3)
    after = town.lease(early)
    assert (after.counts, after.charged_end) == (True, NOON + 2 * HOUR)
    assert (after.settled_as, after.refund_if_rebooked) == ("rebooked", False)
    town.take("cy", 1, 2)
    assert town.lease(early).charged_end == NOON + HOUR


@pytest.mark.db
def test_other_hours_of_the_node_are_no_ones_business(town: Town) -> None:
    town.take("ada", 1, 2)
    late = town.last
    town.cancel_late(late)
    assert town.take("bob", 2, 3) == []
    assert town.take("bob", 0, 1) == []
    assert town.lease(late).refund_if_rebooked


def test_covered_in_any_order_and_with_overlaps() -> None:
    spans = [(NOON, NOON + HOUR), (NOON + HOUR, NOON + 2 * HOUR), (NOON, NOON + 3 * HOUR)]
    for order in permutations(spans):
        assert covered(NOON, NOON + 3 * HOUR, order)
        assert not covered(NOON - HOUR, NOON + HOUR, order)
    assert not covered(NOON, NOON + 2 * HOUR, [])
    assert not covered(NOON, NOON + 3 * HOUR, [spans[0], (NOON + 2 * HOUR, NOON + 3 * HOUR)])


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(1, 5)), max_size=6))
def test_covered_is_that_no_hour_is_left(spans: list[tuple[int, int]]) -> None:
    taken = {hour for start, length in spans for hour in range(start, start + length)}
    given_spans = [(NOON + a * HOUR, NOON + (a + n) * HOUR) for a, n in spans]
    assert covered(NOON + 2 * HOUR, NOON + 8 * HOUR, given_spans) is (set(range(2, 8)) <= taken)
