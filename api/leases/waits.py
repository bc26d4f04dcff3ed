"""Entries of the waitlist, and the blocks that are offered for them."""

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime

from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from api.leases.block_requests import nodes_of, num_slots_on, range_of
from api.leases.booking import refusal_of
from api.leases.lease_views import show_lease
from api.leases.schemas import Block, LeaseView, NewWait, OfferView, WaitView
from api.web.bells import Bells
from api.web.idempotency import KeyedRequest
from api.web.identity import Person
from api.web.paging import cut
from api.web.process import Process
from api.web.schemas import Page
from core.base.clock import utc_now
from core.base.errors import BadRequest, Conflict, NotFound
from core.leases import waitlist
from core.leases.situation import Judge, lock_user
from core.process.read_only import ReadOnly
from core.tables.kinds import OfferState, WaitState
from core.tables.leases import Offer, Wait
from core.tables.nodes import Node
from core.tables.people import User

MAX_ENTRIES = 10  # of one person, in line at a time


def join(
    session: Session,
    bells: Bells,
    wanted: NewWait,
    person: Person,
    *,
    sent: KeyedRequest,
) -> WaitView:
    """Insert a waitlist entry, once for each key. Raises Conflict for too many."""
    wait_id = sent.begin(session)
    if wait_id is None:
        wait_id = _join(session, person, wanted)
        sent.remember(session, wait_id)
    bells.scheduler = True
    return _view(session, session.get_one(Wait, wait_id))


def list_waits(
    process: Process,
    person: Person,
    states: Sequence[WaitState] | None,
    user: str | None,
    *,
    limit: int,
    after: str | None,
) -> Page[WaitView]:
    """Return a page of entries, newest first; the time limit of their open offers starts."""
    query = select(Wait).order_by(Wait.id.desc())
    if not (person.is_staff and user == "all"):
        query = query.where(Wait.user_id == person.id)
    if states:
        query = query.where(Wait.state.in_(states))
    if after:
        query = query.where(Wait.id < after)
    _tell(process, person, query.with_only_columns(Wait.id).limit(limit))
    with process.read() as session:
        rows = cut(session, query, limit=limit)
        data = _views(session, [wait for (wait,) in rows])
    return Page[WaitView](data=data, has_more=rows.has_more)


def show_wait(process: Process, person: Person, wait_id: str) -> WaitView:
    """Return a waitlist entry; the time limit of its open offer starts. Raises NotFound."""
    _tell(process, person, select(Wait.id).where(Wait.id == wait_id))
    with process.read() as session:
        return _view(session, _find(session, wait_id, person))


def leave(session: Session, bells: Bells, wait_id: str, person: Person) -> None:
    """Withdraw a waitlist entry. Raises NotFound."""
    wait = _locked(session, wait_id, person)
    waitlist.leave(session, wait, now=utc_now())
    bells.scheduler = True


def accept(session: Session, bells: Bells, wait_id: str, person: Person) -> LeaseView:
    """Book the block that is held for an entry. Raises NotFound, and as a booking."""
    wait = _locked(session, wait_id, person)
    if wait.state is WaitState.SERVED and (lease_id := _became(session, wait)) is not None:
        return show_lease(session, lease_id, person)
    made = _open_offer(session, wait)
    now = utc_now()
    lease, verdict = waitlist.accept(session, made, actor=person.id, now=now)
    if lease is None:
        raise refusal_of(verdict)
    bells.scheduler = True
    session.flush()
    return show_lease(session, lease.id, person)


def decline(session: Session, bells: Bells, wait_id: str, person: Person) -> WaitView:
    """Let the block that is held for an entry pass. Raises NotFound."""
    wait = _locked(session, wait_id, person)
    made = _open_offer(session, wait)
    waitlist.let_pass(session, made, OfferState.DECLINED, now=utc_now())
    bells.scheduler = True
    session.flush()
    return _view(session, wait)


def _tell(process: Process, person: Person, shown: Select[str]) -> None:
    """Start the time limit of open offers of these entries, which their owner is about to see."""
    untold = select(Offer.id).where(
        Offer.user_id == person.id,
        Offer.state == OfferState.OPEN,
        Offer.told_at.is_(None),
        Offer.wait_id.in_(shown),
    )
    with process.read() as session:
        offer_ids = session.scalars(untold).all()
    if not offer_ids:
        return
    with suppress(ReadOnly):  # they begin anew when it is over
        process.transact(lambda session, _: waitlist.tell(session, offer_ids, now=utc_now()))


def require_hope(session: Session, person: Person, wanted: NewWait, *, now: datetime) -> None:
    """Raise the errors that a booking would raise, if no waiting can change them."""
    if (wanted.node is None) == (wanted.node_class is None):
        raise BadRequest("node_class: give either a class or a node.", param="node_class")
    nodes, _, _ = nodes_of(session, Block(node=wanted.node, node_class=wanted.node_class))
    first, last = range_of(wanted, zone=person.zone, hours=wanted.hours)
    if last < now:
        raise BadRequest(
            "last_start: it must not be in the past.", param="last_start", code="in_the_past"
        )
    judge = Judge(session, person.id, now=now)
    num_slots = num_slots_on(nodes, wanted.gpus)
    starts = waitlist.StartRange(first, last, wanted.hours, num_slots)
    refused = waitlist.hopeless(judge, nodes, starts)
    if refused is not None:
        raise refusal_of(refused)


def _join(session: Session, person: Person, wanted: NewWait) -> str:
    now = utc_now()
    nodes, _, _ = nodes_of(session, Block(node=wanted.node, node_class=wanted.node_class))
    first, last = range_of(wanted, zone=person.zone, hours=wanted.hours)
    waiting = session.scalars(
        select(Wait.id).where(
            Wait.user_id == person.id, Wait.state.in_((WaitState.WAITING, WaitState.OFFERED))
        )
    ).all()
    if len(waiting) >= MAX_ENTRIES:
        raise Conflict(
            f"You have {len(waiting)} entries on the waitlist and the limit is {MAX_ENTRIES}. "
            "Leave one first.",
            code="too_many_wishes",
        )
    return waitlist.join(
        session,
        person.id,
        node_class=wanted.node_class,
        node_id=None if wanted.node is None else nodes[0].id,
        first_start=first,
        last_start=last,
        hours=wanted.hours,
        now=now,
        num_slots=num_slots_on(nodes, wanted.gpus),
    ).id


def _find(session: Session, wait_id: str, person: Person) -> Wait:
    wait = session.get(Wait, wait_id)
    if wait is None or not (wait.user_id == person.id or person.is_staff):
        raise NotFound(f"You have no waitlist entry {wait_id!r}.")
    return wait


def _locked(session: Session, wait_id: str, person: Person) -> Wait:
    wait = _find(session, wait_id, person)
    if wait.user_id != person.id:
        raise NotFound(f"You have no waitlist entry {wait_id!r}.")
    lock_user(session, wait.user_id)
    session.refresh(wait)
    return wait


def _open_offer(session: Session, wait: Wait) -> Offer:
    made = waitlist.open_offer(session, wait.id)
    if made is not None:
        return made
    last = _last_offer(session, wait)
    if last is not None and last.state is OfferState.EXPIRED:
        ended = f"The offer of {wait.id} ended at {last.expires_at:%H:%M} UTC. {wait.reason}"
        raise Conflict(ended, code="offer_expired")
    raise Conflict(f"Waitlist entry {wait.id} has no open offer.", code="no_offer")


def _became(session: Session, wait: Wait) -> str | None:
    """Return the id of the lease that the entry has become."""
    last = _last_offer(session, wait)
    return None if last is None else last.lease_id


def _last_offer(session: Session, wait: Wait) -> Offer | None:
    return session.scalars(
        select(Offer).where(Offer.wait_id == wait.id).order_by(Offer.id.desc()).limit(1)
    ).first()


def _view(session: Session, wait: Wait) -> WaitView:
    return _views(session, [wait])[0]


def _views(session: Session, waits: Sequence[Wait]) -> list[WaitView]:
    someone_waits = any(wait.state is WaitState.WAITING for wait in waits)
    places = waitlist.places(session) if someone_waits else {}
    return [_view_at(session, wait, places.get(wait.id, 0)) for wait in waits]


def _view_at(session: Session, wait: Wait, ahead: int) -> WaitView:
    last = _last_offer(session, wait)
    node = session.get(Node, wait.node_id) if wait.node_id else None
    return WaitView(
        id=wait.id,
        user=session.get_one(User, wait.user_id).name,
        node_class=wait.node_class,
        node=node.name if node else None,
        first_start=wait.first_start,
        last_start=wait.last_start,
        hours=wait.hours,
        gpus=wait.num_slots,
        priority=wait.priority,
        state=wait.state,
        reason=wait.reason,
        ahead=ahead,
        offer=_offer_view(session, last) if last else None,
        created_at=wait.created_at,
    )


def _offer_view(session: Session, made: Offer) -> OfferView:
    return OfferView(
        id=made.id,
        node=session.get_one(Node, made.node_id).name,
        hold_start=made.hold_start,
        hold_end=made.hold_end,
        state=made.state,
        lease=made.lease_id,
        expires_at=made.expires_at,
    )
