"""Enrolment of a node: a token that is shown once, with the command to paste there."""

from starlette.responses import Response

from dashboard.rendering import render
from dashboard.viewer import ApiProblem, Viewer
from trainyard.transport.decoding import decode
from trainyard.views import Enrolment

ANSWERED = (403, 409, 422)


async def show(viewer: Viewer) -> Response:
    """The form."""
    return await _page(viewer, {})


async def make(viewer: Viewer) -> Response:
    """Make a token; this answer alone shows it."""
    form = {name: value.strip() for name, value in (await viewer.form()).items()}
    body = {name: form[name] for name in ("name", "node_class") if form.get(name)}
    answer = await viewer.or_refusal(
        viewer.call("POST", "/v1/admin/enrolments", json=body), ANSWERED
    )
    if isinstance(answer, ApiProblem):
        return await _page(viewer, form, refused=answer)
    return await _page(viewer, form, made=decode(Enrolment, answer.json()))


async def _page(
    viewer: Viewer,
    form: dict[str, str],
    *,
    made: Enrolment | None = None,
    refused: ApiProblem | None = None,
) -> Response:
    context = {
        "me": await viewer.me(),
        "section": "nodes",
        "form": form,
        "made": made,
        "refused": refused,
    }
    return render("enrolment.html", context, status=refused.status if refused else 200)
