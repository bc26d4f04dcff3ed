"""The audit log: who did what, appended and never changed."""

import asyncio
import json

from starlette.responses import Response

from dashboard.rendering import redirect, render
from dashboard.viewer import Viewer
from trainyard.views import AuditEntry

LIMIT = 100


async def start(viewer: Viewer) -> Response:
    """Administration begins with the clean-ups."""
    await viewer.me()
    return redirect("/admin/cleanups")


async def show(viewer: Viewer) -> Response:
    """The newest entries, or those before one."""
    after = viewer.query("after")
    me, (entries, has_more) = await asyncio.gather(
        viewer.me(),
        viewer.page(AuditEntry, "/v1/admin/audit", {"limit": LIMIT, "after": after or None}),
    )
    context = {
        "me": me,
        "section": "admin",
        "part": "audit",
        "entries": [
            (entry, json.dumps(entry.details, ensure_ascii=False) if entry.details else "")
            for entry in entries
        ],
        "has_more": has_more,
        "after": after,
    }
    return render("admin_audit.html", context)
