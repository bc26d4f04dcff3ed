"""State that calendars show: holds of nodes with their owners, people's own leases and jobs, and
rules.

Two readings are compared by value, so the cause of a change does not matter.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from sqlalchemy import Select, bindparam, case, func, or_, select
from sqlalchemy.orm import Session

from api.web.schemas import View
from core.policy.grid import hour_floor
from core.states import LIVE_JOB, LIVE_LEASE, TERMINAL_JOB, NodeState
from core.tables.jobs import Job
from core.tables.kinds import LeaseKind, OccupancyKind, OfferState, WaitState
from core.tables.leases import Lease, Occupancy, Offer, Wait
from core.tables.nodes import Node
from core.tables.people import Grant, Lab, Membership, User
from core.tables.policies import AppliedPolicy, PoolWindow

PAST = timedelta(days=1)  # holds that ended no longer ago are shown

HoldKind = Literal["lease", "walk_in", "offer", "maintenance", "down"]
Fact = tuple[object, ...]
Facts = Mapping[str, Sequence[Fact]]
"""Facts by the id of the user whom they are about."""

HOLDS = (
    select(Occupancy.node_id, Occupancy.hold_start, Occupancy.hold_end, Occupancy.kind)
    .add_columns(Occupancy.num_slots, Lease.kind, Lease.id, User.name)
    .outerjoin(Lease, Lease.id == Occupancy.lease_id)
    .outerjoin(User, User.id == Lease.user_id)
    .where(Occupancy.live, Occupancy.hold_end > bindparam("since"))
    .order_by(Occupancy.hold_start, Occupancy.id)
)
NODES = (
    select(Node.id, Node.name, Node.state)
    .where(Node.state != NodeState.RETIRED)
    .order_by(Node.name)
)
OWN = (  # each with the user's id first
    select(Lease.user_id, Lease.id, Lease.state, Lease.generation, Lease.reason, Lease.protected)
    .add_columns(Lease.node_id, Lease.hold_start, Lease.hold_end)
    .where(Lease.state.in_(LIVE_LEASE))
    .order_by(Lease.id),
    # What was given back too late is charged by what others do with it.
    select(Lease.user_id, func.sum(Lease.charged_s), func.sum(case((Lease.counts, 1), else_=0)))
    .where(Lease.forfeited_end.is_not(None))
    .group_by(Lease.user_id),
    select(Offer.user_id, Offer.id, Offer.expires_at)
    .where(Offer.state == OfferState.OPEN)
    .order_by(Offer.id),
    select(Wait.user_id, Wait.id, Wait.state, Wait.reason, Wait.queued_at)
    .where(Wait.state.in_((WaitState.WAITING, WaitState.OFFERED)))
    .order_by(Wait.id),
    select(Job.user_id, Job.id, Job.state, Job.lease_id)
    .where(Job.state.not_in(TERMINAL_JOB), or_(Job.lease_id.is_not(None), Job.state.in_(LIVE_JOB)))
    .order_by(Job.id),
)
POLICIES = (
    select(AppliedPolicy.policy_id, AppliedPolicy.version, AppliedPolicy.applied_at)
    .where(AppliedPolicy.active)
    .order_by(AppliedPolicy.policy_id)
)
WINDOWS = select(
    PoolWindow.id, PoolWindow.pools, PoolWindow.starts_at, PoolWindow.ends_at, PoolWindow.opens_at
).order_by(PoolWindow.id)
PEOPLE = (  # each with the user's id first
    select(User.id, User.role, User.attributes),
    select(Grant.user_id, Grant.id).where(Grant.revoked_at.is_(None)).order_by(Grant.id),
    select(Membership.user_id, Lab.id, Lab.name, Lab.groups)
    .join(Lab, Lab.id == Membership.lab_id)
    .order_by(Lab.id),
)


@dataclass(frozen=True)
class Hold:
    """A hold: hours of a node, or of some of its slots, that are taken."""

    start: datetime
    end: datetime
    kind: HoldKind
    gpus: int | None
    """GPUs, or CPU slots; None for the whole node."""
    user: str | None
    """Name of the owner; None for maintenance, offers and down time."""
    lease: str | None


@dataclass(frozen=True)
class NodeHolds:
    """A node, and its holds."""

    node: str
    state: NodeState
    holds: tuple[Hold, ...]


@dataclass(frozen=True)
class Calendar:
    """Content of the topic `calendar`."""

    nodes: Mapping[str, NodeHolds]
    """Nodes with their holds, by name."""
    own: Facts
    """Live leases, charges of leases returned too late, open offers, waitlist entries, jobs in
    leases."""


@dataclass(frozen=True)
class Rules:
    """Content of the topic `rules`."""

    general: Sequence[Fact]
    """Active policies, and windows with whether each is open for booking."""
    of_person: Facts
    """Exceptions, labs, role and attributes."""


class HoldView(View):
    """Hours of a node that are taken."""

    start: datetime
    end: datetime
    kind: HoldKind
    gpus: int | None = None
    """GPUs, or CPU slots, that are taken; null for the whole node."""


class StaffHoldView(HoldView):
    """Hours of a node that are taken, and by whom; for staff."""

    user: str | None
    lease: str | None


class NodeHoldsView(View):
    """A node's state, and all its holds."""

    node: str
    state: NodeState
    holds: list[HoldView]


class StaffNodeHoldsView(View):
    """A node's state, and all its holds with their owners; for staff."""

    node: str
    state: NodeState
    holds: list[StaffHoldView]


def changed_nodes(before: Calendar, after: Calendar) -> list[NodeHolds]:
    """Return the nodes that have changed; a node that has disappeared is returned as retired and
    free. Pure."""
    changed = [one for name, one in after.nodes.items() if before.nodes.get(name) != one]
    gone = sorted(before.nodes.keys() - after.nodes.keys())
    return [*changed, *(NodeHolds(name, NodeState.RETIRED, ()) for name in gone)]


def changed_people(before: Facts, after: Facts) -> frozenset[str]:
    """Return the ids of the people whose facts have changed. Pure."""
    people = before.keys() | after.keys()
    return frozenset(one for one in people if before.get(one) != after.get(one))


def as_json(nodes: Iterable[NodeHolds], *, for_staff: bool) -> str:
    """Return a JSON array of nodes with their holds."""
    view = StaffNodeHoldsView if for_staff else NodeHoldsView
    return f"[{','.join(view.model_validate(node).model_dump_json() for node in nodes)}]"


def read_calendar(session: Session, now: datetime) -> Calendar:
    """Read the present calendar from the database."""
    holds: dict[str, list[Hold]] = defaultdict(list)
    rows = session.execute(HOLDS, {"since": hour_floor(now) - PAST})
    for node_id, start, end, kind, gpus, lease_kind, lease_id, user in rows:
        is_walk_in = kind is OccupancyKind.LEASE and lease_kind is LeaseKind.WALK_IN
        word: HoldKind = "walk_in" if is_walk_in else kind.value
        holds[node_id].append(Hold(start, end, word, gpus, user, lease_id))
    return Calendar(
        nodes={
            name: NodeHolds(name, state, tuple(holds[node_id]))
            for node_id, name, state in session.execute(NODES)
        },
        own=_by_person(session, OWN),
    )


def read_rules(session: Session, now: datetime) -> Rules:
    """Read the present rules from the database."""
    policies = [tuple(row) for row in session.execute(POLICIES)]
    windows = [
        (*row, row.opens_at is None or row.opens_at <= now) for row in session.execute(WINDOWS)
    ]
    return Rules(general=[*policies, *windows], of_person=_by_person(session, PEOPLE))


def _by_person(session: Session, queries: Iterable[Select[*tuple[Any, ...]]]) -> Facts:
    found: dict[str, list[Fact]] = defaultdict(list)
    for number, query in enumerate(queries):
        for row in session.execute(query):
            found[row[0]].append((number, *row[1:]))
    return found
