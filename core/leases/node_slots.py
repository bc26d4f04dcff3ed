"""The only place where a node's slots change: which are fit and clean, and which lease has them.

`occupancy` says how many slots a lease holds at each moment; which ones is decided here, when it
begins. Everybody locks the node first; the compare-and-set alone would do.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from sqlalchemy import CursorResult, bindparam, select, update
from sqlalchemy.orm import Session

from core.tables.kinds import SlotState
from core.tables.leases import Lease
from core.tables.nodes import Node, NodeSlot
from core.wire.messages import Gpu

# Built once: to build a query takes longer than to ask it.
LOCK = select(Node.id).where(Node.id == bindparam("node_id")).with_for_update(key_share=True)
ROWS_OF = (
    select(NodeSlot)
    .where(NodeSlot.node_id == bindparam("node_id"))
    .order_by(NodeSlot.slot)
    .execution_options(populate_existing=True)
)
READY_OF = select(NodeSlot.slot).where(
    NodeSlot.lease_id == bindparam("lease_id"),
    NodeSlot.node_id == bindparam("node_id"),
    NodeSlot.state == SlotState.READY,
)
HELD_BY = (
    select(NodeSlot.slot)
    .where(NodeSlot.lease_id == bindparam("lease_id"))
    .order_by(NodeSlot.node_id, NodeSlot.slot)
    .with_for_update()
)


class LinkedSlot(NamedTuple):
    """A slot, and the group of slots that it is linked with; None if it is linked with none."""

    slot: int
    group: int | None = None


def choose(
    free: Iterable[LinkedSlot], taken: Iterable[LinkedSlot], num_slots: int
) -> tuple[int, ...]:
    """Return the slots, of those that are free, for a lease of `num_slots`. Pure.

    Whole free groups that fit into it come first. The rest of it joins groups that others have a
    part of, so that pairs stay whole for those who need them; else the lowest index wins.
    """
    broken = {one.group for one in taken}
    left = sorted(free)
    groups: dict[int, list[int]] = {}
    for one in left:
        if one.group is not None and one.group not in broken:
            groups.setdefault(one.group, []).append(one.slot)
    chosen: list[int] = []
    for members in groups.values():
        if len(members) <= num_slots - len(chosen):
            chosen += members
    rest = [one for one in left if one.slot not in chosen]
    rest.sort(key=lambda one: (one.group in groups, one.slot))
    chosen += [one.slot for one in rest[: num_slots - len(chosen)]]
    return tuple(sorted(chosen))


def fit_out(session: Session, node: Node, gpus: Sequence[Gpu] = ()) -> None:
    """Give a node the rows of its slots. A GPU is known by its UUID: its state goes with it.

    Slots that the node has no more are removed, and a GPU that has replaced another is ready.
    """
    uuids = {gpu.index: gpu.uuid for gpu in gpus}
    groups = {gpu.index: gpu.link_group for gpu in gpus}
    before = {row.slot: row for row in rows_of(session, node.id)}
    of_gpu = {row.device_uuid: (row.state, row.reason, row.set_by) for row in before.values()}
    fresh = (SlotState.READY if node.clean else SlotState.DIRTY, "", None)
    for slot in range(node.slots):
        row, uuid = before.pop(slot, None), uuids.get(slot, "")
        if row is None:
            row = NodeSlot(node_id=node.id, slot=slot, device_uuid=uuid)
            row.state, row.reason, row.set_by = of_gpu.get(uuid, fresh) if uuid else fresh
            session.add(row)
        elif row.device_uuid != uuid:
            if row.device_uuid:
                row.state, row.reason, row.set_by = of_gpu.get(uuid, fresh)
            row.device_uuid = uuid
        row.link_group = groups.get(slot)
    for row in before.values():
        session.delete(row)
    session.flush()


def rows_of(session: Session, node_id: str) -> Sequence[NodeSlot]:
    """Return the slots of a node, in order."""
    return session.scalars(ROWS_OF, {"node_id": node_id}).all()


def lease_slots(session: Session, lease: Lease) -> frozenset[int]:
    """Return the slots that a lease has on its node and on which jobs may start now."""
    whose = {"lease_id": lease.id, "node_id": lease.node_id}
    return frozenset(session.scalars(READY_OF, whose))


def is_clean(session: Session, lease: Lease) -> bool:
    """Return True if none of the slots that a lease has is dirty."""
    dirty = select(NodeSlot.slot).where(
        NodeSlot.lease_id == lease.id, NodeSlot.state == SlotState.DIRTY
    )
    return session.scalars(dirty).first() is None


def out_of_service(session: Session, node: Node) -> list[int]:
    """Return the slots of a node that are out of service, in order."""
    return [row.slot for row in rows_of(session, node.id) if row.state is SlotState.QUARANTINED]


def num_in_service(session: Session, node: Node) -> int:
    """Return the number of a node's slots that are not out of service."""
    return node.slots - len(out_of_service(session, node))


def can_assign(session: Session, lease: Lease) -> bool:
    """Return True if a lease can have its slots now. Call it with the node locked."""
    return _choice(lease, rows_of(session, lease.node_id)) is not None


def assign(session: Session, lease: Lease, *, prefer: Collection[int] = ()) -> bool:
    """Give a lease its slots: its number of free ready ones, or the whole node, with the slots that
    are out of service. False, with nothing changed, if too few are free and clean.

    `prefer` names slots that it gets if they are free, because its jobs run there.
    """
    chosen = _choice(lease, rows_of(session, lease.node_id), prefer)
    if chosen is None:
        return False
    is_whole = lease.num_slots is None
    fit = NodeSlot.state != SlotState.DIRTY if is_whole else NodeSlot.state == SlotState.READY
    with session.begin_nested() as all_or_none:
        taken = session.execute(
            update(NodeSlot)
            .where(
                NodeSlot.node_id == lease.node_id,
                NodeSlot.slot.in_(chosen),
                NodeSlot.lease_id.is_(None),
                fit,
            )
            .values(lease_id=lease.id)
            .execution_options(synchronize_session=False)
        )
        assert isinstance(taken, CursorResult)
        if taken.rowcount != len(chosen):
            all_or_none.rollback()
            return False
    return True


def _choice(
    lease: Lease, rows: Sequence[NodeSlot], prefer: Collection[int] = ()
) -> tuple[int, ...] | None:
    """Return the slots that a lease would get; None if too few are free and clean."""
    free = [row for row in rows if row.lease_id is None]
    ready = [row for row in free if row.state is SlotState.READY]
    if lease.num_slots is None:
        is_clean = all(row.state is not SlotState.DIRTY for row in rows)
        is_free = len(free) == len(rows) and is_clean and bool(ready)
        return tuple(row.slot for row in rows) if is_free else None
    if len(ready) < lease.num_slots:
        return None
    wanted = {row.slot for row in ready} & set(prefer)
    if len(wanted) == lease.num_slots:
        return tuple(sorted(wanted))
    taken = [row for row in rows if row.lease_id is not None]
    return choose(_linked(ready), _linked(taken), lease.num_slots)


def _linked(rows: Iterable[NodeSlot]) -> list[LinkedSlot]:
    return [LinkedSlot(row.slot, row.link_group) for row in rows]


def pass_on(session: Session, lease: Lease, to: Lease) -> None:
    """Give the slots of a lease to the one that goes on in its place."""
    session.execute(update(NodeSlot).where(NodeSlot.lease_id == lease.id).values(lease_id=to.id))


def release(session: Session, lease: Lease, *, dirty: bool = False) -> None:
    """Free the slots of a lease. Nobody gets `dirty` ones until their node calls them clean."""
    session.execute(HELD_BY, {"lease_id": lease.id}).all()
    if dirty:
        node = session.get_one(Node, lease.node_id)
        rows = rows_of(session, node.id)
        left = {row.slot for row in rows if row.lease_id == lease.id}
        set_dirty(session, node, left | {r.slot for r in rows if r.state is SlotState.DIRTY})
    session.execute(update(NodeSlot).where(NodeSlot.lease_id == lease.id).values(lease_id=None))


def set_dirty(session: Session, node: Node, dirty: Collection[int]) -> bool:
    """Record which slots of a node are not clean; the others in service are ready.

    Return True if a slot has become ready. The node is locked.
    """
    session.execute(LOCK, {"node_id": node.id}).all()
    has_cleared = False
    for row in rows_of(session, node.id):
        if row.state is not SlotState.QUARANTINED:
            state = SlotState.DIRTY if row.slot in dirty else SlotState.READY
            has_cleared |= row.state is SlotState.DIRTY and state is SlotState.READY
            row.state = state
    node.clean = not dirty
    session.flush()
    return has_cleared


def quarantine(session: Session, node: Node, slot: int, *, reason: str, by: str) -> bool:
    """Take a slot out of service from now on; False if it was out already.

    Its lease keeps it, and what runs there goes on, but nothing starts there. A person's act
    outlasts the node's report that the slot is fit again.
    """
    row = session.get_one(NodeSlot, (node.id, slot))
    if row.state is SlotState.QUARANTINED and by in (row.set_by, node.id):
        return False
    row.state, row.reason, row.set_by = SlotState.QUARANTINED, reason, by
    session.flush()
    return True


def put_back(session: Session, node: Node, slot: int) -> bool:
    """Put a slot back into service; False if it was not out."""
    row = session.get_one(NodeSlot, (node.id, slot))
    if row.state is not SlotState.QUARANTINED:
        return False
    row.state = SlotState.READY if node.clean else SlotState.DIRTY
    row.reason, row.set_by = "", None
    session.flush()
    return True
