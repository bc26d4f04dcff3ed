"""The viewer's account: API tokens for scripts, a link for another device, signing out."""

import asyncio

from starlette.responses import Response

from dashboard.rendering import redirect, render
from dashboard.viewer import Refused, Viewer
from trainyard.decoding import decode
from trainyard.views import Link, NewToken, Token

ANSWERED = (400, 409, 422, 429)


async def show(viewer: Viewer) -> Response:
    """The whole page."""
    return await _page(viewer)


async def make_token(viewer: Viewer) -> Response:
    """A fresh token; its secret is in this one answer and nowhere else."""
    fields = await viewer.form()
    days = fields.get("expires_in_days", "")
    body = {
        "name": fields.get("name", ""),
        "expires_in_days": int(days) if days.isdigit() else days,
    }
    try:
        answer = await viewer.call("POST", "/v1/tokens", json=body)
    except Refused as refused:
        if refused.status not in ANSWERED:
            raise
        return await _page(viewer, refused=refused, name=body["name"])
    return await _page(viewer, made=decode(NewToken, answer.json()))


async def make_link(viewer: Viewer) -> Response:
    """A link that signs the viewer in elsewhere, once."""
    answer = await viewer.call("POST", "/v1/me/login-link")
    return await _page(viewer, link=decode(Link, answer.json()))


async def revoke_token(viewer: Viewer) -> Response:
    """The token stops working at once."""
    await viewer.call("DELETE", f"/v1/tokens/{viewer.part('token_id')}")
    return redirect("/account")


async def _page(
    viewer: Viewer,
    *,
    made: NewToken | None = None,
    link: Link | None = None,
    refused: Refused | None = None,
    name: object = "",
) -> Response:
    me, (tokens, _) = await asyncio.gather(viewer.me(), viewer.page(Token, "/v1/tokens"))
    context = {
        "me": me,
        "section": "account",
        "tokens": tokens,
        "made": made,
        "link": link,
        "refused": refused,
        "name": name,
    }
    return render("account.html", context, status=refused.status if refused else 200)
