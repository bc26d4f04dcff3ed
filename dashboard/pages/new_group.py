"""Forms for several jobs at once: an agenda for a lease, and a study of one job."""

import asyncio
import secrets

from starlette.responses import Response

from dashboard.examples import EXAMPLES, read_examples
from dashboard.rendering import redirect, render
from dashboard.sentences import lease_words
from dashboard.viewer import ApiProblem, Viewer
from trainyard.transport.decoding import decode
from trainyard.views import Agenda, AgendaPlan, Lease, Study

ANSWERED = (400, 404, 409, 413, 415, 422, 429)


async def agenda_form(viewer: Viewer) -> Response:
    """An agenda that works, to change."""
    text = (EXAMPLES / "agendas" / "lab-1.yaml").read_text("utf-8")
    return await _agenda_page(viewer, {"spec": text, "lease": viewer.query("lease")})


async def plan_agenda(viewer: Viewer) -> Response:
    """Show whether all jobs of an agenda fit into the lease; nothing is submitted."""
    form = await viewer.form()
    query = {"lease": form.get("lease", "")}
    answer = await viewer.or_refusal(
        viewer.call("POST", "/v1/agendas/plan", query=query, yaml=form.get("spec", "")),
        ANSWERED,
    )
    if isinstance(answer, ApiProblem):
        return await _agenda_page(viewer, form, refused=answer)
    return await _agenda_page(viewer, form, plan=decode(AgendaPlan, answer.json()))


async def submit_agenda(viewer: Viewer) -> Response:
    """Submit all jobs of an agenda, or none."""
    form = await viewer.form()
    query = {"lease": form.get("lease", "")} | ({"anyway": "true"} if "anyway" in form else {})
    answer = await viewer.or_refusal(
        viewer.call(
            "POST",
            "/v1/agendas",
            query=query,
            yaml=form.get("spec", ""),
            idempotency_key=form.get("key") or _new_key(),
        ),
        ANSWERED,
    )
    if isinstance(answer, ApiProblem):
        return await _agenda_page(viewer, form, refused=answer)
    return redirect(f"/agendas/{decode(Agenda, answer.json()).id}")


async def study_form(viewer: Viewer) -> Response:
    """A job that works, to study."""
    return await _study_page(viewer, {"spec": next(iter(read_examples().values())), "ranks": "1,2"})


async def submit_study(viewer: Viewer) -> Response:
    """Submit one job for each number of ranks, or for each schedule; all or none."""
    form = await viewer.form()
    asked = {name: form.get(name, "").strip() for name in ("ranks", "schedules")}
    query = {name: value for name, value in asked.items() if value}
    if form.get("scaling") == "weak":
        query["scaling"] = "weak"
    answer = await viewer.or_refusal(
        viewer.call(
            "POST",
            "/v1/studies",
            query=query,
            yaml=form.get("spec", ""),
            idempotency_key=form.get("key") or _new_key(),
        ),
        ANSWERED,
    )
    if isinstance(answer, ApiProblem):
        return await _study_page(viewer, form, refused=answer)
    return redirect(f"/studies/{decode(Study, answer.json()).id}")


async def _agenda_page(
    viewer: Viewer,
    form: dict[str, str],
    *,
    plan: AgendaPlan | None = None,
    refused: ApiProblem | None = None,
) -> Response:
    me, (leases, _) = await asyncio.gather(
        viewer.me(), viewer.page(Lease, "/v1/leases", {"state": ["booked", "active"]})
    )
    context = {
        "me": me,
        "section": "jobs",
        "form": form,
        "leases": [(lease.id, lease_words(lease)) for lease in leases if lease.kind == "booked"],
        "plan": plan,
        "refused": refused,
        "key": _new_key(),
    }
    return render("new_agenda.html", context, status=refused.status if refused else 200)


async def _study_page(
    viewer: Viewer, form: dict[str, str], *, refused: ApiProblem | None = None
) -> Response:
    context = {
        "me": await viewer.me(),
        "section": "jobs",
        "form": form,
        "refused": refused,
        "key": _new_key(),
    }
    return render("new_study.html", context, status=refused.status if refused else 200)


def _new_key() -> str:
    return secrets.token_urlsafe(16)
