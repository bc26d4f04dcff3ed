"""Health of a node's GPUs as it reports it: slots for the scheduler, notes for people."""

from datetime import datetime

from sqlalchemy.orm import Session

from core.states import GpuHealth
from core.tables.nodes import Node
from core.transitions import note
from core.wire.messages import Inventory


def take_health(session: Session, node: Node, inventory: Inventory, *, now: datetime) -> None:
    """Record which slots of a node are unfit for jobs, and note each change."""
    before = set(node.unfit_slots or ())
    unfit = {gpu.index: gpu for gpu in inventory.gpus if gpu.health is not GpuHealth.HEALTHY}
    if before == unfit.keys():
        return
    node.unfit_slots = sorted(unfit)
    for slot in sorted(unfit.keys() - before):
        message = f"GPU {slot} of {node.name} gets no jobs. {unfit[slot].reason}"
        note(session, node.id, "gpu_unfit", now=now, message=message, actor=node.id)
    for slot in sorted(before - unfit.keys()):
        message = f"GPU {slot} of {node.name} is fit for jobs again."
        note(session, node.id, "gpu_fit", now=now, message=message, actor=node.id)
