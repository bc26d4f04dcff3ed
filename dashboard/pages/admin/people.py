"""People: who has an account, invitations, and what administrators may change."""

import asyncio

from starlette.responses import Response

from dashboard.rendering import redirect, render
from dashboard.said_once import forget, redirect_saying, said_to
from dashboard.viewer import ApiProblem, Viewer
from trainyard.transport.decoding import decode
from trainyard.views import Invite, Lab, Link, NewInvite, User

ANSWERED = (400, 403, 404, 409, 422)
LIMIT = 50
PAGE = "/admin/people"


async def show(viewer: Viewer) -> Response:
    """The list, page by page."""
    return await _page(viewer)


async def invite(viewer: Viewer) -> Response:
    """A link that lets somebody make an account."""
    fields = {name: value.strip() for name, value in (await viewer.form()).items()}
    body = {name: fields[name] for name in ("lab", "email") if fields.get(name)}
    try:
        answer = await viewer.call("POST", "/v1/invites", json=body)
    except ApiProblem as refused:
        if refused.status not in ANSWERED:
            raise
        return await _page(viewer, refused=refused)
    made = decode(NewInvite, answer.json()).url
    return redirect_saying(viewer, PAGE, made=made, made_for="An invitation")


async def act(viewer: Viewer) -> Response:
    """Change a role, shut out, let in again, or make a link for a new password."""
    user_id, action = viewer.part("user_id"), str(viewer.request.path_params["action"])
    changes: dict[str, dict[str, object]] = {
        "disable": {"disabled": True},
        "enable": {"disabled": False},
        "role": {"role": (await viewer.form()).get("role", "")},
    }
    try:
        if action == "password":
            answer = await viewer.call("POST", f"/v1/users/{user_id}/password-link")
            link = decode(Link, answer.json())
            return redirect_saying(viewer, PAGE, made=link.url, made_for="A link to set a password")
        if action not in changes:
            return Response("This action does not exist.", status_code=404, media_type="text/plain")
        await viewer.call("PATCH", f"/v1/users/{user_id}", json=changes[action])
    except ApiProblem as refused:
        if refused.status not in ANSWERED:
            raise
        return await _page(viewer, refused=refused)
    return redirect(PAGE)


async def _page(viewer: Viewer, *, refused: ApiProblem | None = None) -> Response:
    after = viewer.query("after")
    me, (users, has_more), (labs, _), (invites, _) = await asyncio.gather(
        viewer.me(),
        viewer.page(User, "/v1/users", {"limit": LIMIT, "after": after or None}),
        viewer.page(Lab, "/v1/labs"),
        viewer.page(Invite, "/v1/invites"),
    )
    context = {
        "me": me,
        "section": "admin",
        "part": "people",
        "users": users,
        "has_more": has_more,
        "after": after,
        "labs": labs,
        "labs_of": {
            user.name: [lab.name for lab in labs if user.name in lab.members] for user in users
        },
        "invites": [invite for invite in invites if invite.state == "open"],
        "refused": refused,
        "said": {} if refused else said_to(viewer),
    }
    response = render("admin_people.html", context, status=refused.status if refused else 200)
    return response if refused else forget(viewer, response)
