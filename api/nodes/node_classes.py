"""Classes of nodes: a node's hardware names its class, unless its enrolment did."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from core.states import NodeState
from core.tables.nodes import Node, NodeClass
from core.wire.messages import Fabric, Inventory
from strategies.plan.hardware import GpuSpeeds, Hardware

BRANDS = ("nvidia", "geforce", "tesla", "quadro", "amd", "radeon", "instinct")
OF_EVERY_NODE = (
    "no_gang_sandbox",
    "no_compiler",
)  # one node that cannot do it speaks for its class
SAME_MEMORY = 0.1  # relative: the firmware's share differs between equal machines


def hardware_of(inventory: Inventory, class_name: str) -> Hardware:
    """Return the hardware of a node that the planner counts with: slots, model, memory in GiB.

    Of several GPUs the smallest memory counts. A node without GPUs has CPU slots.
    """
    if inventory.gpus:
        smallest = min(inventory.gpus, key=lambda gpu: gpu.memory_gib)
        return Hardware(
            class_name=class_name,
            device="cuda",
            slots=max(1, min(inventory.slots, len(inventory.gpus))),
            memory_gib=smallest.memory_gib,
            model=smallest.name,
            host_memory_gib=inventory.memory_gib,
            job_memory_gib=inventory.job_memory_gib,
            speeds=smallest.speeds,
            no_sandbox=why_no_sandbox(inventory),
            no_gang_sandbox=inventory.no_gang_sandbox,
            no_compiler=inventory.no_compiler,
        )
    return Hardware(
        class_name=class_name,
        device="cpu",
        slots=max(1, inventory.slots),
        memory_gib=inventory.memory_gib,
        job_memory_gib=inventory.job_memory_gib,
        no_sandbox=why_no_sandbox(inventory),
        no_gang_sandbox=inventory.no_gang_sandbox,
        no_compiler=inventory.no_compiler,
    )


def why_no_sandbox(inventory: Inventory) -> str:
    """Return the reason that a node can't sandbox scripts; empty if it can or does not tell."""
    return inventory.no_sandbox or "it has no sandbox" if inventory.sandbox == "" else ""


def derived_name(inventory: Inventory) -> str:
    """Return a class name made from the hardware, such as `a100x4` or `cpu2`."""
    if not inventory.gpus:
        return f"cpu{max(1, inventory.slots)}"
    words = re.findall(r"[a-z0-9]+", inventory.gpus[0].name.lower())
    telling = [word for word in words if word not in BRANDS]
    num_words = 2 if telling[:1] in (["rtx"], ["gtx"]) else 1
    return f"{''.join(telling[:num_words])[:40] or 'gpu'}x{len(inventory.gpus)}"


def same_kind(a: Hardware, b: Hardware) -> bool:
    """Return True if two nodes are interchangeable for the planner."""
    close = abs(a.memory_gib - b.memory_gib) <= SAME_MEMORY * max(a.memory_gib, b.memory_gib)
    same = (a.device, a.slots, a.model) == (b.device, b.slots, b.model)
    return close and same and bool(a.no_sandbox) == bool(b.no_sandbox)


def judge_together(session: Session, known: NodeClass) -> None:
    """Let a class do what each of its nodes is able to do: the first node's reason counts, and so
    do the first node's measured speeds, and the least memory that a node gives one job.

    On the nodes' own network the sandboxes of several nodes need no other one.
    """
    inventories = session.scalars(
        select(Node.inventory)
        .where(Node.class_name == known.name, Node.state != NodeState.RETIRED)
        .order_by(Node.name)
    ).all()
    hardware = Hardware.model_validate(known.hardware)
    measured = [
        gpu["speeds"]
        for each in inventories
        for gpu in each["gpus"]
        if gpu["name"] == hardware.model and gpu.get("speeds")
    ]
    speeds = GpuSpeeds(**measured[0]) if measured else None
    changed = hardware.model_copy(update={**_shared(known, inventories), "speeds": speeds})
    if changed != hardware:
        refit(known, changed)


def _shared(known: NodeClass, nodes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what every one of these nodes can do: for each ability of the class the first reason
    against it, and the least memory that one of them gives one job (None: no limit)."""
    shared: dict[str, Any] = {
        field: next((str(node[field]) for node in nodes if node.get(field)), "")
        for field in OF_EVERY_NODE
    }
    if Fabric.model_validate(known.fabric).programs == "host":
        shared["no_gang_sandbox"] = ""
    limits = [limit for node in nodes if (limit := node.get("job_memory_gib")) is not None]
    return shared | {"job_memory_gib": min(limits, default=None)}


def join_class(session: Session, inventory: Inventory, *, named: str | None) -> str:
    """Return the name of the node's class, which is made if it is missing.

    A class that no node uses any more takes the new hardware, as a new version. If a class of the
    given or derived name has other hardware, the memory is added to the name, then a number.
    """
    first = named or derived_name(inventory)
    memory = round(hardware_of(inventory, first).memory_gib)
    for name in [first, f"{first}-{memory}g", *(f"{first}-{memory}g-{n}" for n in range(2, 100))]:
        hardware = hardware_of(inventory, name)
        known = session.get(NodeClass, name, with_for_update={"key_share": True})
        if known is None:
            session.add(NodeClass(name=name, version=1, hardware=hardware.model_dump(mode="json")))
            session.flush()
            return name
        here = Hardware.model_validate(known.hardware)
        if same_kind(here, hardware):
            both = [one.model_dump() for one in (here, hardware)]
            speeds = here.speeds or hardware.speeds
            joined = here.model_copy(update={**_shared(known, both), "speeds": speeds})
            if joined != here:
                refit(known, joined)
            return name
        users = session.scalar(
            select(func.count()).select_from(Node).where(Node.class_name == name)
        )
        if not users:
            refit(known, hardware)
            return name
    raise AssertionError("there are a hundred node classes with one name")


def refit(known: NodeClass, hardware: Hardware) -> None:
    """Change the hardware of a class and raise its version, so that plans are made anew."""
    known.hardware = hardware.model_dump(mode="json")
    known.version += 1
