"""Bookings in the database: take a free node, say when the next one is free, give back."""

from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from sqlalchemy import Select, and_, func, select
from sqlalchemy.orm import Session

from api.bells import Bells
from api.errors import InvalidRequest
from api.identity import Person
from api.schemas import AvailabilityView, FreeHour, LeaseView, NewLease, ProblemItem
from core import leases
from core.attempts import ask_to_stop
from core.errors import BadRequest, Conflict, HourTaken, NotFound
from core.policy import HOUR, Policy, evaluate_booking, hour_ceiling, hour_floor, usable_end
from core.states import LIVE_ATTEMPT, LeaseState, NodeState, Outcome
from core.tables import Attempt, Job, Lease, LeaseKind, Node, Occupancy, User
from core.transitions import advance

Span = tuple[datetime, datetime]


def book(session: Session, user_id: str, wanted: NewLease, *, policy: Policy, now: datetime) -> str:
    """Take a node for the block; the lease's id. Call it under the lock on the user's row.

    Raises BadRequest with the rules it breaks, or HourTaken with the next start that is free.
    """
    _require_sane(wanted)
    open_leases = session.scalar(
        select(func.count())
        .select_from(Lease)
        .where(Lease.user_id == user_id, Lease.state.in_((LeaseState.BOOKED, LeaseState.ACTIVE)))
    )
    reasons = evaluate_booking(
        wanted.start, wanted.hours, now=now, open_leases=open_leases or 0, policy=policy
    )
    if reasons:
        items = [
            ProblemItem(param=reason.param, code=reason.code, message=reason.message)
            for reason in reasons
        ]
        raise InvalidRequest(items, code=reasons[0].code)
    start = wanted.start.astimezone(UTC)
    end = start + wanted.hours * HOUR
    nodes = _candidates(session, wanted)
    held = _held(session, [node.id for node in nodes], start, end)
    for node in nodes:
        if held[node.id]:
            continue  # `take` would refuse it too, after locking it
        try:
            lease = leases.take(
                session,
                user_id=user_id,
                node=node,
                kind=LeaseKind.BOOKED,
                start=start,
                end=end,
                grace_s=policy.grace_s,
                now=now,
                actor=user_id,
                message=f"Booked on {node.name}.",
            )
        except HourTaken:
            continue  # somebody was faster: try the next node
        return lease.id
    raise HourTaken(_taken_message(session, nodes, wanted, start, policy, now), param="start")


def next_free(
    session: Session, node_ids: Sequence[str], start: datetime, hours: int, *, end: datetime
) -> datetime | None:
    """The first full hour from `start` to `end` from which one of the nodes is free so long."""
    held = _held(session, node_ids, start, end + hours * HOUR)
    best: datetime | None = None
    for node_id in node_ids:
        at = start
        for span_start, span_end in sorted(held[node_id]):
            if span_start >= at + hours * HOUR:
                break
            at = max(at, hour_ceiling(span_end))
        if at <= end and (best is None or at < best):
            best = at
    return best


def availability(
    session: Session, node_class: str | None, start: datetime, hours: int
) -> AvailabilityView:
    """The free nodes of every hour."""
    query = select(Node.id, Node.name).where(Node.state == NodeState.READY).order_by(Node.name)
    if node_class is not None:
        query = query.where(Node.class_name == node_class)
    nodes = session.execute(query).all()
    first = hour_floor(start)
    held = _held(session, [node_id for node_id, _ in nodes], first, first + hours * HOUR)
    shown = []
    for number in range(hours):
        at = first + number * HOUR
        free = [
            name
            for node_id, name in nodes
            if not any(a < at + HOUR and b > at for a, b in held[node_id])
        ]
        shown.append(FreeHour(start=at, free=len(free), nodes=free))
    return AvailabilityView(node_class=node_class, nodes=len(nodes), hours=shown)


def give_back(
    session: Session, lease: Lease, person: Person, bells: Bells, *, now: datetime
) -> None:
    """Cancel a booked lease, or end an active one early; over ones are left as they are."""
    if lease.kind is LeaseKind.WALK_IN and lease.state is LeaseState.ACTIVE:
        raise Conflict("This walk-in ends by itself when its job does. Cancel or pause the job.")
    message = f"Given back by {person.name}."
    if lease.state is LeaseState.BOOKED:
        leases.cancel(session, lease, now=now, message=message, actor=person.id)
    elif lease.state is LeaseState.ACTIVE:
        _stop_jobs(session, lease, person, bells, now=now)
        # The scheduler ends it, and frees its hours, once the node is verified clean.
        advance(
            session,
            lease,
            LeaseState.ENDING,
            now=now,
            reason_code="given_back",
            message=message,
            actor=person.id,
        )
    bells.scheduler = True


def find_lease(session: Session, lease_id: str, person: Person, *, lock: bool = False) -> Lease:
    """A lease that `person` may see; somebody else's is NotFound, except for staff."""
    query = select(Lease).where(Lease.id == lease_id)
    lease = session.scalars(query.with_for_update(key_share=True) if lock else query).one_or_none()
    if lease is None or not (lease.user_id == person.id or person.is_staff):
        raise NotFound(f"You have no lease {lease_id!r}.")
    return lease


def show_lease(session: Session, lease_id: str, person: Person) -> LeaseView:
    """The view of a lease that `person` may see."""
    find_lease(session, lease_id, person)
    row = session.execute(leases_with_context().where(Lease.id == lease_id)).one()
    return lease_view(*row)


def leases_with_context() -> Select[Lease, str, str, str, str]:
    """Each lease with the names of its owner, node and node class, and the job that runs in it."""
    return (
        select(Lease, User.name, Node.name, Node.class_name, Attempt.job_id)
        .join(User, User.id == Lease.user_id)
        .join(Node, Node.id == Lease.node_id)
        .outerjoin(Attempt, and_(Attempt.lease_id == Lease.id, Attempt.state.in_(LIVE_ATTEMPT)))
    )


def lease_view(
    lease: Lease, user: str, node: str, node_class: str, job_id: str | None
) -> LeaseView:
    """One lease."""
    return LeaseView(
        id=lease.id,
        user=user,
        node=node,
        node_class=node_class,
        kind=lease.kind,
        state=lease.state,
        reason=lease.reason,
        hold_start=lease.hold_start,
        hold_end=lease.hold_end,
        usable_end=usable_end(lease.hold_end, lease.grace_s),
        job=job_id,
        created_at=lease.created_at,
    )


def _require_sane(wanted: NewLease) -> None:
    if wanted.node_class is None and wanted.node is None:
        raise BadRequest(
            "node_class: say on what to book, by node_class or by node.", param="node_class"
        )
    if not 2000 <= wanted.start.year <= 9000:
        raise BadRequest(
            f"start: the year {wanted.start.year} is not one to book in.", param="start"
        )


def _candidates(session: Session, wanted: NewLease) -> Sequence[Node]:
    query = select(Node).where(Node.state != NodeState.RETIRED).order_by(Node.name)
    if wanted.node_class is not None:
        query = query.where(Node.class_name == wanted.node_class)
    if wanted.node is not None:
        query = query.where(Node.name == wanted.node)
    nodes = session.scalars(query).all()
    if not nodes:
        param = "node" if wanted.node is not None else "node_class"
        known = ", ".join(
            session.scalars(
                select(Node.name if param == "node" else Node.class_name)
                .where(Node.state != NodeState.RETIRED)
                .distinct()
            )
        )
        asked = wanted.node or wanted.node_class
        raise BadRequest(
            f"{param}: there is no {asked!r} here. There is: {known or 'none yet'}.",
            code="unknown_node",
            param=param,
        )
    ready = [node for node in nodes if node.state in (NodeState.READY, NodeState.PENDING)]
    if not ready:
        states = ", ".join(f"{node.name} is {node.state}" for node in nodes)
        raise Conflict(f"No such node can be booked now: {states}.", code="node_not_ready")
    return ready


def _held(
    session: Session, node_ids: Sequence[str], start: datetime, end: datetime
) -> dict[str, list[Span]]:
    """Live occupancies of each node that overlap [start, end)."""
    held: dict[str, list[Span]] = defaultdict(list)
    rows = session.execute(
        select(Occupancy.node_id, Occupancy.hold_start, Occupancy.hold_end).where(
            Occupancy.node_id.in_(node_ids),
            Occupancy.live,
            Occupancy.hold_start < end,
            Occupancy.hold_end > start,
        )
    )
    for node_id, span_start, span_end in rows:
        held[node_id].append((span_start, span_end))
    return held


def _taken_message(
    session: Session,
    nodes: Sequence[Node],
    wanted: NewLease,
    start: datetime,
    policy: Policy,
    now: datetime,
) -> str:
    what = wanted.node or f"Every {wanted.node_class}"
    block = "hour" if wanted.hours == 1 else f"{wanted.hours} hours"
    horizon = hour_floor(now) + timedelta(days=policy.horizon_days)
    free = next_free(session, [node.id for node in nodes], start, wanted.hours, end=horizon)
    advice = (
        f"The next free start is {free.isoformat()}."
        if free is not None
        else f"Nothing is free within {policy.horizon_days} days."
    )
    return f"{what} is taken for the {block} from {start.isoformat()}. {advice}"


def _stop_jobs(
    session: Session, lease: Lease, person: Person, bells: Bells, *, now: datetime
) -> None:
    rows = session.execute(
        select(Job, Node.name)
        .join(Attempt, and_(Attempt.job_id == Job.id, Attempt.epoch == Job.epoch))
        .join(Node, Node.id == Attempt.node_id)
        .where(Attempt.lease_id == lease.id, Attempt.state.in_(LIVE_ATTEMPT))
        .with_for_update(of=Job, key_share=True)
    )
    for job, node_name in rows:
        ask_to_stop(
            session,
            job,
            Outcome.LEASE_ENDED,
            now=now,
            message=f"Saving and stopping: its lease was given back by {person.name}.",
            actor=person.id,
        )
        bells.nodes.add(node_name)
        bells.jobs.add(job.id)
