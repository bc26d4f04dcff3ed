"""Races for hours: 32 threads behind a barrier, on both databases, checked by SQL.

A number at the end of a name is that of the case in the list of edge cases.
"""

from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest
from sqlalchemy import func, select, update

from api.leases import booking
from api.web.identity import Person
from core.base.clock import utc_now
from core.base.errors import Conflict, HourTaken, ServiceError
from core.leases import leases, waitlist
from core.leases.active_policies import fingerprint
from core.leases.settlement import Settlement
from core.leases.situation import lock_user
from core.policy.grid import HOUR
from core.states import NodeState
from core.tables.jobs import Event
from core.tables.kinds import LeaseKind, OccupancyKind, OfferState, WaitState
from core.tables.leases import Lease, Occupancy, Offer, Wait
from core.tables.nodes import Node
from core.tables.people import Grant, Lab, Membership
from core.tables.policies import AppliedPolicy
from core.transitions import advance
from tests.api.yard import ROUNDS, THREADS, Yard, winners

pytestmark = pytest.mark.race

LAB_CAP = """
policy: {id: capped, version: 1}
bands:
  night: {local: ["01:00", "07:00"], days: all}
  day: {complement_of: night}
quotas:
  lab_cap: {scope: lab, period: week, max_node_hours: {day: 4, night: 4}}
"""


@pytest.mark.parametrize("rounds", ROUNDS)
def test_of_32_who_want_one_block_one_gets_it_35(yard: Yard, rounds: int) -> None:
    for _ in range(rounds):
        turns = iter(yard.people)
        got = yard.race(lambda turns=turns: yard.book(next(turns), "n-00"))  # type: ignore[misc]
        assert len(winners(got)) == 1
        assert sum(isinstance(one, HourTaken) for one in got) == THREADS - 1
        yard.next_round()


@pytest.mark.parametrize("rounds", ROUNDS)
def test_blocks_that_overlap_exclude_each_other_and_blocks_that_touch_do_not_7_6(
    yard: Yard, rounds: int
) -> None:
    ann, bob, cy = yard.people[:3]
    for _ in range(rounds):
        got = yard.race(
            lambda: ("a", yard.book(ann, "n-00", more=0)),
            lambda: ("b", yard.book(bob, "n-00", more=1)),
            lambda: ("c", yard.book(cy, "n-00", more=2)),
        )
        won = {one[0] for one in got if isinstance(one, tuple)}
        assert won in ({"b"}, {"a", "c"})
        yard.next_round()


@pytest.mark.parametrize("rounds", ROUNDS)
def test_several_nodes_are_taken_whole_or_not_at_all_in_any_order_36_37(
    yard: Yard, rounds: int
) -> None:
    ann, bob, cy = yard.people[:3]
    four = yard.nodes[:4]
    for _ in range(rounds):
        got = yard.race(
            lambda: ("a", yard.book(ann, *four)),
            lambda: ("b", yard.book(bob, *reversed(four))),
            lambda: ("c", yard.book(cy, "n-02")),
        )
        won = [one[0] for one in got if isinstance(one, tuple)]
        assert len(won) == 1
        with yard.database.read() as session:
            held = session.scalars(
                select(Lease).where(Lease.hold_start == yard.start, Lease.counts)
            ).all()
        assert len(held) == (1 if won == ["c"] else 4)
        assert len({lease.user_id for lease in held}) == 1
        yard.next_round()


@pytest.mark.parametrize("rounds", ROUNDS)
def test_one_person_on_many_nodes_at_once_keeps_to_the_quota_39(yard: Yard, rounds: int) -> None:
    for number in range(rounds):
        person = yard.people[number % THREADS]
        with yard.database.write() as session:
            session.delete(session.get_one(Grant, f"grant_{person.name}"))
        turns = iter(range(THREADS))

        def work(person: Person = person, turns: Iterator[int] = turns) -> str:
            turn = next(turns)
            return yard.book(person, yard.nodes[turn % 8], more=2 * (turn // 8))

        got = yard.race(work)
        assert len(winners(got)) == 5
        assert {one.code for one in got if isinstance(one, ServiceError)} == {"too_many_open"}
        yard.next_round()
        if number + 1 == THREADS:
            return  # everybody has had a turn


@pytest.mark.parametrize("rounds", ROUNDS)
def test_two_people_of_a_lab_keep_to_its_cap(yard: Yard, rounds: int) -> None:
    ann, bob = yard.people[:2]
    with yard.database.write() as session:
        session.add(
            AppliedPolicy(
                policy_id="capped",
                version=1,
                document=LAB_CAP,
                sha256=fingerprint(LAB_CAP),
                active=True,
                applied_by=ann.id,
                applied_at=utc_now(),
            )
        )
    noon = yard.start.replace(hour=10) + timedelta(days=1)
    for number in range(min(rounds, 12)):
        yard.start = noon + timedelta(days=number)  # four hours a week: the first round takes them
        with yard.database.write() as session:
            for lease in session.scalars(select(Lease).where(Lease.counts)):
                leases.refund(session, lease, why="round", message="Next round.", now=utc_now())
            lab = Lab(id=f"lab_{number}", name=f"lab-{number}", created_at=utc_now())
            session.add(lab)
            session.flush()
            for person in (ann, bob):
                session.add(Membership(lab_id=lab.id, user_id=person.id))
            for old in session.scalars(select(Membership).where(Membership.lab_id != lab.id)):
                session.delete(old)
        turns = iter(range(THREADS))

        def work(turns: Iterator[int] = turns) -> str:
            turn = next(turns)
            return yard.book((ann, bob)[turn % 2], yard.nodes[turn % 8], more=2 * (turn // 8 % 2))

        got = yard.race(work)
        assert len(winners(got)) == 2, [str(one) for one in got]


@pytest.mark.parametrize("rounds", ROUNDS)
def test_who_books_and_who_cancels_forfeited_hours_at_once_are_all_seen(
    yard: Yard, rounds: int
) -> None:
    """Of a block that ann forfeited four people each take an hour, or give theirs back."""
    ann, *others = yard.people[:5]
    for _ in range(rounds):
        forfeited = yard.book(ann, "n-00", hours=4)
        give_back(yard, forfeited, counts=True)
        booked = [yard.book(one, "n-00", more=at, hours=1) for at, one in enumerate(others[:2])]
        works = [lambda one=one: give_back(yard, one) for one in booked]
        works += [
            lambda one=one, at=at: yard.book(one, "n-00", more=at, hours=1)
            for at, one in enumerate(others)
            if at >= 2
        ]
        assert len(winners(yard.race(*works))) == 4
        lease = yard.lease(forfeited)
        assert (lease.counts, lease.charged_s) == (True, 2 * 3600)
        yard.next_round()


def give_back(yard: Yard, lease_id: str, *, counts: bool = False) -> str:
    with yard.database.write() as session:
        lease = session.get_one(Lease, lease_id)
        settled = Settlement(counts, "late_cancel", "No.", refund_if_rebooked=counts)
        now = utc_now()
        done = leases.cancel(session, lease, now=now, message="No.", actor="t", settlement=settled)
        if not done:
            raise Conflict("It is over.")
    return lease_id


@pytest.mark.parametrize("rounds", ROUNDS)
def test_an_extension_and_a_booking_of_the_next_hour_exclude_each_other_46(
    yard: Yard, rounds: int
) -> None:
    ann, bob = yard.people[:2]
    for _ in range(rounds):
        lease_id = yard.book(ann, "n-00")

        def extend(lease_id: str = lease_id) -> str:
            with yard.database.write() as session:
                lease = booking.owned(session, lease_id, ann)
                end = yard.start + 3 * HOUR
                booking.extend(session, lease, ann, end, now=utc_now())
            return "extended"

        got = yard.race(extend, lambda: "booked" if yard.book(bob, "n-00", more=2) else "")
        assert len(winners(got)) == 1
        end = yard.lease(lease_id).hold_end
        assert end == yard.start + (3 if winners(got) == ["extended"] else 2) * HOUR
        yard.next_round()


@pytest.mark.parametrize("rounds", ROUNDS)
def test_an_offer_is_accepted_or_expires_and_never_both_59(yard: Yard, rounds: int) -> None:
    ann = yard.people[0]
    for _ in range(rounds):
        now = utc_now()
        with yard.database.write() as session:
            wait = waitlist.join(
                session,
                ann.id,
                node_class="cpu2",
                node_id=None,
                first_start=yard.start,
                last_start=yard.start,
                hours=2,
                now=now,
            )
            free = waitlist.find(session, wait, now=now)
            assert free is not None
            made = waitlist.offer(session, wait, free, now=now)
            assert made is not None

        def accept(wait_id: str = wait.id, now: datetime = now) -> str:
            with yard.database.write() as session:
                lock_user(session, ann.id)
                found = waitlist.open_offer(session, wait_id)
                if found is None:
                    raise Conflict("none")
                lease, _ = waitlist.accept(session, found, actor=ann.id, now=now)
                assert lease is not None
            return "accepted"

        def expire(offer_id: str = made.id) -> str:
            with yard.database.write() as session:
                found = session.scalars(
                    select(Offer).where(Offer.id == offer_id).with_for_update()
                ).one()
                due = found.expires_at
                if not waitlist.let_pass(session, found, OfferState.EXPIRED, now=due):
                    raise Conflict("over")
            return "expired"

        got = Counter(winners(yard.race(accept, expire)))
        assert got.total() == 1, got
        with yard.database.read() as session:
            offer = session.get_one(Offer, made.id)
            state = session.get_one(Wait, wait.id).state
        if "accepted" in got:
            assert (offer.state, state) == (OfferState.ACCEPTED, WaitState.SERVED)
            assert offer.lease_id is not None
        else:
            assert offer.state is OfferState.EXPIRED
            assert offer.lease_id is None
        yard.next_round()


@pytest.mark.parametrize("rounds", ROUNDS)
def test_of_two_who_take_nodes_in_opposite_order_one_gets_all_37(yard: Yard, rounds: int) -> None:
    ann, bob, cy = yard.people[:3]
    four = yard.nodes[:4]

    def walk_in() -> str:
        """What the scheduler does for a job on four nodes, which sorts them as it likes."""
        with yard.database.write() as session:
            nodes = {node.name: node for node in session.scalars(select(Node))}
            taken = leases.take_together(
                session,
                [nodes[name] for name in (four[2], four[0], four[3], four[1])],
                [leases.PLAIN] * 4,
                user_id=cy.id,
                kind=LeaseKind.BOOKED,
                start=yard.start,
                end=yard.start + HOUR,
                grace_s=300,
                now=utc_now(),
                actor="scheduler",
                message="For a job.",
            )
            return taken[0].id

    for _ in range(rounds):
        got = yard.race(
            lambda: yard.book(ann, *four), lambda: yard.book(bob, *reversed(four)), walk_in
        )
        assert len(winners(got)) == 1
        with yard.database.read() as session:
            held = session.scalars(
                select(Lease).where(Lease.hold_start == yard.start, Lease.counts)
            ).all()
        assert len(held) == len({lease.node_id for lease in held}) == 4
        assert len({lease.user_id for lease in held}) == 1
        yard.next_round()


@pytest.mark.parametrize("rounds", ROUNDS)
def test_nobody_books_a_node_that_has_gone_down_53(yard: Yard, rounds: int) -> None:
    node_id = yard.node_id("n-00")
    for _ in range(rounds):
        turns = iter(range(THREADS))

        def book(turns: Iterator[int] = turns) -> str:
            turn = next(turns)
            return yard.book(yard.people[turn], "n-00", more=turn, hours=1)

        def go_down() -> None:
            with yard.database.write() as session:
                leases.lock_nodes(session, [node_id])
                advance(
                    session,
                    session.get_one(Node, node_id),
                    NodeState.QUARANTINED,
                    now=utc_now(),
                    reason_code="down",
                    message="Its disk is broken.",
                    actor="t",
                )

        got = yard.race(*[book] * 20, go_down, *[book] * 11)
        refusals = {one.code for one in got if isinstance(one, ServiceError)}
        assert refusals <= {"node_not_ready"}
        with yard.database.read() as session:
            down = session.scalar(
                select(func.max(Event.id)).where(
                    Event.subject == node_id, Event.kind == NodeState.QUARANTINED
                )
            )
            later = session.scalars(
                select(Lease.id)
                .join(Event, Event.subject == Lease.id)
                .where(Lease.node_id == node_id, Event.kind == "booked", Event.id > down)
            ).all()
            booked = session.scalar(
                select(func.count()).select_from(Lease).where(Lease.state == "booked")
            )
        assert later == []
        assert (
            booked
            == len(winners(got))
            == THREADS - 1 - len([one for one in got if isinstance(one, ServiceError)])
        )
        yard.give_all_back()
        with yard.database.write() as session:
            session.execute(
                update(Node).where(Node.id == node_id).values(state=NodeState.READY, reason="")
            )


@pytest.mark.parametrize("rounds", ROUNDS)
def test_a_freed_block_is_offered_or_booked_and_never_both_59(yard: Yard, rounds: int) -> None:
    ann, others = yard.people[0], yard.people[1:]
    node_id = yard.node_id("n-00")
    for _ in range(rounds):
        now = utc_now()
        with yard.database.write() as session:
            wait_id = waitlist.join(
                session,
                ann.id,
                node_class=None,
                node_id=node_id,
                first_start=yard.start,
                last_start=yard.start,
                hours=2,
                now=now,
            ).id
        turns = iter(others)

        def offer(wait_id: str = wait_id, now: datetime = now) -> str:
            free = waitlist.FreeBlock(node_id, yard.start, yard.start + 2 * HOUR)
            with yard.database.write() as session:
                wait = session.get_one(Wait, wait_id)
                if waitlist.offer(session, wait, free, now=now) is None:
                    raise Conflict("not in line any more")
            return "offered"

        def book(turns: Iterator[Person] = turns) -> str:
            return "booked" if yard.book(next(turns), "n-00") else ""

        won = winners(yard.race(offer, book))
        assert len(won) == 1
        with yard.database.read() as session:
            holds = session.scalars(
                select(Occupancy).where(Occupancy.live, Occupancy.hold_start == yard.start)
            ).all()
            state = session.get_one(Wait, wait_id).state
            open_ones = session.scalar(
                select(func.count()).select_from(Offer).where(Offer.wait_id == wait_id)
            )
        (hold,) = holds
        if won == ["offered"]:
            assert (hold.kind, state, open_ones) == (OccupancyKind.OFFER, WaitState.OFFERED, 1)
        else:
            assert (hold.kind, state, open_ones) == (OccupancyKind.LEASE, WaitState.WAITING, 0)
        yard.next_round()
