"""Pages that a single-use link opens: the first start, an invitation, a new password."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.responses import Response

from dashboard.pages.signing_in import for_form, signed_in
from dashboard.rendering import render
from dashboard.viewer import ApiProblem, Viewer

Page = Callable[[Viewer], Awaitable[Response]]


@dataclass(frozen=True)
class Door:
    """Page behind a link: its address and its questions.

    Opening the page does not use the link up.
    """

    path: str
    api: str
    title: str
    heading: str
    welcome: str
    failed: str
    whence: str
    """Place of the secret, for people who come without it."""
    button: str
    asks_name: bool = True


FIRST_START = Door(
    path="/first-start",
    api="/v1/first-start",
    title="First start",
    heading="Welcome to Trainyard",
    welcome="This link creates the first account, an administrator, and works once. If "
    "accounts already exist, it is no longer valid: sign in, or ask an administrator.",
    failed="Account not created",
    whence="printed when the platform was started",
    button="Create the account and sign in",
)
INVITATION = Door(
    path="/invite",
    api="/v1/invites/accept",
    title="Invitation",
    heading="You are invited to Trainyard",
    welcome="This link creates your account, and works once.",
    failed="Account not created",
    whence="in the invitation that you received",
    button="Create the account and sign in",
)
NEW_PASSWORD = Door(
    path="/new-password",
    api="/v1/new-password",
    title="New password",
    heading="Set a new password",
    welcome="This link sets your password once. It ends your sessions on all other devices "
    "and revokes your tokens.",
    failed="Password not set",
    whence="in the link that an administrator created for you",
    button="Set the password and sign in",
    asks_name=False,
)


def showing(door: Door) -> Page:
    """The page with the door's form."""

    async def show(viewer: Viewer) -> Response:
        return _page(door, viewer.query("secret"), "")

    return show


def opening(door: Door) -> Page:
    """Return the handler of the door's form, which uses the link up and signs in."""

    async def go_in(viewer: Viewer) -> Response:
        form = await viewer.form()
        secret, name, password = (form.get(field, "") for field in ("secret", "name", "password"))
        body = {"secret": secret, "password": password}
        if door.asks_name:
            body["name"] = name
        try:
            answer = await viewer.call("POST", door.api, json=body)
            if "set-cookie" not in answer.headers:
                login = {"name": name, "password": password}
                answer = await viewer.call("POST", "/v1/sessions", json=login)
        except ApiProblem as refused:
            return _page(door, secret, name, refused=for_form(refused))
        return signed_in(answer, "")

    return go_in


def _page(door: Door, secret: str, name: str, *, refused: ApiProblem | None = None) -> Response:
    context = {"door": door, "secret": secret, "name": name, "refused": refused}
    return render("door.html", context, status=refused.status if refused else 200)
