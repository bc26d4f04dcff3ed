"""One's own workspace: what it holds, its files, its snapshots. Downloads come from the API."""

import asyncio
from urllib.parse import unquote, urlencode

from starlette.responses import Response

from dashboard.rendering import redirect, render
from dashboard.sent_file import read_sent_file
from dashboard.viewer import ApiProblem, Viewer
from trainyard.views import Workspace, WorkspaceEntry, WorkspaceSnapshot

ANSWERED = (403, 404, 409, 422)
PUT_ANSWERED = (400, *ANSWERED, 413, 507)
MOST_LISTED = 500


async def show(viewer: Viewer) -> Response:
    """The whole page."""
    return await _page(viewer, viewer.query("below"), None)


async def put(viewer: Viewer) -> Response:
    """Put the one file that a browser without scripts has sent into the folder that is shown."""
    sent = await read_sent_file(viewer)
    below = unquote(sent.fields.get("below", ""))
    path = f"{below}/{sent.name}" if below else sent.name
    answer = await viewer.or_refusal(
        viewer.call("POST", "/v1/workspace/files", query={"path": path}, content=sent.content),
        PUT_ANSWERED,
    )
    if isinstance(answer, ApiProblem):
        return await _page(viewer, below, answer)
    return redirect(f"/workspace?{urlencode({'below': below})}")


async def delete(viewer: Viewer) -> Response:
    """Delete a file or folder."""
    path = unquote((await viewer.form()).get("path", ""))  # no odd character stands in the page
    answer = await viewer.or_refusal(
        viewer.call("DELETE", "/v1/workspace/files", query={"path": path}), ANSWERED
    )
    if isinstance(answer, ApiProblem):
        return await _page(viewer, "", answer)
    return redirect("/workspace")


async def restore(viewer: Viewer) -> Response:
    """Go back to a snapshot."""
    answer = await viewer.or_refusal(
        viewer.call("POST", f"/v1/workspace/snapshots/{viewer.part('snapshot_id')}/restore"),
        ANSWERED,
    )
    if isinstance(answer, ApiProblem):
        return await _page(viewer, "", answer)
    return redirect("/workspace")


async def _page(viewer: Viewer, below: str, refused: ApiProblem | None) -> Response:
    me, workspace, (entries, has_more), (snapshots, _) = await asyncio.gather(
        viewer.me(),
        viewer.get(Workspace, "/v1/workspace"),
        viewer.page(
            WorkspaceEntry, "/v1/workspace/files", {"below": below, "limit": str(MOST_LISTED)}
        ),
        viewer.page(WorkspaceSnapshot, "/v1/workspace/snapshots"),
    )
    context = {
        "me": me,
        "section": "workbenches",
        "workspace": workspace,
        "below": below,
        "above": above(below),
        "entries": [(entry, last_name(entry.path)) for entry in folders_first(entries)],
        "has_more": has_more,
        "snapshots": snapshots,
        "refused": refused,
    }
    return render("workspace.html", context, status=refused.status if refused else 200)


def folders_first(entries: list[WorkspaceEntry]) -> list[WorkspaceEntry]:
    """Return entries with the folders before everything else."""
    return sorted(entries, key=lambda entry: entry.kind != "folder")


def above(below: str) -> list[tuple[str, str]]:
    """Return (path, name) of a folder and those above it, outermost first."""
    parts = [part for part in below.split("/") if part]
    return [("/".join(parts[: count + 1]), part) for count, part in enumerate(parts)]


def last_name(path: str) -> str:
    """Return the last part of a path."""
    return path.rpartition("/")[2]
