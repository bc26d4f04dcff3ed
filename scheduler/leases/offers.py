"""Offers of free blocks to the waitlist: made to the next in line, ended when not accepted in time.

An entry is judged when it is new, when hours that it could use have become free, when its owner may
have more than before, and once an hour because some rules depend on the time. A round judges a
limited number of blocks; entries that it does not reach come first in the next round, in the order
of the line.
"""

from collections import defaultdict
from collections.abc import Hashable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

import structlog
from sqlalchemy import bindparam, case, func, select
from sqlalchemy.orm import Session

from core.base.errors import HourTaken
from core.database.database import Database
from core.leases import waitlist
from core.leases.active_policies import active_policies
from core.leases.situation import BOOKABLE
from core.leases.waitlist import FreeBlock, SearchBudget, UnfinishedSearch
from core.policy.document import EVER, Policy
from core.policy.grid import HOUR, hour_floor
from core.states import LIVE_LEASE
from core.tables.kinds import OfferState
from core.tables.leases import Lease, Occupancy, Offer, Wait
from core.tables.nodes import Node
from core.tables.people import Grant, Membership

ROUND = 3000  # blocks judged in one round: some 0.3 s
SHARE = 600  # blocks of one entry, so that a few entries with many starts do not delay the others
Span = tuple[datetime, datetime]

HELD = select(Occupancy.node_id, Occupancy.hold_start, Occupancy.hold_end).where(
    Occupancy.live, Occupancy.hold_end > bindparam("now")
)
PLACES = select(Node.id, Node.class_name).where(Node.state.in_(BOOKABLE))
LEASES_OF = (
    select(
        Lease.user_id,
        func.sum(case((Lease.state.in_(LIVE_LEASE), 1), else_=0)),
        func.sum(case((Lease.counts, 1), else_=0)),
    )
    .where(Lease.user_id.in_(bindparam("user_ids", expanding=True)))
    .group_by(Lease.user_id)
)
OFFERS = (
    select(Offer.user_id, func.count())
    .where(Offer.state == OfferState.OPEN)
    .group_by(Offer.user_id)
)
GRANTS = select(Grant.user_id, func.count(), func.count(Grant.revoked_at)).group_by(Grant.user_id)
LABS = select(Membership.user_id, func.count(), func.min(Membership.lab_id)).group_by(
    Membership.user_id
)

log = structlog.get_logger()


class Leader(Protocol):
    """Holder of the right to write."""

    def write(self) -> AbstractContextManager[Session]:
        """Return a write transaction that only the leader can begin."""


@dataclass(frozen=True)
class BookableNode:
    """A node that takes bookings: its class, and its held spans of time that are not over."""

    class_name: str
    held: frozenset[Span]


@dataclass
class WaitlistMemory:
    """Memory of one scheduler between its rounds. A new scheduler judges every entry again."""

    places: dict[str, BookableNode] = field(default_factory=dict)
    policies: Sequence[Policy] = ()
    looked_at: dict[str, Hashable] = field(default_factory=dict)
    """Map entry id -> facts that the last judgement depended on, apart from free hours."""
    due: dict[str, UnfinishedSearch | None] = field(default_factory=dict)
    """Map entry id -> where to resume (None: at its first start), in the order to be judged."""

    def note(self, session: Session, now: datetime) -> None:
        """Add the entries that have become due since the last round to `due`."""
        waits = waitlist.in_line(session)
        places, policies = _places(session, now), active_policies(session)
        freed = {node_id: _freed(self.places.get(node_id), places[node_id]) for node_id in places}
        if policies != self.policies:
            self.looked_at.clear()
        people = _what_people_have(session, {wait.user_id for wait in waits})
        judged_by = {wait.id: (hour_floor(now), people[wait.user_id]) for wait in waits}
        self.due = {wait_id: at for wait_id, at in self.due.items() if wait_id in judged_by}
        for wait in waits:
            is_news = self.looked_at.get(wait.id) != judged_by[wait.id]
            if is_news or _can_use(wait, freed, places):
                self.due[wait.id] = None  # from its first start on; it keeps its place in `due`
        self.places, self.policies, self.looked_at = places, policies, dict(judged_by)


def serve(
    database: Database,
    leader: Leader,
    now: datetime,
    line: WaitlistMemory,
    budget: SearchBudget,
    *,
    verdicts: bool = True,
) -> int:
    """End overdue offers and make new ones, within the budget; return the number of changes.

    Pass `verdicts` as False if the platform was down or its nodes are not heard: then no offer
    expires, and the time of each open offer begins anew.
    """
    with database.read() as session:
        if not waitlist.anything_to_do(session):
            return 0
        overdue = waitlist.overdue_offers(session, now) if verdicts else []
    changes = 0
    if not verdicts:
        with leader.write() as session:
            changes += waitlist.begin_anew(session, now=now)
    for offer_id in overdue:
        with leader.write() as session:
            overdue_one = session.scalars(
                select(Offer).where(Offer.id == offer_id).with_for_update()
            ).one()
            changes += waitlist.let_pass(session, overdue_one, OfferState.EXPIRED, now=now)
    with leader.write() as session:
        changes += waitlist.close_hopeless(session, now)
    with database.read() as session:
        line.note(session, now)
    return changes + _offer(database, leader, now, line, budget)


def _offer(
    database: Database, leader: Leader, now: datetime, line: WaitlistMemory, budget: SearchBudget
) -> int:
    """Search blocks for the due entries and offer them; return the number of offers made.

    Each search starts after the block of the offer before it is held.
    """
    made = 0
    for wait_id in list(line.due):
        if budget.left <= 0:
            break
        begin_at = line.due.pop(wait_id)
        share = SearchBudget(min(SHARE, budget.left))
        before = share.left
        with database.read() as session:
            wait = session.get_one(Wait, wait_id)
            found = waitlist.find(session, wait, now=now, budget=share, begin_at=begin_at)
        budget.spend(before - share.left)
        if isinstance(found, UnfinishedSearch):
            line.due[wait_id] = found  # to the end of the line of due entries
        elif found is not None:
            made += _hold(leader, wait_id, found, now, line)
    return made


def _hold(
    leader: Leader, wait_id: str, free: FreeBlock, now: datetime, line: WaitlistMemory
) -> bool:
    try:
        with leader.write() as session:
            made = waitlist.offer(session, session.get_one(Wait, wait_id), free, now=now)
    except HourTaken as error:
        log.info("offer_overtaken", wait=wait_id, why=str(error))
        line.due[wait_id] = None
        return False
    if made is not None:
        log.info("block_offered", wait=wait_id, offer=made.id)
    return made is not None


def _places(session: Session, now: datetime) -> dict[str, BookableNode]:
    held: dict[str, set[Span]] = defaultdict(set)
    rows = session.execute(HELD, {"now": now})
    for node_id, start, end in rows:
        held[node_id].add((start, end))
    nodes = session.execute(PLACES)
    return {node_id: BookableNode(name, frozenset(held[node_id])) for node_id, name in nodes}


def _freed(before: BookableNode | None, now: BookableNode) -> Sequence[Span]:
    """Return the spans of a node that were held before and are not held unchanged now; all of time
    for a node that is new."""
    return [EVER] if before is None else sorted(before.held - now.held)


def _can_use(wait: Wait, freed: dict[str, Sequence[Span]], places: dict[str, BookableNode]) -> bool:
    first, last = wait.first_start, wait.last_start + wait.hours * HOUR
    return any(
        a < last and b > first
        for node_id, spans in freed.items()
        if node_id == wait.node_id or places[node_id].class_name == wait.node_class
        for a, b in spans
    )


def _what_people_have(session: Session, user_ids: set[str]) -> dict[str, Hashable]:
    """Map user id -> counts of all that limits how much the user may take.

    The counts change when a lease of the user ends or is refunded, when an offer closes, or when
    the user gets an exception or joins a lab.
    """
    found: dict[str, list[Hashable]] = {user_id: [] for user_id in user_ids}
    everybody = {"user_ids": sorted(user_ids)}
    for query, values in ((LEASES_OF, everybody), (OFFERS, {}), (GRANTS, {}), (LABS, {})):
        for user_id, *numbers in session.execute(query, values):
            if user_id in found:
                found[user_id].append(tuple(numbers))
    return {user_id: tuple(numbers) for user_id, numbers in found.items()}
