"""One node: what it is, who has which of its slots now and next, its jobs, proof and history."""

import asyncio
from datetime import UTC, datetime

from starlette.responses import Response

from dashboard.pages.nodes import ACTS, WORDS, reading, sharing
from dashboard.questions import NODE_ACTS
from dashboard.rendering import render
from dashboard.sentences import event_family, event_title
from dashboard.viewer import Viewer
from trainyard.views import Event, Node, NodeHold, Slot

EVENTS = 30


async def show(viewer: Viewer) -> Response:
    """The whole page."""
    return render("node.html", await _context(viewer))


async def now(viewer: Viewer) -> Response:
    """The part of the page that changes: state, slots, hours and history."""
    return render("node_now.html", await _context(viewer))


async def _context(viewer: Viewer) -> dict[str, object]:
    path = f"/v1/nodes/{viewer.part('node_id')}"
    me, node, (holds, _), (events, _) = await asyncio.gather(
        viewer.me(),
        viewer.get(Node, path),
        viewer.page(NodeHold, f"{path}/holds"),
        viewer.page(Event, f"{path}/events", {"limit": EVENTS}),
    )
    now = datetime.now(UTC)
    gpu_readings = node.telemetry.gpus if node.telemetry else ()
    current = [hold for hold in holds if hold.hold_start <= now]
    return {
        "me": me,
        "section": "nodes",
        "now": now,
        "node": node,
        "sentence": sentence(node, current),
        "ahead": [hold for hold in holds if hold.hold_start > now],
        "slots": [(slot, holder(slot, current, len(node.slots))) for slot in node.slots],
        "noun": "GPU" if node.hardware.device == "cuda" else "CPU slot",
        "gpus": {gpu["index"]: gpu for gpu in node.inventory.get("gpus", [])},
        "readings": {gpu.index: reading(gpu).partition(": ")[2] for gpu in gpu_readings},
        "sharing": sharing(node),
        "facts": facts(node),
        "events": [(event, event_title(event), event_family(event)) for event in events],
        "acts": ACTS.get(node.state, ()) if me.user.role != "user" else (),
        "asks": set(NODE_ACTS),
        "words": WORDS,
    }


def facts(node: Node) -> list[tuple[str, str]]:
    """Return what the machine is, as (word, value)."""
    hardware, inventory, telemetry = node.hardware, node.inventory, node.telemetry
    limit = inventory.get("job_memory_gib")
    found = [
        ("Class", node.node_class),
        ("Slots", f"{hardware.slots} {hardware.model or 'CPU'}"),
        ("Memory of each GPU", f"{hardware.memory_gib:.1f} GiB" if hardware.model else ""),
        ("Cores", f"{inventory['cores']:,}"),
        ("Memory", f"{inventory['memory_gib']:.1f} GiB"),
        ("Memory for one job", f"{limit:.1f} GiB" if limit else ""),
        ("Disk free", f"{telemetry.disk_free_gib:.1f} GiB" if telemetry else ""),
        ("Driver", inventory.get("driver", "")),
        ("torch", inventory.get("torch", "")),
        ("Python", inventory.get("python", "")),
        ("Sandbox", inventory.get("sandbox") or inventory.get("no_sandbox", "")),
    ]
    return [(word, value) for word, value in found if value]


def holder(slot: Slot, current: list[NodeHold], num_slots: int) -> NodeHold | None:
    """Return the hold that has a slot now; None if nobody has it."""
    return next(
        (hold for hold in current if slot.slot in hold.slots or hold.gpus >= num_slots), None
    )


def sentence(node: Node, current: list[NodeHold]) -> str:
    """Return who has the node, in a sentence."""
    people = list(dict.fromkeys(hold.user for hold in current if hold.user))
    if people:
        verb = "have" if len(people) > 1 else "has"
        return f"{', '.join(people)} {verb} it."
    if node.state != "ready":
        return node.reason
    if not node.reachable:
        return "It is out of reach; it gets no new work."
    return "Nobody has it now."
