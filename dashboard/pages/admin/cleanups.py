"""Clean-ups of leases: preview with a reason for every row, then apply exactly that preview."""

from datetime import UTC, datetime
from urllib.parse import quote

from starlette.responses import Response

from dashboard.rendering import redirect, render
from dashboard.viewer import ApiProblem, Viewer
from trainyard.transport.decoding import decode
from trainyard.views import Cleanup

ANSWERED = (400, 403, 409, 422)
WRONGS = {
    "over_quota": "over quota",
    "idle": "idle: nothing has run in it for a while",
    "no_show": "no-show: nobody came, or not often enough",
    "expired_window": "outside its window",
    "orphan": "owner or node gone",
    "unfit": "no longer allowed",
}
RESULTS = {
    "planned": ("bad", "will be removed"),
    "removed": ("bad", "removed"),
    "spared": ("cancelled", "kept"),
    "skipped": ("warn", "skipped"),
    "restored": ("good", "booked again"),
    "lost": ("warn", "hours are taken"),
}


async def show_all(viewer: Viewer) -> Response:
    """The form, and the clean-ups that were."""
    return await _page(viewer, None, None, {})


async def show(viewer: Viewer) -> Response:
    """One clean-up with its rows."""
    found = await viewer.get(Cleanup, f"/v1/admin/cleanups/{viewer.part('cleanup_id')}")
    return await _page(viewer, found, None, {})


async def preview(viewer: Viewer) -> Response:
    """Look for leases; nothing is removed."""
    fields = await viewer.form_fields()
    given = {name: value.strip() for name, value in fields if value.strip()}
    local = given.get("starts_from", "")
    start = given.get("starts_with_offset") or (f"{local}Z" if local else None)
    selector = {
        "wrong": [value for name, value in fields if name == "wrong"],
        "include_active": "include_active" in given,
        "user": given.get("user"),
        "lab": given.get("lab"),
        "node": given.get("node"),
        "starts_from": start,
    }
    body = {"selector": selector, "reason": given.get("reason", "")}
    answer = await viewer.or_refusal(viewer.call("POST", "/v1/admin/cleanups", json=body), ANSWERED)
    if isinstance(answer, ApiProblem):
        return await _page(viewer, None, answer, given)
    return redirect(f"/admin/cleanups/{decode(Cleanup, answer.json()).id}")


async def apply(viewer: Viewer) -> Response:
    """Remove the rows that are still ticked; what changed since the preview is skipped."""
    cleanup_id = viewer.part("cleanup_id")
    fields = await viewer.form_fields()
    kept = {value for name, value in fields if name == "row"}
    listed = {value for name, value in fields if name == "listed"}
    body = {"hash": dict(fields).get("hash", ""), "leave": sorted(listed - kept)}
    return await _acted(viewer, cleanup_id, "apply", body)


async def undo(viewer: Viewer) -> Response:
    """Book what was removed again, where the hours are free."""
    return await _acted(viewer, viewer.part("cleanup_id"), "undo", None)


async def _acted(viewer: Viewer, cleanup_id: str, act: str, body: object) -> Response:
    path = f"/v1/admin/cleanups/{cleanup_id}"
    answer = await viewer.or_refusal(viewer.call("POST", f"{path}/{act}", json=body), ANSWERED)
    if isinstance(answer, ApiProblem):
        return await _page(viewer, await viewer.get(Cleanup, path), answer, {})
    return redirect(f"/admin/cleanups/{quote(cleanup_id, safe='')}")


async def _page(
    viewer: Viewer, found: Cleanup | None, refused: ApiProblem | None, given: dict[str, str]
) -> Response:
    me = await viewer.me()
    earlier, _ = await viewer.page(Cleanup, "/v1/admin/cleanups", {"limit": 20})
    now = datetime.now(UTC)
    chosen = {viewer.query("wrong")} & WRONGS.keys()
    context = {
        "me": me,
        "section": "admin",
        "part": "cleanups",
        "now": now,
        "cleanup": found,
        "earlier": earlier,
        "refused": refused,
        "given": given,
        "chosen": set(found.selector.wrong) if found else chosen or {*WRONGS} - {"unfit"},
        "wrongs": WRONGS,
        "results": RESULTS,
        "can_undo": found is not None
        and found.state == "applied"
        and found.undo_until is not None
        and found.undo_until > now,
    }
    return render("admin_cleanups.html", context, status=refused.status if refused else 200)
