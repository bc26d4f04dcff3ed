"""A forgotten password: a link to set a new one, by mail."""

from starlette.responses import Response

from dashboard.rendering import render
from dashboard.viewer import ApiProblem, Viewer

ANSWERED = (403, 409, 422, 429)


async def show(viewer: Viewer) -> Response:
    """The form."""
    return render("forgotten.html", {"told": "", "email": "", "refused": None})


async def ask(viewer: Viewer) -> Response:
    """Ask for the letter; the answer is the same for every address."""
    email = (await viewer.form()).get("email", "").strip()
    answer = await viewer.or_refusal(
        viewer.call("POST", "/v1/password-letters", json={"email": email}), ANSWERED
    )
    if isinstance(answer, ApiProblem):
        context = {"told": "", "email": email, "refused": answer}
        return render("forgotten.html", context, status=answer.status)
    told = str(answer.json()["message"])
    return render("forgotten.html", {"told": told, "email": "", "refused": None})
