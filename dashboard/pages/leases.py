"""Leases: the blocks of hours that are booked, and a form to book one."""

import asyncio
import secrets
from datetime import UTC, datetime

from starlette.responses import Response

from dashboard.rendering import redirect, render
from dashboard.room import HOURS, rooms, sizes_sold
from dashboard.sentences import lease_can_be_cancelled, lease_share
from dashboard.viewer import ApiProblem, Viewer
from trainyard.transport.decoding import decode
from trainyard.views import Agenda, Availability, Lease, Node

ANSWERED = (400, 404, 409, 422, 429)
LIMIT = 100


async def show(viewer: Viewer) -> Response:
    """The whole page."""
    return await _page(viewer, {}, None)


async def book(viewer: Viewer) -> Response:
    """Book a block. The form's script adds the browser's offset; without it the time is UTC."""
    fields = await viewer.form()
    local = fields.get("start_local", "")
    start = fields.get("start") or (f"{local}Z" if local else "")
    try:
        hours: int | str = int(fields.get("hours", ""))
    except ValueError:
        hours = fields.get("hours", "")  # the API says what is wrong with it
    body: dict[str, object] = {
        "node_class": fields.get("node_class") or None,
        "start": start,
        "hours": hours,
    }
    if gpus := fields.get("gpus", ""):
        body["gpus"] = int(gpus) if gpus.isdecimal() else gpus
    answer = await viewer.or_refusal(
        viewer.call(
            "POST", "/v1/leases", json=body, idempotency_key=fields.get("key") or _new_key()
        ),
        ANSWERED,
    )
    if isinstance(answer, ApiProblem):
        return await _page(viewer, fields, answer)
    return redirect(f"/leases/{decode(Lease, answer.json()).id}")


async def _page(viewer: Viewer, fields: dict[str, str], refused: ApiProblem | None) -> Response:
    now = datetime.now(UTC)
    ahead: dict[str, str | int | list[str] | None] = {"start": now.isoformat(), "hours": HOURS}
    me, (leases, has_more), (nodes, _), (agendas, _), available = await asyncio.gather(
        viewer.me(),
        viewer.page(Lease, "/v1/leases", {"limit": LIMIT}),
        viewer.page(Node, "/v1/nodes"),
        viewer.page(Agenda, "/v1/agendas", {"limit": LIMIT}),
        viewer.get(Availability, "/v1/leases/availability", ahead),
    )
    context = {
        "me": me,
        "section": "calendar",
        "now": now,
        "current": sorted(
            (lease for lease in leases if lease.state in ("booked", "active", "ending")),
            key=lambda lease: lease.hold_start,
        ),
        "past": [lease for lease in leases if lease.state in ("ended", "cancelled")],
        "has_more": has_more,
        "agendas": {  # the newest of each
            lease_id: agenda for agenda in reversed(agendas) for lease_id in agenda.leases
        },
        "shares": {lease.id: lease_share(lease) for lease in leases},
        "startable": {
            lease.id
            for lease in leases
            if lease.user == me.user.name and lease_can_be_cancelled(lease)
        },
        "new_key": _new_key,
        "cancellable": {lease.id for lease in leases if lease_can_be_cancelled(lease)},
        "classes": sorted({node.node_class for node in nodes}),
        "sizes": sizes_sold(nodes, available),
        "rooms": list(rooms(nodes, available)),
        "fields": fields,
        "refused": refused,
        "key": _new_key(),
    }
    return render("leases.html", context, status=refused.status if refused else 200)


def _new_key() -> str:
    return secrets.token_urlsafe(16)
