"""One lease: its hours, GPUs, jobs and workbenches, what to do next, and giving it back."""

import asyncio
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime

from starlette.responses import Response

from dashboard.inner_calls import Query
from dashboard.rendering import redirect, render
from dashboard.sentences import lease_can_be_cancelled, lease_share
from dashboard.viewer import ApiProblem, Viewer
from trainyard.transport.decoding import decode
from trainyard.views import Agenda, Job, Lease, Node

ANSWERED = (400, 404, 409, 422, 429)
LIMIT = 100
OPEN = ("booked", "active", "ending")


async def show(viewer: Viewer) -> Response:
    """The whole page."""
    return await _page(viewer, None)


async def release(viewer: Viewer) -> Response:
    """Give a booked lease back, or end an active one early."""
    return await _change(viewer, "release", None)


async def extend(viewer: Viewer) -> Response:
    """Extend a lease by an hour."""
    return await _change(viewer, "extend", {"hours": 1})


async def restore(viewer: Viewer) -> Response:
    """Book a cancelled lease again, if its hours are still free; that makes a new lease."""
    return await _change(viewer, "restore", None)


async def _change(viewer: Viewer, act: str, body: Mapping[str, object] | None) -> Response:
    path = f"/v1/leases/{viewer.part('lease_id')}/{act}"
    answer = await viewer.or_refusal(viewer.call("POST", path, json=body), ANSWERED)
    if isinstance(answer, ApiProblem):
        return await _page(viewer, answer)
    return redirect(f"/leases/{decode(Lease, answer.json()).id}")


async def _page(viewer: Viewer, refused: ApiProblem | None) -> Response:
    lease_id = viewer.part("lease_id")
    me, lease = await asyncio.gather(viewer.me(), viewer.get(Lease, f"/v1/leases/{lease_id}"))
    asked: Query = {"lease": lease.id, "user": lease.user, "limit": LIMIT}
    (jobs, has_more), (agendas, _), node = await asyncio.gather(
        viewer.page(Job, "/v1/jobs", asked),
        viewer.page(Agenda, "/v1/agendas", {"limit": LIMIT}),
        viewer.or_refusal(viewer.get(Node, f"/v1/nodes/{viewer.quoted(lease.node)}"), (404,)),
    )
    is_own = lease.user == me.user.name
    context = {
        "me": me,
        "section": "calendar",
        "lease": lease,
        "share": lease_share(lease),
        "now": datetime.now(UTC),
        "jobs": [job for job in jobs if "workbench" not in job.spec],
        "benches": [job for job in jobs if "workbench" in job.spec],
        "has_more": has_more,
        "agenda": next((one for one in agendas if lease.id in one.leases), None),
        "node": node if isinstance(node, Node) else None,
        "is_open": lease.state in OPEN,
        "is_own": is_own,
        "can_start": is_own and lease_can_be_cancelled(lease),
        "can_release": lease_can_be_cancelled(lease),
        "can_restore": is_own and lease.state == "cancelled" and lease.hold_end > datetime.now(UTC),
        "new_key": lambda: secrets.token_urlsafe(16),
        "refused": refused,
    }
    return render("lease.html", context, status=refused.status if refused else 200)
