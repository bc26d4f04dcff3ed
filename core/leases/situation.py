"""Facts about one person and the nodes that the rules need, read for evaluate().

The API asks for previews, bookings and extensions, the scheduler for walk-ins and offers: all
through a Judge, so that all get the same answer. A caller that writes afterwards must hold the
user's lock, and those of the labs where a policy counts their hours (READ COMMITTED: a read under a
lock is the newest). The queries are built once, at import: building one costs more than sending it,
and when an hour is contested each request sends them all.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from datetime import datetime, time, timedelta
from itertools import groupby
from typing import Any

from pydantic import TypeAdapter
from sqlalchemy import Row, Select, and_, bindparam, func, literal, null, or_, select
from sqlalchemy.orm import Session

from core.base.reasons import ReasonCode
from core.leases.active_policies import active_policies
from core.leases.appointments import NoShow
from core.leases.leases import Terms, no_shows
from core.policy.document import DEFAULT, Policy, policy_for
from core.policy.evaluate import evaluate, first_refusal
from core.policy.local_time import edge
from core.policy.sections import QuotaScope
from core.policy.verdict import (
    BookingRequest,
    Grant,
    LeaseFact,
    Member,
    NodeRef,
    Reason,
    RequestKind,
    Situation,
    Span,
    Verdict,
)
from core.states import LIVE_LEASE, LeaseState, NodeState
from core.tables.kinds import OfferState, Role, SlotState
from core.tables.leases import Lease, Occupancy, Offer
from core.tables.nodes import Node, NodeSlot
from core.tables.people import Grant as GrantRow
from core.tables.people import Lab, Membership, User

VERDICT = TypeAdapter(Verdict)
BOOKABLE = (NodeState.READY, NodeState.PENDING)
LOOK_BACK = timedelta(days=32)  # of counted leases, where no window limits them
BESIDE = timedelta(days=8)  # holds this far before and after a block are read, for the gap rule

HOLDS = (
    select(Occupancy.node_id, Occupancy.hold_start, Occupancy.hold_end, Occupancy.lease_id)
    .add_columns(Occupancy.num_slots)
    .where(
        Occupancy.node_id.in_(bindparam("node_ids", expanding=True)),
        Occupancy.live,
        Occupancy.hold_start < bindparam("end"),
        Occupancy.hold_end > bindparam("start"),
    )
    .order_by(Occupancy.hold_start)
)
OUT_OF_SERVICE = (
    select(NodeSlot.node_id, func.count())
    .where(
        NodeSlot.node_id.in_(bindparam("node_ids", expanding=True)),
        NodeSlot.state == SlotState.QUARANTINED,
    )
    .group_by(NodeSlot.node_id)
)
USERS = (
    select(User.id)
    .where(User.id.in_(bindparam("user_ids", expanding=True)))
    .order_by(User.id)
    .with_for_update(key_share=True)
)
MEMBERS = (  # a row for each pair of a lab and an exception: people have few of both
    select(User.id, User.role, User.attributes)
    .add_columns(Lab.id.label("lab_id"), Lab.name.label("lab_name"), Lab.groups)
    .add_columns(GrantRow.id.label("grant_id"), GrantRow.rule, GrantRow.extra)
    .add_columns(GrantRow.starts_at, GrantRow.ends_at, GrantRow.why)
    .outerjoin(Membership, Membership.user_id == User.id)
    .outerjoin(Lab, Lab.id == Membership.lab_id)
    .outerjoin(GrantRow, and_(GrantRow.user_id == User.id, GrantRow.revoked_at.is_(None)))
    .order_by(User.id, GrantRow.id)
)
MEMBER = MEMBERS.where(User.id == bindparam("user_id"))
BOOKERS = MEMBERS.where(User.disabled.is_(False), User.role == Role.USER)
LEASES = (
    select(Lease.id, Lease.user_id, Lease.lab_id, Lease.kind, Lease.state, Lease.counts)
    .add_columns(Lease.hold_start, func.coalesce(Lease.charged_end, Lease.hold_end).label("end"))
    .add_columns(Lease.charged_s, Lease.created_at, Lease.num_slots)
    .add_columns(Node.id.label("node_id"), Node.name, Node.class_name, Node.slots)
    .join(Node, Node.id == func.coalesce(Lease.booked_node_id, Lease.node_id))
    .where(
        Lease.hold_end > bindparam("since"),
        or_(Lease.counts, Lease.state.in_(LIVE_LEASE)),
    )
    .order_by(Lease.hold_start, Lease.id)
)
LEASES_OF_USER = LEASES.where(Lease.user_id == bindparam("user_id"))
LEASES_OF_LABS = LEASES.where(Lease.lab_id.in_(bindparam("lab_ids", expanding=True)))
CANCELS = (
    select(func.count())
    .select_from(Lease)
    .where(
        Lease.user_id == bindparam("user_id"),
        Lease.cancelled_at >= bindparam("since"),
        Lease.settled_as.in_((ReasonCode.CANCELLED, ReasonCode.LATE_CANCEL)),
    )
)
LAB = (  # the lab that a person's leases are counted for
    select(Membership.user_id, func.min(Membership.lab_id).label("lab_id"))
    .group_by(Membership.user_id)
    .subquery()
)
OFFERED = (
    select(Offer.id, Offer.user_id, LAB.c.lab_id, literal("booked").label("kind"))
    .add_columns(literal(LeaseState.BOOKED).label("state"), literal(True).label("counts"))
    .add_columns(Offer.hold_start, Offer.hold_end.label("end"))
    .add_columns(null().label("charged_s"), Offer.created_at, Offer.num_slots)
    .add_columns(Node.id.label("node_id"), Node.name, Node.class_name, Node.slots)
    .join(Node, Node.id == Offer.node_id)
    .outerjoin(LAB, LAB.c.user_id == Offer.user_id)
    .where(Offer.state == OfferState.OPEN)
    .order_by(Offer.hold_start, Offer.id)
)
OFFERED_TO_USER = OFFERED.where(Offer.user_id == bindparam("user_id"))
OFFERED_TO_LABS = OFFERED.where(LAB.c.lab_id.in_(bindparam("lab_ids", expanding=True)))


class Judge:
    """Judge of one person at one moment, through evaluate(). Reads each fact once."""

    def __init__(
        self, session: Session, user_id: str, *, now: datetime, lock: bool = False
    ) -> None:
        """Read the person's policies and leases. With `lock`, no policy changes and nobody else
        takes hours of this person's labs until the transaction ends."""
        self.now = now
        self.member = member_of(session, user_id)
        self._session = session
        self._policies = active_policies(session, lock=lock)
        policies = (*self._policies, DEFAULT)
        looks_at_labs = any(counts_labs(policy) for policy in policies)
        if lock and looks_at_labs:
            lock_labs(session, self.member)
        self._holds: dict[str, tuple[Span, ...]] = {}
        self._out_of_service: dict[str, int] = {}
        self._situations: dict[str, Situation] = {}
        self._judging: dict[NodeRef, Policy] = {}
        since = min(counted_since(policy, now) for policy in policies)
        self.own = held_by_user(session, user_id, since=since)
        self._lab = held_by_labs(session, self.member.lab_ids, since=since) if looks_at_labs else ()
        self._cancels: dict[str, int] = {}
        self._missed: dict[int, tuple[datetime, ...]] = {}

    def policy_for(self, node: NodeRef) -> Policy:
        """Return the policy that judges this person on that node."""
        known = self._judging.get(node)
        if known is None:
            known = self._judging[node] = policy_for(self.member, node, self._policies)
        return known

    def policy_for_node(self, node: Node) -> Policy:
        """Return the policy that judges this person on the node of a row."""
        return self.policy_for(ref_of(node))

    def look_at(self, nodes: Sequence[Node], start: datetime, end: datetime) -> None:
        """Read the holds of these nodes around [start, end), and their slots out of service."""
        found: dict[str, list[Span]] = defaultdict(list)
        around = {"start": start - BESIDE, "end": end + BESIDE}
        node_ids = [node.id for node in nodes]
        rows = self._session.execute(HOLDS, {"node_ids": node_ids, **around})
        for node_id, *span in rows:
            found[node_id].append(Span(*span))
        self._holds |= {node.id: tuple(found[node.id]) for node in nodes}
        self._out_of_service |= slots_out_of_service(self._session, nodes)
        self._situations.clear()

    def holds(self, node_id: str) -> tuple[Span, ...]:
        """Return the holds of a node that was looked at."""
        return self._holds[node_id]

    def slots_for(self, node: Node, num_slots: int | None) -> int:
        """Return the slots of a node that was looked at, of which a lease of this size may have
        some: none that is out of service, unless the node is leased whole."""
        return node.slots if num_slots is None else node.slots - self._out_of_service[node.id]

    def verdict(
        self,
        node: Node,
        start: datetime,
        end: datetime,
        *,
        kind: RequestKind = RequestKind.BOOKING,
        num_slots: int | None = None,
        replaces: Iterable[str] = (),
        also: Sequence[LeaseFact] = (),
        offers: int = 0,
    ) -> Verdict:
        """Return the policy's verdict on [start, end) on `num_slots` of `node`, None being all.

        `replaces` are ids of leases that stop counting if it is granted, `also` are leases that
        would be granted with it. If the block is refused, up to `offers` acceptable starts are
        searched.
        """
        if node.id not in self._holds:
            self.look_at([node], start, end)
        ref = ref_of(node)
        request = BookingRequest(self.member, ref, start, end, kind, frozenset(replaces), num_slots)
        situation = self.situation(node)
        if also:
            own, lab = (*situation.own, *also), (*situation.lab, *also)
            situation = replace(situation, own=own, lab=lab)
        return evaluate(request, situation, self.policy_for(ref), offers=offers)

    def first_refusal(
        self, node: Node, start: datetime, end: datetime, *, num_slots: int | None = None
    ) -> Reason | None:
        """Return the first reason of `verdict` against booking [start, end) on a node that was
        looked at; None if it is ok."""
        ref = ref_of(node)
        request = BookingRequest(self.member, ref, start, end, num_slots=num_slots)
        return first_refusal(request, self.situation(node), self.policy_for(ref))

    def situation(self, node: Node) -> Situation:
        """Return the facts for the policy about this person and a node that was looked at."""
        known = self._situations.get(node.id)
        if known is None:
            policy = self.policy_for_node(node)
            known = self._situations[node.id] = Situation(
                now=self.now,
                own=self.own,
                lab=self._lab,
                holds=self._holds[node.id],
                out_of_service=self._out_of_service[node.id],
                node_available=node.state in BOOKABLE,
                cancels_today=self._cancels_today(policy),
                no_shows=self._no_shows(policy),
            )
        return known

    def _cancels_today(self, policy: Policy) -> int:
        if policy.cancel.churn is None:
            return 0
        if policy.id not in self._cancels:
            midnight = datetime.combine(self.now.astimezone(policy.zone).date(), time())
            self._cancels[policy.id] = cancels_since(
                self._session, self.member.id, edge(midnight, policy.zone)
            )
        return self._cancels[policy.id]

    def _no_shows(self, policy: Policy) -> tuple[datetime, ...]:
        rule = policy.no_show
        if rule.penalty_days is None:
            return ()
        if rule.within_days not in self._missed:
            since = self.now - timedelta(days=rule.within_days)
            self._missed[rule.within_days] = no_shows(self._session, self.member.id, since=since)
        return self._missed[rule.within_days]

    def terms(self, node: Node, verdict: Verdict) -> Terms:
        """Return the terms that a lease on `node` is granted under."""
        policy = self.policy_for(ref_of(node))
        rules = policy.no_show
        no_show = None
        if rules.reclaim_after_min is not None:
            warn_min = max(0, rules.reclaim_after_min - rules.warn_before_reclaim_min)
            no_show = NoShow(warn_s=60 * warn_min, reclaim_s=60 * rules.reclaim_after_min)
        return Terms(
            timetable=policy.timetable,
            no_show=no_show,
            lab_id=lab_of(self.member),
            policy_id=verdict.policy_id,
            policy_version=verdict.policy_version,
            verdict=VERDICT.dump_python(verdict, mode="json"),
        )

    def as_fact(
        self,
        node: Node,
        start: datetime,
        end: datetime,
        *,
        kind: str = "booked",
        num_slots: int | None = None,
    ) -> LeaseFact:
        """Return a hypothetical lease, for `also`."""
        return LeaseFact(
            id=f"blocked on {node.name}",
            user_id=self.member.id,
            lab_id=min(self.member.lab_ids, default=None),
            node=ref_of(node),
            start=start,
            end=end,
            kind=kind,
            state=LeaseState.BOOKED if kind == "booked" else LeaseState.ACTIVE,
            counts=True,
            created_at=self.now,
            num_slots=num_slots,
        )


def slots_out_of_service(session: Session, nodes: Sequence[Node]) -> dict[str, int]:
    """Map node id -> number of its slots that are out of service."""
    counts = session.execute(OUT_OF_SERVICE, {"node_ids": [node.id for node in nodes]})
    out = {node_id: num_slots for node_id, num_slots in counts}
    return {node.id: out.get(node.id, 0) for node in nodes}


def rules_for(session: Session, user_id: str, node: Node) -> Policy:
    """Return the policy that judges a person on a node."""
    return policy_for(member_of(session, user_id), ref_of(node), active_policies(session))


def member_of(session: Session, user_id: str) -> Member:
    """Return a person as policies see them."""
    return _member(session.execute(MEMBER, {"user_id": user_id}).all())


def all_bookers(session: Session) -> list[Member]:
    """Return every user who can sign in and is not staff, by id."""
    rows = session.execute(BOOKERS)
    return [_member(list(own)) for _, own in groupby(rows, key=lambda row: row.id)]


def _member(rows: Sequence[Row[*tuple[Any, ...]]]) -> Member:
    """Build a member from all the rows of one person."""
    person = rows[0]
    in_labs = [row for row in rows if row.lab_id is not None]
    groups = {group for row in in_labs for group in (row.lab_name, *row.groups)}
    exceptions = {
        row.grant_id: Grant(row.grant_id, row.rule, row.extra, row.starts_at, row.ends_at, row.why)
        for row in rows
        if row.grant_id is not None
    }
    return Member(
        id=person.id,
        lab_ids=frozenset(row.lab_id for row in in_labs),
        groups=frozenset(groups),
        attributes={name: str(value) for name, value in person.attributes.items()},
        is_staff=person.role is not Role.USER,
        exceptions=tuple(exceptions.values()),
    )


def lab_of(member: Member) -> str | None:
    """Return the id of the lab that a new lease of this person is counted for, or None."""
    return min(member.lab_ids, default=None)


def lock_user(session: Session, user_id: str) -> None:
    """Lock a user: nobody else creates or counts for them until the transaction ends."""
    lock_users(session, [user_id])


def lock_users(session: Session, user_ids: Collection[str]) -> None:
    """Lock users, in the order of their ids so that two groups never wait for each other."""
    if session.get_bind().dialect.name == "sqlite":
        return  # its one writer is alone already
    found = session.execute(USERS, {"user_ids": sorted(user_ids)}).all()
    assert len(found) == len(user_ids)


def lock_labs(session: Session, member: Member) -> None:
    """Lock a person's labs: nobody else takes their hours until the transaction ends."""
    session.execute(
        select(Lab.id)
        .where(Lab.id.in_(member.lab_ids))
        .order_by(Lab.id)
        .with_for_update(key_share=True)
    ).all()


def counts_labs(policy: Policy) -> bool:
    """Return True if a quota of the policy counts a whole lab's leases."""
    return any(quota.scope is QuotaScope.LAB for quota in policy.quotas.values())


def counted_since(policy: Policy, now: datetime) -> datetime:
    """Return the moment since which leases may count: LOOK_BACK before now or the first window."""
    return min([*(window.start for window in policy.times), now]) - LOOK_BACK


def leases_of_user(session: Session, user_id: str, *, since: datetime) -> tuple[LeaseFact, ...]:
    """Return a person's leases that count or are live, on the nodes that they were booked on."""
    return _facts(session, LEASES_OF_USER, {"user_id": user_id, "since": since})


def leases_of_labs(
    session: Session, lab_ids: Collection[str], *, since: datetime
) -> tuple[LeaseFact, ...]:
    """Return the leases counted for these labs that count or are live."""
    return _facts(session, LEASES_OF_LABS, {"lab_ids": sorted(lab_ids), "since": since})


def held_by_user(session: Session, user_id: str, *, since: datetime) -> tuple[LeaseFact, ...]:
    """Return a person's leases and the blocks that the waitlist holds for them.

    An offered block counts like a lease, so that nobody is offered more than they may take.
    """
    offered = _facts(session, OFFERED_TO_USER, {"user_id": user_id})
    return leases_of_user(session, user_id, since=since) + offered


def held_by_labs(
    session: Session, lab_ids: Collection[str], *, since: datetime
) -> tuple[LeaseFact, ...]:
    """Return the leases of these labs and the blocks that the waitlist holds for their members."""
    offered = _facts(session, OFFERED_TO_LABS, {"lab_ids": sorted(lab_ids)})
    return leases_of_labs(session, lab_ids, since=since) + offered


def leases_of_all(session: Session, *, since: datetime) -> tuple[LeaseFact, ...]:
    """Return all users' leases that count or are live."""
    return _facts(session, LEASES, {"since": since})


def _facts(
    session: Session, query: Select[*tuple[Any, ...]], values: dict[str, object]
) -> tuple[LeaseFact, ...]:
    return tuple(
        LeaseFact(
            id=row.id,
            user_id=row.user_id,
            lab_id=row.lab_id,
            node=NodeRef(row.node_id, row.name, row.class_name, row.slots),
            start=row.hold_start,
            end=row.end,
            kind=row.kind,
            state=row.state,
            counts=row.counts,
            created_at=row.created_at,
            charged_s=row.charged_s,
            num_slots=row.num_slots,
        )
        for row in session.execute(query, values)
    )


def ref_of(node: Node) -> NodeRef:
    """Return a node as policies see it."""
    return NodeRef(node.id, node.name, node.class_name, node.slots, node.sharing)


def cancels_since(session: Session, user_id: str, since: datetime) -> int:
    """Return the number of leases that a person has cancelled since then; a swap does not count."""
    return session.scalar(CANCELS, {"user_id": user_id, "since": since}) or 0
