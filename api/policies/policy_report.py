"""Future leases that new rules would have refused, and their fate."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from api.policies.schemas import AffectedLease
from core.leases import leases
from core.leases.situation import leases_of_all, member_of, ref_of
from core.notices.notices import NoticeKind, notify
from core.policy.document import Policy, policy_for
from core.policy.evaluate import evaluate
from core.policy.verdict import BookingRequest, LeaseFact, Member, NodeRef, Situation
from core.policy.words import lease_text
from core.states import LeaseState, Sharing
from core.tables.leases import Lease
from core.tables.nodes import Node
from core.tables.people import User

SHOWN = 100
EVER = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class OffendingLease:
    """A future lease, and the rules that it breaks."""

    lease: Lease
    owner: str
    node: NodeRef
    codes: tuple[str, ...]
    message: str

    def view(self) -> AffectedLease:
        """Return the view for the API."""
        return AffectedLease(
            id=self.lease.id,
            user=self.owner,
            node=self.node.name,
            hold_start=self.lease.hold_start,
            hold_end=self.lease.hold_end,
            codes=list(self.codes),
            message=self.message,
        )


def booked_ahead(session: Session, now: datetime) -> list[tuple[Lease, str, NodeRef]]:
    """Return every lease that has not begun, with its owner's name and its node, in order of
    booking."""
    rows = session.execute(
        select(Lease, User.name, Node)
        .join(User, User.id == Lease.user_id)
        .join(Node, Node.id == Lease.node_id)
        .where(Lease.state == LeaseState.BOOKED, Lease.hold_start > now)
        .order_by(Lease.created_at, Lease.id)
    )
    return [(lease, owner, ref_of(node)) for lease, owner, node in rows]


def refused_under(
    session: Session, policy: Policy, others: Sequence[Policy], *, now: datetime
) -> list[OffendingLease]:
    """Return future leases that `policy` would have refused when they were booked.

    Each is judged together with what its owner had booked before it: if there are too many, the
    last ones are named.
    """
    by_user: dict[str, list[LeaseFact]] = defaultdict(list)
    by_lab: dict[str | None, list[LeaseFact]] = defaultdict(list)
    for fact in leases_of_all(session, since=EVER):
        by_user[fact.user_id].append(fact)
        by_lab[fact.lab_id].append(fact)
    members: dict[str, Member] = {}
    found = []
    for lease, owner, node in booked_ahead(session, now):
        if lease.user_id not in members:
            members[lease.user_id] = member_of(session, lease.user_id)
        member = members[lease.user_id]
        if policy_for(member, node, (policy, *others)) is not policy:
            continue
        situation = Situation(
            now=lease.created_at,
            own=_before(lease, by_user[lease.user_id]),
            lab=_before(lease, by_lab[member.lab_id]),
        )
        shared = replace(node, sharing=Sharing.FULL)  # as it was when the lease was granted
        request = BookingRequest(
            member, shared, lease.hold_start, lease.hold_end, num_slots=lease.num_slots
        )
        verdict = evaluate(request, situation, policy, offers=0)
        if not verdict.ok:
            codes = tuple(reason.code for reason in verdict.reasons)
            message = " ".join(reason.message for reason in verdict.reasons)
            found.append(OffendingLease(lease, owner, node, codes, message))
    return found


def outside_windows(
    session: Session, before: Policy, after: Policy, *, now: datetime
) -> list[OffendingLease]:
    """Return future leases that lie in a window of `before` and in none of `after`."""
    found = []
    for lease, owner, node in booked_ahead(session, now):
        start, end, num_slots = lease.hold_start, lease.hold_end, lease.num_slots
        if not before.judges(node):
            continue
        if not before.is_usable(node, start, end, num_slots=num_slots):
            continue
        if not after.is_usable(node, start, end, num_slots=num_slots):
            message = f"It would lie outside the windows of {node.name}."
            found.append(OffendingLease(lease, owner, node, ("outside_window",), message))
    return found


def cancel_all(
    session: Session, affected: Sequence[OffendingLease], *, why: str, actor: str, now: datetime
) -> int:
    """Cancel and refund those leases that are still booked, and tell their owners. Returns the
    number."""
    cancelled = 0
    for one in affected:
        message = f"Cancelled and refunded: {why}"
        if leases.cancel(session, one.lease, now=now, message=message, actor=actor):
            cancelled += 1
            tell(session, one, message, NoticeKind.LEASE_CANCELLED, now=now)
    return cancelled


def tell(
    session: Session, one: OffendingLease, message: str, kind: NoticeKind, *, now: datetime
) -> None:
    """Notify the owner of a lease."""
    facts: dict[str, object] = {
        "message": f"Your {lease_text(one.lease.num_slots)} on {one.node.name}: {message}",
        "node": one.node.name,
        "hold_start": one.lease.hold_start.isoformat(),
        "hold_end": one.lease.hold_end.isoformat(),
    }
    notify(session, one.lease.user_id, kind, one.lease.id, facts, now=now)


def _before(lease: Lease, facts: Sequence[LeaseFact]) -> tuple[LeaseFact, ...]:
    mark = (lease.created_at, lease.id)
    return tuple(fact for fact in facts if (fact.created_at, fact.id) < mark)
