"""Free nodes by hour, and the reasons why the others are not free."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from api.leases.openings import Openings
from api.leases.schemas import AvailabilityView, BusyNodeView, FreeHour, LengthsView
from api.web.identity import Person
from core.base.errors import BadRequest, NotFound
from core.base.node_names import is_one_of
from core.base.reasons import ReasonCode
from core.leases.situation import BOOKABLE, Judge, ref_of, slots_out_of_service
from core.policy.grid import HOUR, hour_floor
from core.policy.slots import free_slots
from core.policy.verdict import Span
from core.policy.words import gpus_text
from core.states import NodeState, Sharing
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
    """Hours of a node, or of some of its slots, that are held, with the word for the holder."""

    span: Span
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
    gpus: int | None = None,
    now: datetime,
) -> AvailabilityView:
    """Return the free nodes of every hour. With `block_hours` or `any_length`, only nodes on which
    a block of that length, or of any allowed length, may start then count as free. A block has
    `gpus` slots of a node, or all of them if that is None. `names` limits the answer to these
    nodes."""
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
    sizes = {node.id: None if gpus == node.slots else gpus for node in nodes}
    allowed = {
        node.id: judge.policy_for_node(node).lengths(ref_of(node), sizes[node.id]) for node in nodes
    }
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
    unfit = slots_out_of_service(session, nodes)
    taken: dict[datetime, list[BusyNodeView]] = defaultdict(list)
    left: dict[datetime, dict[str, int]] = defaultdict(dict)
    for node in nodes:
        lengths = asked[node.id]
        needed = node.slots if gpus is None else gpus
        open_ = []
        for at in starts:
            over = _over(held[node.id], at, now)
            num_free = _num_free(node, over, at, now)
            left[at][node.name] = max(0, num_free - unfit[node.id])
            # A whole node is leased with its slots that are out of service.
            room = num_free if sizes[node.id] is None else left[at][node.name]
            if node.state not in BOOKABLE:
                taken[at].append(BusyNodeView(node=node.name, why=node.state))
            elif needed > node.slots:
                has = f"{node.name} has {gpus_text(node.slots)}, not {needed}."
                taken[at].append(BusyNodeView(node=node.name, why=ReasonCode.BAD_SIZE, message=has))
            elif room < needed and over:
                taken[at].append(BusyNodeView(node=node.name, why=over[0].why))
            elif room < needed:
                sick = f"{gpus_text(unfit[node.id])} of {node.name} are out of service."
                taken[at].append(
                    BusyNodeView(node=node.name, why=NodeState.QUARANTINED, message=sick)
                )
            elif lengths and at + HOUR <= now:
                taken[at].append(BusyNodeView(node=node.name, why=OVER, message="It has passed."))
            elif lengths:
                open_.append(at)
        refused = openings.refusals(judge, node, open_, lengths, num_slots=sizes[node.id])
        for at, broken in refused.items():
            taken[at].append(BusyNodeView(node=node.name, why=broken.code, message=broken.message))
    shown = []
    for at in starts:
        busy = {one.node for one in taken[at]}
        free = [node.name for node in nodes if node.name not in busy]
        shown.append(
            FreeHour(start=at, free=len(free), nodes=free, taken=taken[at], free_gpus=left[at])
        )
    return AvailabilityView(
        node_class=node_class,
        nodes=len(nodes),
        hours=shown,
        lengths=[
            LengthsView(node=node.name, hours=list(allowed[node.id]), sizes=_sizes(judge, node))
            for node in nodes
        ],
    )


def _sizes(judge: Judge, node: Node) -> list[int]:
    """Return the numbers of slots that the person may book on a node, ascending."""
    listed = judge.policy_for_node(node).sizes(ref_of(node))
    return [size for size in listed if size == node.slots or node.sharing is not Sharing.NONE]


def _named(nodes: Sequence[Node], names: Sequence[str]) -> Sequence[Node]:
    """Return the nodes that are asked for; all if none is named. Raises NotFound."""
    if not names:
        return nodes
    found = [node for node in nodes if is_one_of(node.name, names)]
    for name in names:
        if not any(is_one_of(node.name, [name]) for node in found):
            raise NotFound(f"There is no node {name!r} here.")
    return found


HELD = (
    select(
        Occupancy.node_id,
        Occupancy.hold_start,
        Occupancy.hold_end,
        Occupancy.lease_id,
        Occupancy.num_slots,
        Occupancy.kind,
        Lease.user_id,
    )
    .outerjoin(Lease, Lease.id == Occupancy.lease_id)
    .where(
        Occupancy.node_id.in_(bindparam("node_ids", expanding=True)),
        Occupancy.live,
        Occupancy.hold_start < bindparam("end"),
        Occupancy.hold_end > bindparam("start"),
    )
    .order_by(Occupancy.hold_start, Occupancy.id)
)


def _held(
    session: Session, person: Person, nodes: Sequence[Node], start: datetime, end: datetime
) -> dict[str, list[HeldHours]]:
    asked = {"node_ids": [node.id for node in nodes], "start": start, "end": end}
    rows = session.execute(HELD, asked)
    held: dict[str, list[HeldHours]] = defaultdict(list)
    for node_id, held_from, held_to, lease_id, num_slots, kind, user_id in rows:
        is_own = kind is OccupancyKind.LEASE and user_id == person.id
        span = Span(held_from, held_to, lease_id, num_slots)
        held[node_id].append(HeldHours(span, "yours" if is_own else WORDS[kind]))
    return held


def _since(at: datetime, now: datetime) -> datetime:
    # Of the hour that runs, what is over is nobody's any more.
    return now if at <= now < at + HOUR else at


def _over(held: Sequence[HeldHours], at: datetime, now: datetime) -> list[HeldHours]:
    """Return those that hold a part of the hour that begins at `at`."""
    since = _since(at, now)
    return [one for one in held if one.span.start < at + HOUR and one.span.end > since]


def _num_free(node: Node, over: Sequence[HeldHours], at: datetime, now: datetime) -> int:
    """Return the slots of a node that nobody holds in any part of the hour."""
    if node.state not in BOOKABLE:
        return 0
    spans = (one.span for one in over)
    return free_slots(spans, of=node.slots, start=_since(at, now), end=at + HOUR)
