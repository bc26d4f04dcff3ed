"""Settings that are unsafe: what this installation could do better, for administrators."""

import asyncio

from starlette.responses import Response

from dashboard.rendering import render
from dashboard.viewer import Viewer
from trainyard.views import UnsafeSetting


async def show(viewer: Viewer) -> Response:
    """Show the unsafe settings found, the most dangerous first."""
    me, (found, _) = await asyncio.gather(
        viewer.me(), viewer.page(UnsafeSetting, "/v1/admin/unsafe-settings")
    )
    context = {
        "me": me,
        "section": "admin",
        "part": "settings",
        "found": found,
        "dangers": sum(one.level == "danger" for one in found),
    }
    return render("admin_settings.html", context)
