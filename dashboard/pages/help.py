"""Help: the pages of the manual, and the keys."""

from starlette.responses import Response

from dashboard.manual import chapter, chapters
from dashboard.rendering import render
from dashboard.viewer import Viewer

FIRST = ("training", "leases", "scripts", "workbench", "data", "cli")
"""Pages that a newcomer needs, in this order."""


async def show_all(viewer: Viewer) -> Response:
    """The list of pages."""
    me = await viewer.me()
    found = chapters()
    first = [one for name in FIRST for one in found if one.name == name]
    others = [one for one in found if one not in first]
    context = {"me": me, "section": "help", "first": first, "others": others}
    return render("help.html", context)


async def keys(viewer: Viewer) -> Response:
    """The list of keys."""
    return render("help_keys.html", {"me": await viewer.me(), "section": "help"})


async def show(viewer: Viewer) -> Response:
    """One page."""
    me = await viewer.me()
    found = chapter(str(viewer.request.path_params["name"]))
    context = {"me": me, "section": "help", "chapter": found}
    return render("help_chapter.html", context, status=200 if found else 404)
