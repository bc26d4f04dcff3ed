"""The calendar: nodes by hours, what is booked, and booking by a click or a drag.

The server gives the nodes and who looks; the hours are the browser's, because days begin and end in
its zone, and are read from the API with every look.
"""

import asyncio

from starlette.responses import Response

from dashboard.rendering import render
from dashboard.viewer import Viewer
from trainyard.views import Node

LIMIT = 200


async def show(viewer: Viewer) -> Response:
    """The whole page."""
    me, (nodes, has_more) = await asyncio.gather(
        viewer.me(), viewer.page(Node, "/v1/nodes", {"limit": LIMIT})
    )
    shown = [
        {
            "name": node.name,
            "class": node.node_class,
            "state": node.state,
            "reason": node.reason,
            "slots": node.hardware.slots,
            "device": node.hardware.device,
            "model": node.hardware.model or "",
            "memory_gib": node.hardware.memory_gib,
        }
        for node in sorted(nodes, key=lambda node: node.name)
        if node.state != "retired"
    ]
    context = {
        "me": me,
        "section": "calendar",
        "nodes": shown,
        "classes": sorted({node.node_class for node in nodes if node.state != "retired"}),
        "has_more": has_more,
    }
    return render("calendar.html", context)
