"""Signing in and out."""

from urllib.parse import quote, unquote

from starlette.responses import Response

from dashboard.inner_calls import Answer
from dashboard.rendering import redirect, render
from dashboard.viewer import ApiProblem, Viewer, local_path

TRY_AGAIN = (400, 401, 403, 409, 422, 429)  # what the form itself can say; the rest is a page


NEXT_COOKIE = "trainyard_next"  # where the viewer was going, while they are at the provider
OIDC_PATH = "/login/oidc"


async def login_form(viewer: Viewer) -> Response:
    """Name and password, or the provider; or, when a login link was opened, one button.

    Opening the link signs nobody in: mail scanners and previews open links too.
    """
    if link := viewer.query("link"):
        return render("login.html", {"link": link})
    return await _login_page(viewer, viewer.query("next"))


async def log_in(viewer: Viewer) -> Response:
    """Take the session's cookie and go where the viewer was going."""
    form = await viewer.form()
    name, target = form.get("name", ""), form.get("next", "")
    body = {"name": name, "password": form.get("password", "")}
    try:
        answer = await viewer.call("POST", "/v1/sessions", json=body)
    except ApiProblem as refused:
        return await _login_page(viewer, target, name=name, refused=for_form(refused))
    return signed_in(answer, target)


async def log_in_by_link(viewer: Viewer) -> Response:
    """Use up a login link."""
    link = (await viewer.form()).get("link", "")
    try:
        answer = await viewer.call("POST", "/v1/sessions/link", json={"secret": link})
    except ApiProblem as refused:
        return await _login_page(viewer, "", refused=for_form(refused))
    return signed_in(answer, "")


async def go_to_provider(viewer: Viewer) -> Response:
    """Redirect to the provider. A link, not a form: our forms may lead nowhere else."""
    target = local_path(viewer.query("next"))
    try:
        answer = await viewer.call("POST", "/v1/sessions/oidc/start")
    except ApiProblem as refused:
        return await _login_page(viewer, target, refused=refused)
    response = _with_cookies(redirect(answer.json()["url"]), answer)
    response.set_cookie(
        NEXT_COOKIE,
        quote(target, safe=""),
        max_age=600,
        httponly=True,
        samesite="lax",
        path=OIDC_PATH,
    )
    return response


async def come_back(viewer: Viewer) -> Response:
    """Handle the return from the provider, with a code, or with its reason for refusing."""
    body = {name: viewer.query(name) for name in ("state", "code", "error", "error_description")}
    target = unquote(viewer.request.cookies.get(NEXT_COOKIE, ""))
    try:
        answer = await viewer.call("POST", "/v1/sessions/oidc", json=body)
    except ApiProblem as refused:
        return await _login_page(viewer, target, refused=refused)
    response = signed_in(answer, target)
    response.delete_cookie(NEXT_COOKIE, path=OIDC_PATH)
    return response


async def log_out(viewer: Viewer) -> Response:
    """End the session, here and on the server."""
    answer = await viewer.call("DELETE", "/v1/sessions/current")
    return _with_cookies(redirect("/login"), answer)


async def _login_page(
    viewer: Viewer, target: str, *, name: str = "", refused: ApiProblem | None = None
) -> Response:
    context = {
        "link": "",
        "next": local_path(target),
        "name": name,
        "refused": refused,
        "provider": (await viewer.call("GET", "/v1/sessions/oidc")).json()["name"],
    }
    return render("login.html", context, status=refused.status if refused else 200)


def for_form(refused: ApiProblem) -> ApiProblem:
    """The refusal, where the form that was sent can show it; else it is raised again."""
    if refused.status not in TRY_AGAIN:
        raise refused
    return refused


def signed_in(answer: Answer, target: str) -> Response:
    """Redirect to `target`, with the session that the API began."""
    return _with_cookies(redirect(local_path(target)), answer)


def _with_cookies(response: Response, answer: Answer) -> Response:
    """The API's own cookie, as it set it."""
    for cookie in answer.headers.getlist("set-cookie"):
        response.headers.append("set-cookie", cookie)
    return response
