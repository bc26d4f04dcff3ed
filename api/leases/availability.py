"""Free nodes by hour, and the reasons why the others are not free."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from api.leases.openings import Openings
from api.leases.schemas import AvailabilityView, FreeHour, LengthsView, TakenView
from api.web.identity import Person
from core.base.errors import BadRequest, NotFound
from core.base.node_names import is_one_of
from core.leases.situation import BOOKABLE, Judge, ref_of
from core.policy.grid import HOUR, hour_floor
from core.states import NodeState
from core.tables.kinds import OccupancyKind
from core.tables.leases import Lease, Occupancy
from core.tables.nodes import Node

WORDS = {
    OccupancyKind.LEASE: "leased",
    OccupancyKind.OFFER: "offered",
    OccupancyKind.MAINTENANCE: "maintenance",
    OccupancyKind.DOWN: "down",
}
MAX_JUDGED = 5000  # node-hours in one answer: half a second
OVER = "in_the_past"


@dataclass(frozen=True)
class HeldHours:
    """Hours of a node that are held, with the word for the holder."""

    start: datetime
    end: datetime
    why: str


def availability(
    session: Session,
    person: Person,
    openings: Openings,
    *,
    node_class: str | None,
    names: Sequence[str],
    start: datetime,
    hours: int,
    block_hours: int | None,
    any_length: bool,
    now: datetime,
) -> AvailabilityView:
    """Return the free nodes of every hour. With `block_hours` or `any_length`, only nodes on which
    a block of that length, or of any allowed length, may start then count as free. `names` limits
    the answer to these nodes."""
    if block_hours is not None and any_length:
        raise BadRequest("block_hours: give either one length or `any`.", param="block_hours")
    query = select(Node).where(Node.state != NodeState.RETIRED).order_by(Node.name)
    if node_class is not None:
        query = query.where(Node.class_name == node_class)
    nodes = _named(session.scalars(query).all(), names)
    judge = Judge(session, person.id, now=now)
    anchor = judge.policy_for_node(nodes[0]).grid.anchor if nodes else timedelta()
    first = hour_floor(start, anchor)
    starts = [first + number * HOUR for number in range(hours)]
    held = _held(session, person, nodes, first, first + hours * HOUR)
    allowed = {node.id: judge.policy_for_node(node).lengths(ref_of(node)) for node in nodes}
    asked = allowed if any_length else dict.fromkeys(allowed, (block_hours,) if block_hours else ())
    if any(asked.values()):
        if len(nodes) * hours > MAX_JUDGED:
            raise BadRequest(
                f"hours: {len(nodes)} nodes x {hours} hours are too many for one request. "
                f"Request {max(1, MAX_JUDGED // max(1, len(nodes)))} hours at most, or name a "
                "class.",
                param="hours",
            )
        longest = max(max(lengths) for lengths in asked.values())
        judge.look_at(nodes, first, first + (hours + longest) * HOUR)
    taken: dict[datetime, list[TakenView]] = defaultdict(list)
    for node in nodes:
        lengths = asked[node.id]
        open_ = []
        for at in starts:
            why = _why_not(node, held[node.id], at, now)
            if why is not None:
                taken[at].append(TakenView(node=node.name, why=why))
            elif lengths and at + HOUR <= now:
                taken[at].append(TakenView(node=node.name, why=OVER, message="It has passed."))
            elif lengths:
                open_.append(at)
        for at, broken in openings.refusals(judge, node, open_, lengths).items():
            taken[at].append(TakenView(node=node.name, why=broken.code, message=broken.message))
    shown = []
    for at in starts:
        busy = {one.node for one in taken[at]}
        free = [node.name for node in nodes if node.name not in busy]
        shown.append(FreeHour(start=at, free=len(free), nodes=free, taken=taken[at]))
    return AvailabilityView(
        node_class=node_class,
        nodes=len(nodes),
        hours=shown,
        lengths=[LengthsView(node=node.name, hours=list(allowed[node.id])) for node in nodes],
    )


def _named(nodes: Sequence[Node], names: Sequence[str]) -> Sequence[Node]:
    """Return the nodes that are asked for; all if none is named. Raises NotFound."""
    if not names:
        return nodes
    found = [node for node in nodes if is_one_of(node.name, names)]
    for name in names:
        if not any(is_one_of(node.name, [name]) for node in found):
            raise NotFound(f"There is no node {name!r} here.")
    return found


def _held(
    session: Session, person: Person, nodes: Sequence[Node], start: datetime, end: datetime
) -> dict[str, list[HeldHours]]:
    rows = session.execute(
        select(
            Occupancy.node_id,
            Occupancy.hold_start,
            Occupancy.hold_end,
            Occupancy.kind,
            Lease.user_id,
        )
        .outerjoin(Lease, Lease.id == Occupancy.lease_id)
        .where(
            Occupancy.node_id.in_([node.id for node in nodes]),
            Occupancy.live,
            Occupancy.hold_start < end,
            Occupancy.hold_end > start,
        )
    )
    held: dict[str, list[HeldHours]] = defaultdict(list)
    for node_id, held_from, held_to, kind, user_id in rows:
        is_own = kind is OccupancyKind.LEASE and user_id == person.id
        held[node_id].append(HeldHours(held_from, held_to, "yours" if is_own else WORDS[kind]))
    return held


def _why_not(node: Node, held: Sequence[HeldHours], at: datetime, now: datetime) -> str | None:
    # Of the hour that runs, what is over is nobody's any more.
    since = now if at <= now < at + HOUR else at
    return next(_whys(node, held, since, at + HOUR), None)


def _whys(node: Node, held: Sequence[HeldHours], since: datetime, until: datetime) -> Iterator[str]:
    if node.state not in BOOKABLE:
        yield str(node.state)
    for one in held:
        if one.start < until and one.end > since:
            yield one.why
