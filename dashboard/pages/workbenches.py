"""Workbenches: those that wait or run, a form to start one, and a terminal of one."""

import asyncio
import secrets

from starlette.responses import Response

from dashboard.rendering import CONTENT_SECURITY_POLICY, redirect, render
from dashboard.viewer import ApiProblem, Viewer
from trainyard.transport.decoding import decode
from trainyard.views import Job, Lease, Workbench, WorkbenchEntry

ANSWERED = (400, 404, 409, 422, 429)
NOW = "now"
# xterm.js measures its cells and colours them by style elements that it makes.
TERMINAL_POLICY = CONTENT_SECURITY_POLICY.replace(
    "style-src 'self'", "style-src 'self' 'unsafe-inline'"
)


async def show(viewer: Viewer) -> Response:
    """The whole page; `?lease=` chooses a lease in the form."""
    lease = viewer.query("lease")
    return await _page(viewer, {"lease": lease} if lease else {}, None)


async def start(viewer: Viewer) -> Response:
    """Start one, in a lease or now."""
    fields = await viewer.form()
    lease = fields.get("lease", NOW)
    gpus = fields.get("gpus", "1")
    kind = fields.get("kind", "terminal")
    spec: dict[str, object] = {
        "name": fields.get("name") or kind,
        "workbench": {"kind": kind, "when_idle": fields.get("when_idle") or "keep"},
        "resources": {
            "ranks_per_node": int(gpus) if gpus.isdecimal() else gpus,
            "wall_time": fields.get("wall_time") or ("24h" if lease != NOW else "50min"),
        },
    }
    if lease != NOW:
        spec["lease"] = lease
    answer = await viewer.or_refusal(
        viewer.call("POST", "/v1/jobs", json=spec, idempotency_key=fields.get("key") or _new_key()),
        ANSWERED,
    )
    if isinstance(answer, ApiProblem):
        return await _page(viewer, fields, answer)
    return redirect("/workbenches")


async def stop(viewer: Viewer) -> Response:
    """Stop one."""
    return await _act(viewer, "cancel")


async def release(viewer: Viewer) -> Response:
    """Release the sandbox of a job that has failed."""
    return await _act(viewer, "release")


async def _act(viewer: Viewer, word: str) -> Response:
    answer = await viewer.or_refusal(
        viewer.call("POST", f"/v1/jobs/{viewer.part('workbench_id')}/{word}"), ANSWERED
    )
    if isinstance(answer, ApiProblem):
        return await _page(viewer, {}, answer)
    return redirect("/workbenches")


async def enter(viewer: Viewer) -> Response:
    """Lead the browser to the workbench's own origin, by an address that works once."""
    me, entry = await asyncio.gather(
        viewer.me(),
        viewer.call("POST", f"/v1/workbenches/{viewer.part('workbench_id')}/entry"),
    )
    found = decode(WorkbenchEntry, entry.json())
    return render("workbench_entry.html", {"me": me, "section": "workbenches", "entry": found})


async def terminal(viewer: Viewer) -> Response:
    """A terminal of one. Its bytes go from the browser to the API directly."""
    me, job = await asyncio.gather(
        viewer.me(), viewer.get(Job, f"/v1/jobs/{viewer.part('workbench_id')}")
    )
    context = {"me": me, "section": "workbenches", "job": job, "is_own": job.user == me.user.name}
    answer = render("workbench.html", context)
    answer.headers["Content-Security-Policy"] = TERMINAL_POLICY
    return answer


async def _page(viewer: Viewer, fields: dict[str, str], refused: ApiProblem | None) -> Response:
    me, (benches, _), (leases, _) = await asyncio.gather(
        viewer.me(),
        viewer.page(Workbench, "/v1/workbenches"),
        viewer.page(Lease, "/v1/leases"),
    )
    context = {
        "me": me,
        "section": "workbenches",
        "benches": benches,
        "leases": [
            lease
            for lease in leases
            if lease.state in ("booked", "active") and lease.user == me.user.name
        ],
        "fields": fields,
        "refused": refused,
        "key": _new_key(),
    }
    return render("workbenches.html", context, status=refused.status if refused else 200)


def _new_key() -> str:
    return secrets.token_urlsafe(16)
