"""The nodes: what each is, who has it and how busy it is. Staff may drain one and resume it."""

import asyncio
from datetime import UTC, datetime

from starlette.responses import Response

from dashboard.rendering import redirect, render
from dashboard.sentences import nodes_sentence
from dashboard.viewer import Viewer
from trainyard.views import Node

ACTIONS = ("drain", "resume")
LIMIT = 200


async def show(viewer: Viewer) -> Response:
    """The whole page."""
    return render("nodes.html", await _context(viewer))


async def rows(viewer: Viewer) -> Response:
    """The table's body as it is now."""
    return render("node_rows.html", await _context(viewer))


async def act(viewer: Viewer) -> Response:
    """Drain or resume."""
    action = str(viewer.request.path_params["action"])
    if action not in ACTIONS:
        return Response("There is no such action.", status_code=404, media_type="text/plain")
    await viewer.call("POST", f"/v1/admin/nodes/{viewer.part('node_id')}/{action}")
    return redirect("/nodes")


async def _context(viewer: Viewer) -> dict[str, object]:
    me, (nodes, has_more) = await asyncio.gather(
        viewer.me(), viewer.page(Node, "/v1/nodes", {"limit": LIMIT})
    )
    return {
        "me": me,
        "section": "nodes",
        "now": datetime.now(UTC),
        "nodes": nodes,
        "has_more": has_more,
        "sentence": nodes_sentence(nodes),
        "silent": [node for node in nodes if node.unreachable_since is not None],
    }
