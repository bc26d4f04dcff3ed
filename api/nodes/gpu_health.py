"""Health of a node's GPUs as it reports it: slots in or out of service, notes for people."""

from datetime import datetime

from sqlalchemy.orm import Session

from core.leases import node_slots
from core.states import GpuHealth
from core.tables.kinds import SlotState
from core.tables.nodes import Node
from core.transitions import note
from core.wire.messages import Inventory


def take_health(session: Session, node: Node, inventory: Inventory, *, now: datetime) -> None:
    """Take the slots of unfit GPUs out of service, put those back that the node's reports took
    out, and note each change. Slots that staff took out stay out."""
    node_slots.fit_out(session, node, inventory.gpus)
    unfit = {gpu.index: gpu for gpu in inventory.gpus if gpu.health is not GpuHealth.HEALTHY}
    for row in node_slots.rows_of(session, node.id):
        if row.slot in unfit:
            reason = unfit[row.slot].reason
            if node_slots.quarantine(session, node, row.slot, reason=reason, by=node.id):
                message = f"GPU {row.slot} of {node.name} gets no jobs. {reason}"
                note(session, node.id, "gpu_unfit", now=now, message=message, actor=node.id)
        elif row.state is SlotState.QUARANTINED and row.set_by == node.id:
            node_slots.put_back(session, node, row.slot)
            message = f"GPU {row.slot} of {node.name} is fit for jobs again."
            note(session, node.id, "gpu_fit", now=now, message=message, actor=node.id)
