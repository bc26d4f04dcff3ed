"""Things that the viewer lets others read: all of them, and one with those who may read it."""

import asyncio

from starlette.responses import Response

from dashboard.rendering import redirect, render
from dashboard.viewer import ApiProblem, Viewer
from trainyard.views import Share

LIMIT = 200
PATHS = {
    "dataset": "datasets",
    "model": "models",
    "tokenizer": "tokenizers",
    "template": "templates",
    "job": "jobs",
    "agenda": "agendas",
    "study": "studies",
    "report": "reports",
}
ANSWERED = (404, 409, 422)


async def show_all(viewer: Viewer) -> Response:
    """All that the viewer shares, newest first."""
    me, (shares, has_more) = await asyncio.gather(
        viewer.me(), viewer.page(Share, "/v1/shares", {"limit": LIMIT})
    )
    context = {"me": me, "section": "datasets", "shares": shares, "has_more": has_more}
    return render("shares.html", context)


async def show(viewer: Viewer) -> Response:
    """One thing: who may read it, and a form to share it with more."""
    return await _page(viewer, None)


async def share(viewer: Viewer) -> Response:
    """Share it with a person, a group or everybody."""
    form = await viewer.form()
    kind, thing = viewer.part("kind"), viewer.part("thing")
    audience, who = form.get("audience", ""), form.get("who", "").strip()
    wanted: dict[str, object] = {"kind": kind, "thing": thing}
    wanted |= {"everybody": True} if audience == "everybody" else {audience: who}
    answer = await viewer.or_refusal(viewer.call("POST", "/v1/shares", json=wanted), ANSWERED)
    if isinstance(answer, ApiProblem):
        return await _page(viewer, answer)
    return redirect(f"/shares/{kind}/{thing}")


async def end(viewer: Viewer) -> Response:
    """End one share."""
    await viewer.call("DELETE", f"/v1/shares/{viewer.part('share_id')}")
    return redirect(f"/shares/{viewer.part('kind')}/{viewer.part('thing')}")


async def _page(viewer: Viewer, refused: ApiProblem | None) -> Response:
    kind, thing = viewer.part("kind"), viewer.part("thing")
    path = f"/v1/{PATHS.get(kind, kind)}/{thing}"
    me, answer, (shares, _) = await asyncio.gather(
        viewer.me(),
        viewer.call("GET", path),
        viewer.page(Share, "/v1/shares", {"kind": kind, "thing": thing, "limit": LIMIT}),
    )
    document = answer.json()
    context = {
        "me": me,
        "section": "datasets",
        "kind": kind,
        "thing": thing,
        "name": document["content"]["title"] if kind == "report" else document["name"],
        "page": f"/{PATHS[kind]}/{thing}" if kind != "tokenizer" else "/tokenizers",
        "shares": shares,
        "refused": refused,
    }
    return render("share.html", context, status=refused.status if refused else 200)
