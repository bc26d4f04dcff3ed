"""What a preview says of the room on a node is what the database says; and what is booked begins.

The database refuses exactly what `evaluate()` calls `node_taken`, also beside rows that state a
fault, slots out of service and hours that are over. A booking that was accepted can begin at its
start, if all others end clean: its slots are found one start after the other.
"""

from datetime import datetime, timedelta
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Executable, insert, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from core.base.reasons import ReasonCode
from core.database.database import Database
from core.leases import node_slots
from core.leases.node_slots import LinkedSlot, choose
from core.leases.situation import Judge
from core.policy.document import load
from core.policy.evaluate import first_refusal
from core.policy.verdict import (
    BookingRequest,
    LeaseFact,
    Member,
    NodeRef,
    RequestKind,
    Situation,
    Span,
)
from core.states import LeaseState, Sharing
from core.tables.kinds import OccupancyKind
from core.tables.leases import Lease, Occupancy
from core.tables.nodes import Node
from tests.core.people import NOW, add_node
from tests.core.yard import HOUR, SLOTS, Yard

SIZES = (None, 1, 1, 2, 3, 4)
KINDS = (OccupancyKind.MAINTENANCE, OccupancyKind.MAINTENANCE, OccupancyKind.DOWN)


@pytest.mark.race
@pytest.mark.parametrize("rounds", [15, pytest.param(1500, marks=pytest.mark.slow)])
def test_the_database_refuses_exactly_what_the_verdict_calls_taken(
    database: Database, rounds: int
) -> None:
    yard, random = Yard(database), Random(rounds)
    answers: dict[tuple[bool, bool], int] = {}
    for number in range(rounds):
        with database.write() as session:
            node = add_node(session, f"n-{number}", slots=SLOTS, sharing=Sharing.FULL)
            own = _own_lease(session, yard, node, random) if random.random() < 0.6 else None
            for _ in range(random.randrange(5)):
                _hold(session, node, random)
            for slot in random.sample(range(SLOTS), random.choice((0, 0, 1, 2))):
                node_slots.quarantine(session, node, slot, reason="Sick.", by=yard.user_id)
        with database.write() as session:
            judge = Judge(session, yard.user_id, now=NOW)
            for _ in range(8):
                extends = own is not None and random.random() < 0.5
                if own is not None and extends:
                    said, refused = _extend(session, judge, own, random)
                else:
                    said, refused = _book(session, judge, node, random)
                assert said == refused, f"round {number}: the verdict and the database disagree"
                answers[extends, refused] = answers.get((extends, refused), 0) + 1
    assert len(answers) == 4, "both kinds of request, granted and refused"
    assert min(answers.values()) >= rounds // 15, answers


def _own_lease(session: Session, yard: Yard, node: Node, random: Random) -> str:
    """A lease that the person has, perhaps since some hours."""
    start = NOW + random.randint(-3, 4) * HOUR
    hours = random.randint(1, 4) if start >= NOW else random.randint(4, 6)
    lease = yard.take_in(session, random.choice(SIZES), start, hours, node_id=node.id)
    row = update(Occupancy).where(Occupancy.lease_id == lease.id)
    session.execute(row.values(hold_start=start))
    return lease.id


def _hold(session: Session, node: Node, random: Random) -> None:
    """Hours that somebody else has, or had, if there is room for them; or the fact of a fault."""
    row = {
        "node_id": node.id,
        "kind": random.choice(KINDS),
        "live": random.random() < 0.9,
        "hold_start": (start := NOW + random.randint(-4, 6) * HOUR),
        "hold_end": start + random.randint(1, 5) * HOUR,
        "num_slots": random.choice(SIZES),
    }
    statement = insert(Occupancy).values(**row)
    if not _is_refused(session, statement):
        session.execute(statement)


def _book(session: Session, judge: Judge, node: Node, random: Random) -> tuple[bool, bool]:
    """Whether the verdict and whether the database refuse a block."""
    start, size = NOW + random.randint(0, 7) * HOUR, random.choice(SIZES)
    if random.random() < 0.2:
        start -= timedelta(minutes=30)  # the hour that runs: what is over of it is nobody's
    end = start + random.randint(1, 5) * HOUR
    row = {"node_id": node.id, "kind": OccupancyKind.MAINTENANCE, "live": True, "num_slots": size}
    hold = insert(Occupancy).values(**row, hold_start=max(start, NOW), hold_end=end)
    verdict = judge.verdict(node, start, end, num_slots=size)
    said = ReasonCode.NODE_TAKEN in [reason.code for reason in verdict.reasons]
    return said, _is_refused(session, hold)


def _extend(session: Session, judge: Judge, lease_id: str, random: Random) -> tuple[bool, bool]:
    """The same for an extension."""
    lease = session.get_one(Lease, lease_id)
    end = lease.hold_end + random.randint(1, 4) * HOUR
    verdict = judge.verdict(
        session.get_one(Node, lease.node_id),
        lease.hold_start,
        end,
        kind=RequestKind.EXTENSION,
        num_slots=lease.num_slots,
        replaces=[lease.id],
    )
    said = ReasonCode.NODE_TAKEN in [reason.code for reason in verdict.reasons]
    longer = update(Occupancy).where(Occupancy.lease_id == lease_id).values(hold_end=end)
    return said, _is_refused(session, longer)


def _is_refused(session: Session, statement: Executable) -> bool:
    """Whether the database refuses a write, which is taken back."""
    try:
        with session.begin_nested() as tried:
            session.execute(statement)
            tried.rollback()
    except IntegrityError as error:
        if "one_holder" not in str(error.orig):
            raise
        return True
    return False


# ---------------------------------------------------------------------------------------- replay


PARTS = load(
    """
policy: {id: parts, version: 1, zone: UTC}
pools: {parts: {nodes: [north-01], gpus: [1, 2, 3, 4, 8], hours: [1, 2, 3, 4, 5]}}
extend: {allowed: true}
grid: {max_block_hours: 12, horizon_days: 30}
"""
)
NODE = NodeRef("node_1", "north-01", "gpu8", slots=8, sharing=Sharing.FULL)
MEMBER = Member("user_ann")
WISHES = st.lists(
    st.tuples(st.integers(1, 12), st.integers(1, 5), st.sampled_from([1, 1, 2, 3, 4, 8])),
    max_size=25,
)
"""Start in hours from now, length in hours, slots."""


def at(hour: int) -> datetime:
    return NOW + hour * HOUR


def fact_of(span: Span) -> LeaseFact:
    assert span.lease_id is not None
    return LeaseFact(
        span.lease_id,
        MEMBER.id,
        None,
        NODE,
        span.start,
        span.end,
        "booked",
        LeaseState.BOOKED,
        True,
        NOW,
        num_slots=span.num_slots,
    )


def accepted(
    wishes: list[tuple[int, int, int]], extensions: list[tuple[int, int]], *, unfit: int
) -> list[Span]:
    """The leases that `evaluate()` grants, one after the other, each with what is granted of its
    extensions."""
    holds: list[Span] = []

    def is_granted(request: BookingRequest) -> bool:
        own = tuple(fact_of(span) for span in holds)
        situation = Situation(now=NOW, own=own, holds=tuple(holds), out_of_service=unfit)
        return first_refusal(request, situation, PARTS) is None

    for number, (start, hours, size) in enumerate(wishes):
        wanted = BookingRequest(MEMBER, NODE, at(start), at(start + hours), num_slots=size)
        if is_granted(wanted):
            holds.append(Span(at(start), at(start + hours), f"lease_{number}", size))
    for pick, hours in extensions if holds else ():
        lease = holds[pick % len(holds)]
        longer = Span(lease.start, lease.end + hours * HOUR, lease.lease_id, lease.num_slots)
        wanted = BookingRequest(
            MEMBER,
            NODE,
            lease.start,
            longer.end,
            RequestKind.EXTENSION,
            frozenset([lease.lease_id or ""]),
            lease.num_slots,
        )
        if is_granted(wanted):
            holds[pick % len(holds)] = longer
    return holds


@given(
    WISHES,
    st.lists(st.tuples(st.integers(0, 24), st.integers(1, 3)), max_size=6),
    st.sampled_from([0, 0, 1, 3]),
    st.sampled_from([None, 2, 4]),
    st.randoms(use_true_random=False),
)
def test_what_is_booked_has_its_slots_at_its_start_if_all_others_end_clean(
    wishes: list[tuple[int, int, int]],
    extensions: list[tuple[int, int]],
    unfit: int,
    linked: int | None,
    random: Random,
) -> None:
    held = accepted(wishes, extensions, unfit=unfit)
    free = {LinkedSlot(slot, slot // linked if linked else None) for slot in range(8 - unfit)}
    running: list[tuple[datetime, set[LinkedSlot]]] = []
    random.shuffle(held)  # those that begin at one moment begin in any order
    for lease in sorted(held, key=lambda one: one.start):
        over = [slots for end, slots in running if end <= lease.start]
        running = [(end, slots) for end, slots in running if end > lease.start]
        free = free.union(*over)
        taken = [slot for _, slots in running for slot in slots]
        chosen = set(choose(free, taken, lease.num_slots or 8))
        slots = {one for one in free if one.slot in chosen}
        assert len(chosen) == len(slots) == lease.num_slots
        free = free - slots
        running.append((lease.end, slots))
