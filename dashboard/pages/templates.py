"""Templates: the list of them, and one as a form that starts its job or agenda."""

import asyncio
import secrets

from starlette.responses import Response

from dashboard.rendering import redirect, render
from dashboard.sentences import lease_words
from dashboard.template_form import fields_of, locked_of, values_of
from dashboard.viewer import ApiProblem, Viewer
from trainyard.transport.decoding import decode
from trainyard.views import Lease, Start, Template

LIMIT = 100
ANSWERED = (400, 404, 409, 422, 429)


async def show_all(viewer: Viewer) -> Response:
    """The newest templates."""
    me, (templates, has_more) = await asyncio.gather(
        viewer.me(), viewer.page(Template, "/v1/templates", {"limit": LIMIT})
    )
    context = {"me": me, "section": "jobs", "templates": templates, "has_more": has_more}
    return render("templates.html", context)


async def show(viewer: Viewer) -> Response:
    """One template: its open fields as a form, its locked ones beside them."""
    return await _page(viewer, {}, None)


async def start(viewer: Viewer) -> Response:
    """Submit what the form makes of it."""
    path = f"/v1/templates/{viewer.part('template_id')}"
    form, template = await viewer.form(), await viewer.get(Template, path)
    wanted: dict[str, object] = {
        "values": values_of(template, form),
        "anyway": form.get("anyway") == "yes",
    }
    if form.get("lease"):
        wanted["lease"] = form["lease"]
    key = form.get("key") or secrets.token_urlsafe(16)
    answer = await viewer.or_refusal(
        viewer.call("POST", f"{path}/start", json=wanted, idempotency_key=key), ANSWERED
    )
    if isinstance(answer, ApiProblem):
        return await _page(viewer, form, answer)
    made = decode(Start, answer.json())
    return redirect(f"/agendas/{made.agenda}" if made.agenda else f"/jobs/{made.job}")


async def delete(viewer: Viewer) -> Response:
    """Delete one of one's own."""
    await viewer.call("DELETE", f"/v1/templates/{viewer.part('template_id')}")
    return redirect("/templates")


async def _page(viewer: Viewer, sent: dict[str, str], refused: ApiProblem | None) -> Response:
    path = f"/v1/templates/{viewer.part('template_id')}"
    me, template, (leases, _) = await asyncio.gather(
        viewer.me(),
        viewer.get(Template, path),
        viewer.page(Lease, "/v1/leases", {"state": ["booked", "active"]}),
    )
    context = {
        "me": me,
        "section": "jobs",
        "template": template,
        "fields": fields_of(template, sent),
        "locked": list(locked_of(template.spec, template)),
        "leases": [(lease.id, lease_words(lease)) for lease in leases if lease.kind == "booked"],
        "chosen": sent.get("lease", viewer.query("lease")),
        "key": secrets.token_urlsafe(16),
        "refused": refused,
    }
    return render("template.html", context, status=refused.status if refused else 200)
