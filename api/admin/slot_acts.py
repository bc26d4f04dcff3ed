"""Acts of staff on single slots of a node: out of service, and back."""

from datetime import datetime
from enum import StrEnum

from sqlalchemy import select
from sqlalchemy.orm import Session

from api.nodes.gpu_health import take_health
from api.nodes.node_views import show_node
from api.nodes.schemas import NodeView
from api.web import audit
from api.web.bells import Bells
from api.web.identity import Person
from api.web.process import Process
from core.base.errors import Conflict, NotFound
from core.leases import node_slots
from core.tables.kinds import SlotState
from core.tables.nodes import Node, NodeSlot
from core.wire.messages import Inventory


class SlotAct(StrEnum):
    """An act of staff on a slot of a node."""

    QUARANTINE = "quarantine"
    RESUME = "resume"


def act_on_slot(
    session: Session,
    bells: Bells,
    node_id: str,
    slot: int,
    act: SlotAct,
    person: Person,
    process: Process,
    *,
    now: datetime,
) -> NodeView:
    """Take a slot out of service or put it back; a repeated act changes nothing.

    Raises NotFound, and Conflict for a GPU that its node reports as unfit: it comes back by itself.
    """
    query = select(Node).where(Node.goes_by(node_id)).with_for_update(key_share=True)
    node = session.scalars(query).first()
    if node is None:
        raise NotFound(f"There is no node {node_id!r}.")
    row = session.get(NodeSlot, (node.id, slot))
    if row is None:
        raise NotFound(f"{node.name} has no slot {slot}; its slots are 0 to {node.slots - 1}.")
    if act is SlotAct.QUARANTINE:
        reason = f"Taken out of service by {person.name}."
        has_changed = node_slots.quarantine(session, node, slot, reason=reason, by=person.id)
    else:
        if row.state is SlotState.QUARANTINED and row.set_by == node.id:
            raise Conflict(
                f"{node.name} reports that GPU {slot} is not fit for jobs. {row.reason} It is back "
                "in service as soon as the node reports it as healthy."
            )
        has_changed = node_slots.put_back(session, node, slot)
    if has_changed:
        audit.record(session, person.id, f"slot.{act}", node.id, now=now, name=node.name, slot=slot)
        take_health(session, node, Inventory.model_validate(node.inventory), now=now)
        bells.scheduler = True
    return show_node(session, process, person, node.id)
