"""Requests for a block: the nodes, starts and length that would do. Not judged yet."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import BindParameter, bindparam, func, or_, select
from sqlalchemy.orm import Session, load_only

from api.leases.clock_times import day_of, moment_of, zone_of
from api.leases.schemas import Block, NewWait, Prefer
from core.base.errors import BadRequest
from core.base.node_names import folded
from core.leases.situation import Judge
from core.policy.grid import HOUR, hour_ceiling
from core.states import NodeState
from core.tables.nodes import Node

MAX_RANGE = timedelta(days=31)
IDS: BindParameter[list[str]] = bindparam("ids", expanding=True)
NAMES: BindParameter[list[str]] = bindparam("names", expanding=True)
NAMED = select(Node).where(
    or_(func.lower(Node.name).in_(NAMES), Node.id.in_(IDS)), Node.state != NodeState.RETIRED
)
NAMED_LOCKED = (  # in the order in which all lock nodes, and no more of them than bookings look at
    NAMED.order_by(Node.id)
    .options(load_only(Node.name, Node.class_name, Node.state, Node.slots, Node.sharing))
    .with_for_update(key_share=True)
    .execution_options(populate_existing=True)
)


@dataclass(frozen=True)
class BlockRequest:
    """A block that somebody would like to have."""

    what: str
    """Name of the nodes, for messages."""
    nodes: Sequence[Node]
    """Nodes that would do, sorted by name."""
    count: int
    """Number of nodes to book at the same time."""
    starts: Sequence[datetime]
    """Starts that would do, in UTC, earliest first."""
    length: timedelta
    is_flexible: bool
    prefer: Prefer = Prefer.EARLIEST
    num_slots: int | None = None
    """Slots of each node; None: all of it."""


def block_request_of(
    session: Session, block: Block, judge: Judge, *, zone: str, lock: bool = False
) -> BlockRequest:
    """Read a request. `zone` is the person's, for a day without one. In a range, every hour will do
    at which the policy of one of the nodes lets blocks begin. Raises BadRequest.

    With `lock`, nobody else takes hours of the nodes that it names until the transaction ends.
    """
    nodes, count, what = nodes_of(session, block, lock=lock)
    num_slots = num_slots_on(nodes, block.gpus)
    if block.start is not None:
        if block.on or block.first_start or block.last_start:
            raise BadRequest(
                "start: give one of these: a start, a day as `on`, or first_start and last_start.",
                param="start",
            )
        start = moment_of(block.start, block.zone, param="start")
        length = _length(block, start)
        return BlockRequest(what, nodes, count, [start], length, False, block.prefer, num_slots)
    if block.hours is None:
        raise BadRequest(
            "hours: give the length of the block, because any start would be divisible.",
            param="hours",
        )
    length = block.hours * HOUR
    first, last = range_of(block, zone=zone, hours=block.hours)
    anchors = {judge.policy_for_node(node).grid.anchor for node in nodes}
    first = max(first, judge.now)
    starts = sorted({at for anchor in anchors for at in _hours(first, last, anchor)})
    if not starts:
        raise BadRequest(
            f"first_start: there is no full hour left between {first.isoformat()} and "
            f"{last.isoformat()}.",
            param="on" if block.on else "first_start",
            code="in_the_past",
        )
    return BlockRequest(what, nodes, count, starts, length, True, block.prefer, num_slots)


def _hours(first: datetime, last: datetime, anchor: timedelta) -> Iterator[datetime]:
    at = hour_ceiling(first, anchor)
    while at <= last:
        yield at
        at += HOUR


def range_of(wanted: Block | NewWait, *, zone: str, hours: int) -> tuple[datetime, datetime]:
    """Return the first and the last start that will do, in UTC. Raises BadRequest."""
    if wanted.on is not None:
        if not 2000 <= wanted.on.year <= 9000:
            raise BadRequest(
                f"on: the year {wanted.on.year} is out of range. Choose an earlier day.", param="on"
            )
        first, end = day_of(wanted.on, zone_of(wanted.zone or zone))
        return first, end - hours * HOUR
    if wanted.first_start is None or wanted.last_start is None:
        raise BadRequest(
            "start: give a start, a day as `on`, or first_start and last_start.",
            param="start",
        )
    first = moment_of(wanted.first_start, wanted.zone, param="first_start")
    last = moment_of(wanted.last_start, wanted.zone, param="last_start")
    if not first <= last <= first + MAX_RANGE:
        raise BadRequest(
            f"last_start: it must be at most {MAX_RANGE.days} days after first_start.",
            param="last_start",
        )
    return first, last


def nodes_named(
    session: Session, names: Sequence[str], *, param: str, lock: bool = False
) -> list[Node]:
    """Return the nodes of these names or ids, in that order. Retired nodes are not found."""
    known: dict[str, Node] = {}
    asked = {"ids": names, "names": [folded(name) for name in names]}
    for node in session.scalars(NAMED_LOCKED if lock else NAMED, asked):
        known |= {node.id: node, folded(node.name): node}
    found = []
    for name in names:
        asked_for = known.get(name) or known.get(folded(name))
        if asked_for is None:
            raise _unknown(session, param, name)
        found.append(asked_for)
    if len({node.id for node in found}) < len(found):
        raise BadRequest(f"{param}: a node is named twice.", param=param)
    return found


def nodes_of(session: Session, block: Block, *, lock: bool = False) -> tuple[list[Node], int, str]:
    """Return the nodes that would do, the number to book, and their name for messages."""
    if block.nodes:
        if block.node or block.node_class or block.count != 1:
            raise BadRequest("nodes: give either `nodes`, `node` or `node_class`.", param="nodes")
        nodes = nodes_named(session, block.nodes, param="nodes", lock=lock)
        return nodes, len(nodes), " and ".join(node.name for node in nodes)
    if block.node is not None:
        (node,) = nodes_named(session, [block.node], param="node", lock=lock)
        if block.node_class not in (None, node.class_name):
            raise BadRequest(
                f"node_class: {node.name} is of class {node.class_name}.", param="node_class"
            )
        if block.count != 1:
            raise BadRequest(
                "count: it can only be given with node_class, not with one node.", param="count"
            )
        return [node], 1, node.name
    if block.node_class is None:
        raise BadRequest(
            "node_class: give the node or the class to book, as `node` or `node_class`.",
            param="node_class",
        )
    found = session.scalars(
        select(Node)
        .where(Node.class_name == block.node_class, Node.state != NodeState.RETIRED)
        .order_by(Node.name)
    ).all()
    if not found:
        raise _unknown(session, "node_class", block.node_class)
    if block.count > len(found):
        raise BadRequest(
            f"count: class {block.node_class} has only {len(found)} nodes.", param="count"
        )
    return list(found), block.count, f"every {block.node_class}"


def num_slots_on(nodes: Sequence[Node], gpus: int | None) -> int | None:
    """Return the slots to take of each of these nodes; None if that is all of every one."""
    return None if all(node.slots == gpus for node in nodes) else gpus


def _length(block: Block, start: datetime) -> timedelta:
    if (block.hours is None) == (block.end is None):
        raise BadRequest("hours: give either hours or end.", param="hours")
    if block.hours is not None:
        return block.hours * HOUR
    assert block.end is not None
    end = moment_of(block.end, block.zone, param="end")
    if end <= start:
        raise BadRequest("end: it must be after the start.", param="end")
    return end - start


def _unknown(session: Session, param: str, asked: str) -> BadRequest:
    column = Node.class_name if param == "node_class" else Node.name
    known = session.scalars(
        select(column).where(Node.state != NodeState.RETIRED).distinct().order_by(column)
    )
    return BadRequest(
        f"{param}: there is no {asked!r} here. Known: {', '.join(known) or 'none yet'}.",
        code="unknown_node",
        param=param,
    )
