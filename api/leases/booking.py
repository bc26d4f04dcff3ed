"""Leases on behalf of people: book, preview, swap, extend, give back, restore.

Each runs in one transaction under the lock on the owner's row, so that the facts about this person
that the policy judges stay true until the commit; the nodes are locked when they are taken.
"""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from api.leases.block_requests import BlockRequest, block_request_of
from api.leases.choosing import (
    StartChoice,
    choose,
    is_taken,
    next_starts,
    taken_error,
    with_next_starts,
)
from api.leases.clock_times import moment_of
from api.leases.lease_views import find_lease, node_verdict, show_lease
from api.leases.schemas import (
    Block,
    Extension,
    LeaseChange,
    LeaseView,
    NewLease,
    VerdictView,
)
from api.web import audit
from api.web.bells import Bells
from api.web.errors import InvalidRequest
from api.web.idempotency import KeyedRequest
from api.web.identity import Person
from api.web.schemas import ProblemItem
from core.base.clock import utc_now
from core.base.errors import Conflict, Forbidden, HourTaken
from core.base.reasons import ReasonCode, stored_code
from core.jobs.stopping import stop_jobs
from core.leases import leases, settlement
from core.leases.leases import Terms
from core.leases.settlement import Settlement
from core.leases.situation import BOOKABLE, Judge, lock_user, rules_for
from core.policy.grid import HOUR, hold_end
from core.policy.verdict import RequestKind, Verdict
from core.policy.waiting import lasting
from core.policy.words import gpus_text
from core.states import LeaseState
from core.tables.kinds import LeaseKind
from core.tables.leases import Lease
from core.tables.nodes import Node

TRIES = 3  # others may be faster at the nodes that were chosen


def preview(session: Session, person: Person, block: Block, *, now: datetime) -> VerdictView:
    """Return the verdict on a block as if it were booked now. Changes nothing."""
    judge = Judge(session, person.id, now=now)
    request = block_request_of(session, block, judge, zone=person.zone)
    choice = choose(judge, request)
    shown = [*choice.chosen, *with_next_starts(judge, request, choice)]
    return VerdictView(
        ok=bool(choice.chosen),
        can_wait=_can_wait(choice, request, now),
        chosen=[one.node.name for one in choice.chosen],
        hold_start=choice.start,
        hold_end=choice.end,
        nodes=[node_verdict(one.node, choice.start, choice.end, one.verdict) for one in shown],
    )


def book(
    session: Session,
    person: Person,
    block: Block,
    *,
    now: datetime,
    replaces: Sequence[str] = (),
) -> str:
    """Take what the block asks for; return the lease's id, of several the first. Call it under the
    user's lock.

    Raises BadRequest or Forbidden with the rules it breaks, or HourTaken with the nearest starts
    that are free. `replaces` are leases whose place it takes: they are given back already.
    """
    judge = Judge(session, person.id, now=now, lock=True)
    # No other node than those it names would do: who waits for them here then sees the newest.
    request = block_request_of(session, block, judge, zone=person.zone, lock=True)
    for _ in range(TRIES):
        choice = choose(judge, request, replaces=replaces)
        if not choice.chosen:
            raise _refusal(judge, choice, request)
        try:
            taken = _take(session, person, judge, choice, num_slots=request.num_slots)
        except HourTaken:
            continue  # somebody was faster: look again
        return taken[0].together or taken[0].id
    raise HourTaken(f"{request.what} has just been taken. Try again.", param="start")


def swap(
    session: Session,
    lease: Lease,
    person: Person,
    block: Block,
    *,
    now: datetime,
) -> str:
    """Exchange a booked lease for another block, or keep it. Returns the new lease's id."""
    if lease.state is not LeaseState.BOOKED:
        raise Conflict(f"{lease.id} is {lease.state}; only a booked lease can be swapped.")
    rules = rules_for(session, lease.user_id, session.get_one(Node, lease.node_id)).cancel
    settled = settlement.of_cancel(lease.hold_start, now=now, rules=rules, by=person.name)
    if settled.counts:
        raise Conflict(f"It is too late to swap {lease.id}: {settled.message}", code="late_cancel")
    message = f"Swapped for another block by {person.name}."
    swapped = Settlement(counts=False, settled_as=ReasonCode.SWAPPED, message=message)
    with session.begin_nested():
        leases.cancel(session, lease, now=now, message=message, actor=person.id, settlement=swapped)
        new_id = book(session, person, block, now=now, replaces=[lease.id])
    leases.follow(session, lease.id, new_id)
    return new_id


def restore(session: Session, lease: Lease, person: Person, *, now: datetime) -> str:
    """Book a cancelled block again, if it is still free. Returns the new lease's id."""
    if lease.state is not LeaseState.CANCELLED:
        raise Conflict(f"{lease.id} is {lease.state}; only a cancelled lease can be restored.")
    if leases.cancelled_by(session, lease) != lease.user_id:
        raise Forbidden(
            f"{lease.id} was not cancelled by its owner: {lease.reason} Only staff can undo that.",
            code="not_cancelled_by_owner",
        )
    node = session.get_one(Node, lease.node_id)
    block = Block(node=node.name, start=lease.hold_start, end=lease.hold_end, gpus=lease.num_slots)
    message = f"Restored by {person.name}."
    leases.refund(session, lease, why=ReasonCode.RESTORED, message=message, now=now)
    lease.settled_as = ReasonCode.RESTORED
    new_id = book(session, person, block, now=now, replaces=[lease.id])
    leases.follow(session, lease.id, new_id)
    return new_id


def extend(
    session: Session,
    lease: Lease,
    person: Person,
    end: datetime,
    *,
    now: datetime,
) -> None:
    """Extend a lease to `end`, if policy and neighbours allow it."""
    judge = Judge(session, lease.user_id, now=now, lock=True)
    leases.lock_nodes(session, [lease.node_id])
    leases.lock_lease(session, lease)
    if lease.kind is LeaseKind.WALK_IN or lease.state not in leases.CHANGEABLE:
        raise Conflict(
            f"{lease.id} is a {lease.kind} lease in state {lease.state}, which cannot be extended."
        )
    if not lease.counts:
        raise Conflict(
            f"{lease.id} has been refunded, and an extension would be free of charge, too. "
            "Book the hours after it instead: adjacent leases on one node are used like one "
            "lease.",
            code="lease_refunded",
        )
    if lease.booked_node_id is not None:
        raise Conflict(
            f"{lease.id} was moved by failover and is charged as hours of the node it was "
            "booked on, which may have other rules. Book the hours after it instead: "
            "adjacent leases on one node are used like one lease.",
            code="lease_moved",
        )
    node = session.get_one(Node, lease.node_id, populate_existing=True)
    rules = judge.policy_for_node(node).grid
    end = hold_end(end, rules.grace_s, rules.anchor)
    if end <= lease.hold_end:
        raise Conflict(
            f"{lease.id} ends at {lease.hold_end.isoformat()}; an extension must end later. "
            "To give hours back, release the lease early."
        )
    verdict = judge.verdict(
        node,
        lease.hold_start,
        end,
        kind=RequestKind.EXTENSION,
        num_slots=lease.num_slots,
        replaces=[lease.id],
    )
    if not verdict.ok:
        raise refusal_of(verdict)
    message = f"Extended to {end.isoformat()} by {person.name}."
    leases.extend(session, lease, end=end, now=now, message=message, actor=person.id)
    terms = judge.terms(node, verdict)
    lease.policy_id, lease.policy_version = terms.policy_id, terms.policy_version
    lease.verdict = terms.verdict
    if lease.state is LeaseState.ACTIVE:
        bound_for = f"{lease.hold_end:%H:%M} UTC"
        lease.reason = f"{node.name} is yours; the lease was extended to {bound_for}."


def give_back(
    session: Session,
    lease: Lease,
    person: Person,
    bells: Bells,
    *,
    now: datetime,
) -> None:
    """Cancel a booked lease, or end an active one early; a lease that is over is left as it is."""
    if lease.kind is LeaseKind.WALK_IN and lease.state is LeaseState.ACTIVE:
        raise Conflict("This walk-in ends together with its job. Cancel or pause the job.")
    by = person.name
    rules = rules_for(session, lease.user_id, session.get_one(Node, lease.node_id))
    if lease.state is LeaseState.BOOKED:
        settled = settlement.of_cancel(lease.hold_start, now=now, rules=rules.cancel, by=by)
        if not lease.counts:
            settled = settlement.of_refunded(
                stored_code(lease.settled_as), what=f"Cancelled by {by}."
            )
        leases.cancel(
            session,
            lease,
            now=now,
            message=settled.message,
            actor=person.id,
            settlement=settled,
        )
    elif lease.state is LeaseState.ACTIVE:
        freed = settlement.freed_from(
            max(now, lease.hold_start), grace_s=lease.grace_s, anchor=rules.grid.anchor
        )
        settled = settlement.of_release(lease.hold_end, freed_from=freed, rules=rules.cancel, by=by)
        if not lease.counts:
            settled = settlement.of_refunded(
                stored_code(lease.settled_as), what=f"Released by {by}."
            )
        leases.release(session, lease, end=freed, settlement=settled, now=now, actor=person.id)
        message = f"Saving and stopping: its lease was released by {by}."
        stopped = stop_jobs(session, lease, now=now, message=message, actor=person.id)
        bells.nodes |= stopped.node_names
        bells.jobs |= stopped.job_ids
    bells.scheduler = True


def owned(session: Session, lease_id: str, person: Person, *, lock: bool = False) -> Lease:
    """Return a lease to change: `find_lease`, under the lock on its owner's row."""
    lease = find_lease(session, lease_id, person)
    lock_user(session, lease.user_id)
    return find_lease(session, lease_id, person, lock=lock)


def refusal_of(verdict: Verdict, *, choices: Sequence[datetime] = ()) -> Exception:
    """Return the error that names every rule a request breaks."""
    items = [
        ProblemItem(param=reason.param, code=reason.code, message=reason.message)
        for reason in verdict.reasons
    ]
    codes = [item.code for item in items]
    if "not_eligible" in codes:
        first = items[codes.index("not_eligible")]
        return Forbidden(first.message, code=first.code, param=first.param)
    if codes == ["node_taken"]:
        return HourTaken(items[0].message, param=items[0].param, choices=choices)
    return InvalidRequest(items, code=items[0].code, choices=choices)


def _refusal(judge: Judge, choice: StartChoice, request: BlockRequest) -> Exception:
    starts = next_starts(judge, request, choice)
    if is_taken(choice):
        codes = {reason.code for one in choice.refused for reason in one.verdict.reasons}
        if codes == {"node_down"}:
            states = ", ".join(f"{one.node.name} is {one.node.state}" for one in choice.refused)
            return Conflict(
                f"No node that was asked for can be booked now: {states}.", code="node_not_ready"
            )
        return taken_error(choice, request, starts)
    return refusal_of(choice.refused[0].verdict, choices=starts)


def _can_wait(choice: StartChoice, request: BlockRequest, now: datetime) -> bool:
    """Say whether the waitlist, which takes single future blocks, can provide what is refused
    now."""
    if choice.chosen or request.count > 1 or choice.start < now:
        return False
    return any(not lasting(one.verdict, choice.start) for one in choice.refused)


def _take(
    session: Session, person: Person, judge: Judge, choice: StartChoice, *, num_slots: int | None
) -> list[Lease]:
    nodes = [one.node for one in choice.chosen]
    _lock_bookable(session, nodes)
    terms: list[Terms] = [judge.terms(one.node, one.verdict) for one in choice.chosen]
    names = " and ".join(node.name for node in nodes)
    what = "" if num_slots is None else f"{gpus_text(num_slots)} "
    return leases.take_together(
        session,
        nodes,
        terms,
        user_id=person.id,
        kind=LeaseKind.BOOKED,
        start=choice.start,
        end=choice.end,
        grace_s=judge.policy_for_node(nodes[0]).grid.grace_s,
        now=judge.now,
        actor=person.id,
        message=f"Booked {what}on {names}.",
        num_slots=num_slots,
    )


def _lock_bookable(session: Session, nodes: Sequence[Node]) -> None:
    """Lock the nodes and read them again. Raises HourTaken if one was taken out of service since it
    was chosen."""
    locked = session.scalars(
        select(Node)
        .where(Node.id.in_([node.id for node in nodes]))
        .order_by(Node.id)
        .with_for_update(key_share=True)
        .execution_options(populate_existing=True)
    )
    for node in locked.all():
        if node.state not in BOOKABLE:
            raise HourTaken(f"{node.name} is {node.state} now.", param="node")


def book_once(
    session: Session,
    bells: Bells,
    wanted: NewLease,
    person: Person,
    *,
    sent: KeyedRequest,
) -> LeaseView:
    """Book a block, once for each key, and show its first lease. Raises as `book`."""
    lease_id = sent.begin(session)
    if lease_id is None:
        lease_id = book(session, person, wanted, now=utc_now())
        sent.remember(session, lease_id)
    bells.scheduler = True
    return show_lease(session, lease_id, person)


def change_lease(
    session: Session, bells: Bells, lease_id: str, change: LeaseChange, person: Person
) -> LeaseView:
    """Protect a lease, or give it a later end. Raises NotFound, and as `extend`."""
    lease = owned(session, lease_id, person)
    now = utc_now()
    if change.protected is not None and change.protected is not lease.protected:
        lease.protected = change.protected
        audit.record(
            session, person.id, "lease.protect", lease.id, now=now, protected=change.protected
        )
    if change.hold_end is not None:
        end = moment_of(change.hold_end, None, param="hold_end")
        extend(session, lease, person, end, now=now)
        _record(session, lease, person, "lease.extend")
        bells.scheduler = True
    session.flush()
    return show_lease(session, lease_id, person)


def extend_lease(
    session: Session, bells: Bells, lease_id: str, wanted: Extension, person: Person
) -> LeaseView:
    """Extend a lease. Raises NotFound, and as `extend`."""
    lease = owned(session, lease_id, person)
    if wanted.end is not None:
        end = moment_of(wanted.end, wanted.zone, param="end")
    else:
        end = lease.hold_end + (wanted.hours or 0) * HOUR
    extend(session, lease, person, end, now=utc_now())
    _record(session, lease, person, "lease.extend")
    bells.scheduler = True
    session.flush()
    return show_lease(session, lease_id, person)


def release_lease(session: Session, bells: Bells, lease_id: str, person: Person) -> LeaseView:
    """Give a lease back and show it. Raises NotFound."""
    _give_back(session, lease_id, person, bells)
    session.flush()
    return show_lease(session, lease_id, person)


def swap_lease(
    session: Session, bells: Bells, lease_id: str, wanted: Block, person: Person
) -> LeaseView:
    """Exchange a lease for another block. Raises NotFound, and as `swap`."""
    lease = owned(session, lease_id, person, lock=True)
    _require_own(lease, person)
    now = utc_now()
    new_id = swap(session, lease, person, wanted, now=now)
    bells.scheduler = True
    session.flush()
    return show_lease(session, new_id, person)


def restore_lease(session: Session, bells: Bells, lease_id: str, person: Person) -> LeaseView:
    """Book a cancelled block again. Raises NotFound, and as `restore`."""
    lease = owned(session, lease_id, person, lock=True)
    _require_own(lease, person)
    now = utc_now()
    new_id = restore(session, lease, person, now=now)
    bells.scheduler = True
    session.flush()
    return show_lease(session, new_id, person)


def delete_lease(session: Session, bells: Bells, lease_id: str, person: Person) -> None:
    """Give a lease back. Raises NotFound."""
    _give_back(session, lease_id, person, bells)


def _give_back(session: Session, lease_id: str, person: Person, bells: Bells) -> None:
    lease = owned(session, lease_id, person, lock=True)
    now = utc_now()
    give_back(session, lease, person, bells, now=now)
    _record(session, lease, person, "lease.give_back")


def _record(session: Session, lease: Lease, person: Person, action: str) -> None:
    if lease.user_id != person.id:
        audit.record(session, person.id, action, lease.id, now=utc_now(), owner=lease.user_id)


def _require_own(lease: Lease, person: Person) -> None:
    if lease.user_id != person.id:
        raise Forbidden(f"{lease.id} is not yours; only its owner can swap it for another block.")
