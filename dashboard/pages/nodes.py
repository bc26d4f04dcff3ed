"""The nodes: what each is, who has it, how busy it is; staff take one out of service and back."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime

from starlette.responses import Response

from dashboard.formats import counted
from dashboard.questions import NODE_ACTS, before_node_act
from dashboard.rendering import redirect, render
from dashboard.said_once import forget, redirect_saying, said_to
from dashboard.sentences import nodes_sentence
from dashboard.viewer import ApiProblem, Viewer
from trainyard.transport.decoding import decode
from trainyard.views import GpuReading, InTheWay, Node, Slot, Telemetry

# What staff may do, by a node's state; the API has the last word.
ACTS = {
    "ready": ("drain", "maintenance", "quarantine"),
    "draining": ("resume", "maintenance", "quarantine"),
    "maintenance": ("resume", "retire"),
    "dirty": ("quarantine", "maintenance"),
    "quarantined": ("resume", "maintenance", "retire"),
}
WORDS = {
    "drain": "Drain: finish running jobs, take no new work",
    "maintenance": "Maintenance when idle",
    "quarantine": "Quarantine: suspected faulty",
    "resume": "Resume: take work again",
    "retire": "Retire permanently",
}
ACTIONS = tuple(WORDS)
ANSWERED = (403, 404, 409, 422)
LIMIT = 200
BUSY_PCT = 5  # per cent; a GPU below it does nothing


async def show(viewer: Viewer) -> Response:
    """The whole page."""
    return forget(viewer, render("nodes.html", await _context(viewer)))


async def rows(viewer: Viewer) -> Response:
    """The table's body as it is now."""
    return render("node_rows.html", await _context(viewer))


async def ask(viewer: Viewer) -> Response:
    """Ask before an act that takes a node out of service, with what it touches."""
    action = str(viewer.request.path_params["action"])
    if action not in NODE_ACTS:
        return redirect("/nodes")
    return await _question(viewer, action, None, "")


async def act(viewer: Viewer) -> Response:
    """Take a node out of service, for a reason, or put it back."""
    action = str(viewer.request.path_params["action"])
    if action not in ACTIONS:
        return Response("This action does not exist.", status_code=404, media_type="text/plain")
    reason = (await viewer.form()).get("reason", "").strip()
    path = f"/v1/admin/nodes/{viewer.part('node_id')}/{action}"
    answer = await viewer.or_refusal(
        viewer.call("POST", path, json={"reason": reason} if reason else None), ANSWERED
    )
    if isinstance(answer, ApiProblem):
        if action in NODE_ACTS and answer.status in (409, 422):
            return await _question(viewer, action, answer, reason)
        context = {**await _context(viewer), "refused": answer}
        return render("nodes.html", context, status=answer.status)
    node = decode(Node, answer.json())
    undo = node.id if "resume" in ACTS.get(node.state, ()) else ""
    return redirect_saying(viewer, "/nodes", done=f"{node.name}: {node.state}", undo=undo)


async def _question(
    viewer: Viewer, action: str, refused: ApiProblem | None, reason: str
) -> Response:
    node = viewer.part("node_id")
    me, found = await asyncio.gather(
        viewer.me(), viewer.get(InTheWay, f"/v1/admin/nodes/{node}/in-the-way")
    )
    context = {
        "me": me,
        "section": "nodes",
        "question": before_node_act(node, action, found),
        "refused": refused,
        "reason": reason,
    }
    return render("question.html", context, status=refused.status if refused else 200)


async def _context(viewer: Viewer) -> dict[str, object]:
    me, (nodes, has_more) = await asyncio.gather(
        viewer.me(), viewer.page(Node, "/v1/nodes", {"limit": LIMIT})
    )
    return {
        **_summary(nodes),
        "refused": None,
        "said": said_to(viewer),
        "asks": set(NODE_ACTS),
        "classes": sorted({node.node_class for node in nodes}),
        "acts": ACTS,
        "unfit": unfit,
        "out_of_use": out_of_use,
        "throttled": throttled,
        "memory_in_use": memory_in_use,
        "in_use": in_use,
        "sharing": sharing,
        "reading": reading,
        "words": WORDS,
        "me": me,
        "section": "nodes",
        "now": datetime.now(UTC),
        "nodes": nodes,
        "has_more": has_more,
        "sentence": nodes_sentence(nodes),
        "silent": [node for node in nodes if node.unreachable_since is not None],
    }


def unfit(node: Node) -> list[Mapping[str, object]]:
    """The GPUs of a node that get no jobs, with their health and its reason."""
    gpus = node.inventory.get("gpus", [])
    return [gpu for gpu in gpus if gpu.get("health", "healthy") != "healthy"]


def out_of_use(node: Node) -> list[Slot]:
    """The slots of a node on which no job starts now, without those that `unfit` names."""
    told = {gpu["index"] for gpu in unfit(node)}
    return [slot for slot in node.slots if slot.state != "ready" and slot.slot not in told]


def sharing(node: Node) -> str:
    """Return the way in which a node is leased, whole or by parts, with the reason."""
    words = {"full": "leased by parts", "recipes": "leased by parts to recipes"}
    because = f": {node.no_sharing}" if node.no_sharing else ""
    return f"{words.get(node.sharing, 'leased whole')}{because}"


def throttled(telemetry: Telemetry) -> set[int]:
    """The GPUs whose clock is held down now."""
    return {gpu.index for gpu in telemetry.gpus if gpu.throttled}


def memory_in_use(telemetry: Telemetry) -> float | None:
    """Return the GiB in use on a node's GPUs, or in its memory without any; None if no GPU
    answers."""
    if not telemetry.gpu_memory_used_gib:
        return telemetry.memory_used_gib
    known = [gib for gib in telemetry.gpu_memory_used_gib if gib is not None]
    return sum(known) if known else None


def in_use(node: Node) -> str:
    """Return the range of the use of a node's GPUs in words."""
    told = node.telemetry.gpu_pct if node.telemetry else ()
    known = [pct for pct in told if pct is not None]
    words = [f"busy {min(known):.0f} to {max(known):.0f} percent"] if known else []
    if unknown := len(told) - len(known):
        words.append("use not known" if not known else f"use of {unknown} not known")
    return f"{counted(len(told), 'GPU')}, {', '.join(words)}"


def reading(gpu: GpuReading) -> str:
    """A GPU's clock, temperature, power and links in words; what it does not report is left out."""
    facts = []
    if gpu.clock_mhz is not None:
        limit = f" of {gpu.max_clock_mhz:,}" if gpu.max_clock_mhz else ""
        facts.append(f"{gpu.clock_mhz:,}{limit} MHz")
    if gpu.temperature_c is not None:
        facts.append(f"{gpu.temperature_c} \u00b0C")
    if gpu.power_w is not None:
        limit = f" of {gpu.power_limit_w:.0f}" if gpu.power_limit_w else ""
        facts.append(f"{gpu.power_w:.0f}{limit} W")
    if gpu.pcie_width:
        is_narrow = gpu.max_pcie_width and gpu.pcie_width < gpu.max_pcie_width
        limit = f" of x{gpu.max_pcie_width}" if is_narrow else ""
        facts.append(f"PCIe {gpu.pcie_generation} x{gpu.pcie_width}{limit}")
    if gpu.pcie_replays:
        facts.append(f"{gpu.pcie_replays:,} PCIe replays")
    if gpu.nvlink_errors:
        facts.append(f"{gpu.nvlink_errors:,} NVLink errors")
    if gpu.throttled:
        facts.append(f"held down by {', '.join(gpu.throttled)}")
    return f"GPU {gpu.index}: {', '.join(facts) or 'reports nothing'}"


def _summary(nodes: list[Node]) -> dict[str, object]:
    """What the tiles say."""
    gpus = [node for node in nodes if node.hardware.device == "cuda"]
    told = [pct for node in gpus if node.telemetry for pct in node.telemetry.gpu_pct]
    working = [pct for pct in told if pct is not None and pct >= BUSY_PCT]
    states = Counter(node.state for node in nodes if node.state != "ready")
    return {
        "ready": sum(node.state == "ready" and node.reachable for node in nodes),
        "not_ready": ", ".join(f"{number} {state}" for state, number in states.items()),
        "gpus": sum(node.hardware.slots for node in gpus),
        "slots": sum(node.hardware.slots for node in nodes if node.hardware.device != "cuda"),
        "busy_gpus": len(working),
        "mean_busy": sum(working) / len(working) if working else None,
        "unknown_use": told.count(None),
        "held": sum(node.user is not None for node in nodes),
        "idle_held": sum(node.user is not None and not node.jobs for node in nodes),
        "free": sum(
            node.state == "ready" and node.reachable and node.user is None and node.free_at is None
            for node in nodes
        ),
    }
