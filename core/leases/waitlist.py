"""The waitlist: the entries for hours that are not free, and their order when some become free.

A block that is free is held for the first in line (`offer` in `occupancy`, so that it cannot be
sold twice), and accepted once or not at all. A user who lets an offer pass goes to the end of the
line and is not offered these hours on that node again.

An offer lives for ten minutes from when its owner first hears of it, or from when it was made if
they hear nothing. It ends when the scheduler ends it, and no sooner.
"""

from collections import defaultdict, deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from sqlalchemy import CursorResult, bindparam, func, select, true, update
from sqlalchemy.orm import Session

from core.base.ids import IdKind, new_id
from core.leases import leases
from core.leases.situation import BOOKABLE, Judge, ref_of
from core.notices.notices import NoticeKind, notify
from core.policy.grid import HOUR, hour_ceiling
from core.policy.likeness import Kinds, kinds_of, refuses_all_alike
from core.policy.slots import full_times
from core.policy.verdict import Verdict
from core.policy.waiting import lasting
from core.tables.kinds import LeaseKind, OccupancyKind, OfferState, WaitState
from core.tables.leases import Lease, Occupancy, Offer, Wait
from core.tables.nodes import Node

OFFER_LASTS = timedelta(minutes=10)
MINUTE = timedelta(minutes=1)
MAX_EXPIRED = 3  # unanswered offers close the entry: each has kept a block from others
MAX_JUDGED = 3000  # blocks of one entry at a time: some 0.3 s
STARTS = 40  # so many skipped starts cost as much as judging a block
PERSON = 50  # reading one person's facts costs as much as judging so many blocks
REBOOK_WITHIN = timedelta(days=7)  # after a fault has taken a lease
IN_LINE = (Wait.priority.desc(), Wait.queued_at, Wait.id)

# Built once: the scheduler asks these every few seconds.
WAITING = select(Wait).where(Wait.state == WaitState.WAITING).order_by(*IN_LINE)
ANY_LIVE = select(Wait.id).where(Wait.state.in_((WaitState.WAITING, WaitState.OFFERED))).limit(1)
OVERDUE = (
    select(Offer.id)
    .where(Offer.state == OfferState.OPEN, Offer.expires_at <= bindparam("now"))
    .order_by(Offer.id)
)
CLOSE = (
    update(Wait)
    .where(Wait.state == WaitState.WAITING, Wait.last_start < bindparam("now"))
    .values(state=WaitState.OVER, reason="No block became free in time.")
    .execution_options(synchronize_session=False)
)


@dataclass(frozen=True)
class StartRange:
    """Range of starts of an entry, its length in hours, and its slots; None is the whole node."""

    first_start: datetime
    last_start: datetime
    hours: int
    num_slots: int | None = None


@dataclass(frozen=True)
class FreeBlock:
    """A block that fits an entry."""

    node_id: str
    start: datetime
    end: datetime


def join(
    session: Session,
    user_id: str,
    *,
    node_class: str | None,
    node_id: str | None,
    first_start: datetime,
    last_start: datetime,
    hours: int,
    now: datetime,
    num_slots: int | None = None,
    priority: bool = False,
    reason: str = "Waits for a free block.",
) -> Wait:
    """Put an entry at the end of the line; with `priority`, before all that have none."""
    wait = Wait(
        id=new_id(IdKind.WAIT),
        user_id=user_id,
        node_class=node_class,
        node_id=node_id,
        first_start=first_start,
        last_start=last_start,
        hours=hours,
        num_slots=num_slots,
        priority=priority,
        state=WaitState.WAITING,
        reason=reason,
        queued_at=now,
        created_at=now,
    )
    session.add(wait)
    session.flush()
    return wait


def join_after_fault(session: Session, lease: Lease, *, now: datetime) -> Wait:
    """Put an entry with priority in line for the owner of a lease that a fault has taken.

    It asks for as many hours as the lease had from its beginning, on a node of the same class.
    """
    node = session.get_one(Node, lease.node_id)
    start = max(lease.hold_start, lease.began_at or lease.hold_start)
    hours = max(1, -(-(lease.hold_end - start) // HOUR))
    return join(
        session,
        lease.user_id,
        node_class=node.class_name,
        node_id=None,
        first_start=now,
        last_start=now + REBOOK_WITHIN,
        hours=hours,
        now=now,
        num_slots=lease.num_slots,
        priority=True,
        reason=f"First in line: the lease was lost to a fault of {node.name}.",
    )


def in_line(session: Session) -> Sequence[Wait]:
    """Return the entries that wait, the next to be served first."""
    return session.scalars(WAITING).all()


def places(session: Session) -> dict[str, int]:
    """Return for each entry that waits the number of entries served before it, by entry id."""
    line = session.scalars(
        select(Wait.id).where(Wait.state == WaitState.WAITING).order_by(*IN_LINE)
    )
    return {wait_id: place for place, wait_id in enumerate(line)}


@dataclass
class SearchBudget:
    """Number of blocks that may still be judged; one is some 0.1 ms of work."""

    left: int

    def spend(self, blocks: int = 1) -> None:
        """Subtract blocks that were judged."""
        self.left -= blocks


@dataclass(frozen=True)
class UnfinishedSearch:
    """A search ended by its budget, with the first block that was not examined."""

    node_name: str
    start: datetime


def find(
    session: Session,
    wait: Wait,
    *,
    now: datetime,
    budget: SearchBudget | None = None,
    begin_at: UnfinishedSearch | None = None,
) -> FreeBlock | UnfinishedSearch | None:
    """Return the first block that is free, fits the entry and is allowed; None if there is none.

    If a `budget` is given and runs out, return UnfinishedSearch; pass it as `begin_at` to go on.
    """
    query = select(Node).where(Node.state.in_(BOOKABLE)).order_by(Node.name)
    if wait.node_id is not None:
        query = query.where(Node.id == wait.node_id)
    else:
        query = query.where(Node.class_name == wait.node_class)
    if begin_at is not None:
        query = query.where(Node.name >= begin_at.node_name)
    nodes = session.scalars(query).all()
    found = _search(
        session, wait, nodes, budget or SearchBudget(MAX_JUDGED), now=now, begin_at=begin_at
    )
    return found if budget is not None or not isinstance(found, UnfinishedSearch) else None


def wanted_from(
    session: Session, lease: Lease, *, budget: SearchBudget, now: datetime
) -> datetime | None:
    """Return the start of the first block that an entry in line could get if the lease were over.

    None if no such block begins before the lease's end. `now` if the budget does not suffice to
    tell.
    """
    node = session.get_one(Node, lease.node_id)
    if node.state not in BOOKABLE:
        return None
    found: list[datetime] = []
    for wait in in_line(session):
        is_for_it = wait.node_id == node.id or wait.node_class == node.class_name
        if not is_for_it or wait.first_start >= lease.hold_end:
            continue
        if budget.left <= 0:
            return now
        free = _search(
            session, wait, [node], budget, now=now, before=lease.hold_end, without=lease.id
        )
        if isinstance(free, UnfinishedSearch):
            return now
        if free is not None:
            found.append(free.start)
    return min(found, default=None)


def _search(
    session: Session,
    wait: Wait,
    nodes: Sequence[Node],
    budget: SearchBudget,
    *,
    now: datetime,
    begin_at: UnfinishedSearch | None = None,
    before: datetime | None = None,
    without: str | None = None,
) -> FreeBlock | UnfinishedSearch | None:
    """Return the first allowed block on one of the nodes, in their order.

    It starts `before` some moment, and is judged as if the lease `without` were over. None if there
    is none; UnfinishedSearch if the budget ends first.
    """
    passed = session.execute(
        select(Offer.node_id, Offer.hold_start, Offer.hold_end).where(Offer.wait_id == wait.id)
    ).all()
    judge = Judge(session, wait.user_id, now=now)
    budget.spend(PERSON)
    length = wait.hours * HOUR
    judge.look_at(nodes, wait.first_start, wait.last_start + length)
    gone = [] if without is None else [without]
    refused: dict[Kinds, set[int]] = defaultdict(set)
    for node in nodes:
        policy, ref = judge.policy_for_node(node), ref_of(node)
        kinds = kinds_of(policy, ref, length, num_slots=wait.num_slots)
        mine = [fact for fact in judge.own if fact.node.id == node.id]
        if not mine and refused[kinds].issuperset(
            map(kinds.__getitem__, _starts(judge, node, wait))
        ):
            continue
        taken = full_times(
            [one for one in judge.holds(node.id) if one.lease_id not in gone],
            of=judge.slots_for(node, wait.num_slots),
            size=ref.size(wait.num_slots),
            start=wait.first_start,
            end=wait.last_start + length,
        )
        taken += [(a, b) for node_id, a, b in passed if node_id == node.id]
        looked_at = 0
        for start in _free_starts(_starts(judge, node, wait), length, taken):
            end = start + length
            if before is not None and start >= before:
                break
            if begin_at is not None and (node.name, start) < (begin_at.node_name, begin_at.start):
                continue
            looked_at += 1
            is_like_others = not judge.member.exceptions and not (
                mine and any(fact.start <= end and fact.end >= start for fact in mine)
            )
            if is_like_others and kinds[start] in refused[kinds]:
                continue
            if budget.left <= 0:
                return UnfinishedSearch(node.name, start)
            budget.spend()
            verdict = judge.verdict(node, start, end, num_slots=wait.num_slots, replaces=gone)
            if verdict.ok:
                return FreeBlock(node.id, start, end)
            if is_like_others and refuses_all_alike(verdict):
                refused[kinds].add(kinds[start])
        budget.spend(looked_at // STARTS)
    return None


def _free_starts(
    starts: Iterator[datetime], length: timedelta, taken: list[tuple[datetime, datetime]]
) -> Iterator[datetime]:
    """Yield those of the ascending starts from which no taken hour is met for that long."""
    ahead = deque(sorted(taken))
    busy_until: datetime | None = None
    for start in starts:
        while ahead and ahead[0][0] < start + length:
            _, until = ahead.popleft()
            busy_until = until if busy_until is None else max(busy_until, until)
        if busy_until is None or busy_until <= start:
            yield start


def hopeless(judge: Judge, nodes: Sequence[Node], wait: StartRange) -> Verdict | None:
    """Return the reason why waiting can give none of these nodes for that long from any of these
    starts: the refusal with the fewest lasting reasons, without those that will pass.

    None if waiting may help, or if there is no start. Judges MAX_JUDGED blocks at most; an entry
    that is not refused by then may wait.
    """
    length = wait.hours * HOUR
    judge.look_at(nodes, wait.first_start, wait.last_start + length)
    blocks = ((node, start) for node in nodes for start in _starts(judge, node, wait))
    nearest: Verdict | None = None
    for judged, (node, start) in enumerate(blocks):
        verdict = judge.verdict(node, start, start + length, num_slots=wait.num_slots)
        stays = lasting(verdict, start)
        if judged == MAX_JUDGED or not stays:
            return None
        if nearest is None or len(stays) < len(nearest.reasons):
            nearest = replace(verdict, reasons=stays)
    return nearest


def _starts(judge: Judge, node: Node, wait: Wait | StartRange) -> Iterator[datetime]:
    """Yield the future full hours at which the entry may start on a node."""
    start = hour_ceiling(max(wait.first_start, judge.now), judge.policy_for_node(node).grid.anchor)
    while start <= wait.last_start:
        yield start
        start += HOUR


def offer(session: Session, wait: Wait, free: FreeBlock, *, now: datetime) -> Offer | None:
    """Hold a block for an entry and tell its owner; None if the entry is not in line any more.

    Raises HourTaken if somebody was faster.
    """
    leases.lock_nodes(session, [free.node_id])
    node = session.get_one(Node, free.node_id)
    if not _move(
        session,
        wait,
        WaitState.WAITING,
        WaitState.OFFERED,
        reason="Waiting for the answer to an offer.",
    ):
        return None
    made = Offer(
        id=new_id(IdKind.OFFER),
        wait_id=wait.id,
        user_id=wait.user_id,
        node_id=node.id,
        hold_start=free.start,
        hold_end=free.end,
        num_slots=wait.num_slots,
        state=OfferState.OPEN,
        expires_at=now + OFFER_LASTS,
        created_at=now,
    )
    session.add(made)
    session.flush()
    leases.hold(
        session,
        node,
        OccupancyKind.OFFER,
        free.start,
        free.end,
        offer_id=made.id,
        num_slots=wait.num_slots,
    )
    facts: dict[str, object] = {
        "message": f"{node.name} is free from {free.start:%a %d %b %H:%M} to {free.end:%H:%M} "
        f"UTC and is held for you for {OFFER_LASTS // MINUTE} minutes after you "
        f"are first notified, until {made.expires_at:%H:%M} UTC or later. Accept "
        "or decline the offer.",
        "node": node.name,
        "wait": wait.id,
        "hold_start": free.start.isoformat(),
        "hold_end": free.end.isoformat(),
        "expires_at": made.expires_at.isoformat(),
    }
    notify(session, wait.user_id, NoticeKind.BLOCK_OFFERED, made.id, facts, now=now)
    return made


def tell(session: Session, offer_ids: Collection[str], *, now: datetime) -> None:
    """Start the life of these offers now, if their owners have not heard of them before."""
    session.execute(
        update(Offer)
        .where(Offer.id.in_(offer_ids), Offer.state == OfferState.OPEN, Offer.told_at.is_(None))
        .values(told_at=now, expires_at=now + OFFER_LASTS)
        .execution_options(synchronize_session=False)
    )


def begin_anew(session: Session, *, now: datetime) -> int:
    """Restart the life of every open offer, which could not be seen or accepted; return their
    number."""
    changed = session.execute(
        update(Offer)
        .where(Offer.state == OfferState.OPEN)
        .values(told_at=None, expires_at=now + OFFER_LASTS)
        .execution_options(synchronize_session=False)
    )
    assert isinstance(changed, CursorResult)
    return changed.rowcount


def open_offer(session: Session, wait_id: str) -> Offer | None:
    """Return the open offer of an entry, under its lock, or None."""
    return session.scalars(
        select(Offer)
        .where(Offer.wait_id == wait_id, Offer.state == OfferState.OPEN)
        .with_for_update()
        .execution_options(populate_existing=True)
    ).one_or_none()


def accept(
    session: Session, made: Offer, *, actor: str, now: datetime
) -> tuple[Lease | None, Verdict]:
    """Turn an open offer into a lease, under its lock and its owner's.

    Return None and the refusal if the policy no longer allows it: then nothing may be committed.
    """
    assert made.state is OfferState.OPEN, made.state
    leases.lock_nodes(session, [made.node_id])
    _free(session, made)
    node = session.get_one(Node, made.node_id)
    judge = Judge(session, made.user_id, now=now, lock=True)
    verdict = judge.verdict(
        node, made.hold_start, made.hold_end, num_slots=made.num_slots, replaces=[made.id]
    )
    if not verdict.ok:
        return None, verdict
    lease = leases.take(
        session,
        user_id=made.user_id,
        node=node,
        kind=LeaseKind.BOOKED,
        start=made.hold_start,
        end=made.hold_end,
        grace_s=judge.policy_for_node(node).grid.grace_s,
        now=now,
        actor=actor,
        message=f"Booked on {node.name}, from the waitlist.",
        terms=judge.terms(node, verdict),
        num_slots=made.num_slots,
    )
    made.state, made.lease_id = OfferState.ACCEPTED, lease.id
    wait = session.get_one(Wait, made.wait_id)
    _move(session, wait, WaitState.OFFERED, WaitState.SERVED, reason=f"Booked on {node.name}.")
    return lease, verdict


def let_pass(session: Session, made: Offer, to: OfferState, *, now: datetime) -> bool:
    """Decline an open offer, or expire it: the entry goes to the end of the line.

    Return False if the offer was no longer open, or lives longer by now.
    """
    is_due = Offer.expires_at <= now if to is OfferState.EXPIRED else true()
    changed = session.execute(
        update(Offer)
        .where(Offer.id == made.id, Offer.state == OfferState.OPEN, is_due)
        .values(state=to)
        .execution_options(synchronize_session=False)
    )
    assert isinstance(changed, CursorResult)
    if changed.rowcount == 0:
        return False
    _free(session, made)
    wait = session.get_one(Wait, made.wait_id)
    closed = to is OfferState.EXPIRED and _expired(session, wait) >= MAX_EXPIRED
    if closed:
        reason = f"Closed, because {MAX_EXPIRED} offers were not answered."
        _move(session, wait, WaitState.OFFERED, WaitState.OVER, reason=reason)
    else:
        reason = f"Offer {to}: the entry moved to the end of the waitlist."
        _move(session, wait, WaitState.OFFERED, WaitState.WAITING, reason=reason)
    wait.queued_at, wait.priority = now, False
    if to is OfferState.EXPIRED:
        node = session.get_one(Node, made.node_id)
        facts: dict[str, object] = {
            "message": f"The offer of {node.name} from {made.hold_start:%a %d %b %H:%M} UTC was "
            f"not accepted in time. {reason}",
            "wait": wait.id,
        }
        notify(session, made.user_id, NoticeKind.OFFER_EXPIRED, made.id, facts, now=now)
    return True


def leave(session: Session, wait: Wait, *, now: datetime) -> None:
    """Withdraw an entry, with its open offer."""
    made = open_offer(session, wait.id)
    if made is not None:
        let_pass(session, made, OfferState.DECLINED, now=now)
    _move(session, wait, WaitState.WAITING, WaitState.LEFT, reason="Left the waitlist.")


def overdue_offers(session: Session, now: datetime) -> list[str]:
    """Return the ids of the open offers whose time is over."""
    return list(session.scalars(OVERDUE, {"now": now}))


def close_hopeless(session: Session, now: datetime) -> int:
    """Close the entries whose last possible start has passed; return their number."""
    changed = session.execute(CLOSE, {"now": now})
    assert isinstance(changed, CursorResult)
    return changed.rowcount


def anything_to_do(session: Session) -> bool:
    """Return True if an entry waits or has an open offer."""
    return session.scalar(ANY_LIVE) is not None


def _expired(session: Session, wait: Wait) -> int:
    query = select(func.count()).select_from(Offer)
    found = session.scalar(query.where(Offer.wait_id == wait.id, Offer.state == OfferState.EXPIRED))
    return found or 0


def _free(session: Session, made: Offer) -> None:
    session.execute(
        update(Occupancy)
        .where(Occupancy.offer_id == made.id, Occupancy.live)
        .values(live=False)
        .execution_options(synchronize_session=False)
    )


def _move(session: Session, wait: Wait, before: WaitState, to: WaitState, *, reason: str) -> bool:
    session.flush()
    changed = session.execute(
        update(Wait)
        .where(Wait.id == wait.id, Wait.state == before)
        .values(state=to, reason=reason)
        .execution_options(synchronize_session=False)
    )
    assert isinstance(changed, CursorResult)
    session.refresh(wait)
    return changed.rowcount == 1
