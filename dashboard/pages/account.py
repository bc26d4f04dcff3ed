"""The viewer's account: tokens for scripts, sessions, how notices reach them, signing out."""

import asyncio
from collections.abc import Mapping
from datetime import datetime

from starlette.responses import Response

from dashboard.rendering import redirect, render
from dashboard.said_once import forget, redirect_saying, said_to
from dashboard.viewer import ApiProblem, Viewer
from trainyard.transport.decoding import decode
from trainyard.views import Link, NewToken, Session, Token

ANSWERED = (400, 403, 409, 422, 429)
PAGE = "/account"
SCOPES = {
    "read": "read your own jobs, leases and files",
    "jobs": "submit and steer jobs, upload and delete files",
    "leases": "book, change and cancel leases",
    "account": "tokens, sessions, notices, invitations",
    "all": "everything that your role allows",
}
CHANNELS = {
    "mail": "by mail",
    "webhook": "by webhook",
    "digest": "in one mail a day",
    "off": "only here",
}
NOTICE_FAMILY = {"sent": "good", "waiting": "queued", "failed": "bad", "kept": "info"}


async def show(viewer: Viewer) -> Response:
    """The whole page."""
    return await _page(viewer)


async def make_token(viewer: Viewer) -> Response:
    """A fresh token; the page that follows shows its secret once."""
    sent = await viewer.form_fields()
    fields = dict(sent)
    days = fields.get("expires_in_days", "")
    body = {
        "name": fields.get("name", ""),
        "scopes": [value for field, value in sent if field == "scope"],
        "expires_in_days": int(days) if days.isdigit() else days,
    }
    answer = await viewer.or_refusal(viewer.call("POST", "/v1/tokens", json=body), ANSWERED)
    if isinstance(answer, ApiProblem):
        return await _page(viewer, refused=answer, name=body["name"], scopes=body["scopes"])
    made = decode(NewToken, answer.json())
    return redirect_saying(viewer, PAGE, token=made.name, secret=made.secret)


async def make_link(viewer: Viewer) -> Response:
    """A link that signs the viewer in elsewhere, once."""
    answer = await viewer.call("POST", "/v1/me/login-link")
    link = decode(Link, answer.json())
    ends = link.expires_at.isoformat()
    return redirect_saying(viewer, PAGE, link=link.url, link_ends=ends)


async def revoke_token(viewer: Viewer) -> Response:
    """The token stops working at once."""
    await viewer.call("DELETE", f"/v1/tokens/{viewer.part('token_id')}")
    return redirect(PAGE)


async def end_session(viewer: Viewer) -> Response:
    """End a session; its user is signed out at once."""
    await viewer.call("DELETE", f"/v1/sessions/{viewer.part('session_id')}")
    return redirect(PAGE)


async def set_zone(viewer: Viewer) -> Response:
    """The zone of mails, digests and calendars; pages go by the browser's."""
    body = {"zone": (await viewer.form()).get("zone", "").strip()}
    return await _changed(viewer, "PATCH", "/v1/me", body, "Your time zone is set.")


async def choose(viewer: Viewer) -> Response:
    """Choose the channel of the viewer's notices: the same for all kinds, or kind by kind."""
    fields = await viewer.form()
    kinds = {name[5:]: value for name, value in fields.items() if name[:5] == "kind." and value}
    body = {"every": fields.get("every", "mail"), "kinds": kinds}
    return await _changed(viewer, "PUT", "/v1/me/notifications/choices", body, "Saved.")


async def set_webhook(viewer: Viewer) -> Response:
    """Set the address to which signed notices are posted; the next page shows the secret once."""
    url = (await viewer.form()).get("url", "").strip()
    answer = await viewer.or_refusal(
        viewer.call("PUT", "/v1/me/webhook", json={"url": url}), ANSWERED
    )
    if isinstance(answer, ApiProblem):
        return await _page(viewer, refused=answer)
    return redirect_saying(viewer, PAGE, hook_secret=str(answer.json()["secret"]))


async def forget_webhook(viewer: Viewer) -> Response:
    """Stop posting notices to the webhook."""
    await viewer.call("DELETE", "/v1/me/webhook")
    return redirect(PAGE)


async def revoke_feed(viewer: Viewer) -> Response:
    """Revoke a calendar feed; its address stops answering."""
    await viewer.call("DELETE", f"/v1/calendars/{viewer.part('feed_id')}")
    return redirect(PAGE)


async def send_test(viewer: Viewer) -> Response:
    """A notice to oneself, by mail or webhook."""
    body = {"channel": (await viewer.form()).get("channel", "")}
    done = "A test notice is on its way; the list below shows when it was sent."
    return await _changed(viewer, "POST", "/v1/me/notifications/test", body, done)


async def _changed(
    viewer: Viewer, method: str, path: str, body: Mapping[str, object], done: str
) -> Response:
    answer = await viewer.or_refusal(viewer.call(method, path, json=body), ANSWERED)
    if isinstance(answer, ApiProblem):
        return await _page(viewer, refused=answer)
    return redirect_saying(viewer, PAGE, done=done)


def _missing(choices: Mapping[str, object]) -> dict[str, str]:
    """What each channel still lacks, to stand behind its words."""
    address = ", once you have an address"
    without_mail = {} if choices["email"] else {"mail": address, "digest": address}
    return without_mail | ({} if choices["webhook"] else {"webhook": ", once one is set"})


async def _page(
    viewer: Viewer,
    *,
    refused: ApiProblem | None = None,
    name: object = "",
    scopes: object = ("read", "jobs"),
) -> Response:
    me, (tokens, _), (sessions, _), choices, notices, feeds = await asyncio.gather(
        viewer.me(),
        viewer.page(Token, "/v1/tokens"),
        viewer.page(Session, "/v1/sessions"),
        viewer.call("GET", "/v1/me/notifications/choices"),
        viewer.call("GET", "/v1/me/notifications", query={"limit": 10}),
        viewer.call("GET", "/v1/calendars"),
    )
    client = await viewer.call("GET", "/v1/client")
    kept = choices.json()
    said = said_to(viewer) if refused is None else {}
    context = {
        "me": me,
        "section": "account",
        "tokens": tokens,
        "sessions": sessions,
        "scopes": SCOPES,
        "chosen": scopes,
        "said": said,
        "link_ends": datetime.fromisoformat(said["link_ends"]) if "link_ends" in said else None,
        "refused": refused,
        "name": name,
        "choices": kept,
        "missing": _missing(kept),
        "notices": [
            {**one, "created_at": datetime.fromisoformat(one["created_at"])}
            for one in notices.json()["data"]
        ],
        "feeds": [
            {**one, "created_at": datetime.fromisoformat(one["created_at"])}
            for one in feeds.json()["data"]
        ],
        "client": client.json(),
        "channels": CHANNELS,
        "families": NOTICE_FAMILY,
    }
    response = render("account.html", context, status=refused.status if refused else 200)
    return response if refused else forget(viewer, response)
