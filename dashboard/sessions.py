"""Signing in and out, and the page that a first-start link opens."""

import httpx2
from starlette.responses import Response

from dashboard.rendering import redirect, render
from dashboard.viewer import Refused, Viewer, local_path

TRY_AGAIN = (400, 401, 403, 409, 422, 429)  # what the form itself can say; the rest is a page


async def login_form(viewer: Viewer) -> Response:
    """Name and password; or, when a login link was opened, one button.

    Opening the link signs nobody in: mail scanners and previews open links too.
    """
    return _login_page(viewer.query("link"), viewer.query("next"))


async def log_in(viewer: Viewer) -> Response:
    """Take the session's cookie and go where the viewer was going."""
    form = await viewer.form()
    name, target = form.get("name", ""), form.get("next", "")
    body = {"name": name, "password": form.get("password", "")}
    try:
        answer = await viewer.call("POST", "/v1/sessions", json=body)
    except Refused as refused:
        return _login_page("", target, name=name, refused=_for_form(refused))
    return _signed_in(answer, target)


async def log_in_by_link(viewer: Viewer) -> Response:
    """Use up a login link."""
    link = (await viewer.form()).get("link", "")
    try:
        answer = await viewer.call("POST", "/v1/sessions/link", json={"secret": link})
    except Refused as refused:
        return _login_page("", "", refused=_for_form(refused))
    return _signed_in(answer, "")


async def first_start_form(viewer: Viewer) -> Response:
    """Name and password of the first administrator."""
    return render(
        "first_start.html", {"secret": viewer.query("secret"), "name": "", "refused": None}
    )


async def start_first(viewer: Viewer) -> Response:
    """Create the first administrator and sign them in."""
    form = await viewer.form()
    secret, name, password = (form.get(field, "") for field in ("secret", "name", "password"))
    try:
        answer = await viewer.call(
            "POST", "/v1/first-start", json={"secret": secret, "name": name, "password": password}
        )
        if "set-cookie" not in answer.headers:
            answer = await viewer.call(
                "POST", "/v1/sessions", json={"name": name, "password": password}
            )
    except Refused as refused:
        context = {"secret": secret, "name": name, "refused": _for_form(refused)}
        return render("first_start.html", context, status=refused.status)
    return _signed_in(answer, "")


async def log_out(viewer: Viewer) -> Response:
    """End the session, here and on the server."""
    answer = await viewer.call("DELETE", "/v1/sessions/current")
    return _with_cookies(redirect("/login"), answer)


def _login_page(
    link: str, target: str, *, name: str = "", refused: Refused | None = None
) -> Response:
    context = {"link": link, "next": local_path(target), "name": name, "refused": refused}
    return render("login.html", context, status=refused.status if refused else 200)


def _for_form(refused: Refused) -> Refused:
    if refused.status not in TRY_AGAIN:
        raise refused
    return refused


def _signed_in(answer: httpx2.Response, target: str) -> Response:
    return _with_cookies(redirect(local_path(target)), answer)


def _with_cookies(response: Response, answer: httpx2.Response) -> Response:
    """The API's own cookie, as it set it."""
    for cookie in answer.headers.get_list("set-cookie"):
        response.headers.append("set-cookie", cookie)
    return response
