"""People: who has an account, invitations, and what administrators may change."""

import asyncio

from starlette.responses import Response

from dashboard.questions import before_disabling, before_role
from dashboard.rendering import redirect, render
from dashboard.said_once import forget, redirect_saying, said_to
from dashboard.sentences import LIVE
from dashboard.viewer import ApiProblem, Viewer
from trainyard.transport.decoding import decode
from trainyard.views import Invite, Job, Lab, Lease, Link, NewInvite, User

ANSWERED = (400, 403, 404, 409, 422)
LIMIT = 50
PAGE = "/admin/people"
ASKS = ("disable", "role")


async def show(viewer: Viewer) -> Response:
    """The list, page by page."""
    return await _page(viewer)


async def invite(viewer: Viewer) -> Response:
    """A link that lets somebody make an account."""
    fields = {name: value.strip() for name, value in (await viewer.form()).items()}
    body = {name: fields[name] for name in ("lab", "email") if fields.get(name)}
    answer = await viewer.or_refusal(viewer.call("POST", "/v1/invites", json=body), ANSWERED)
    if isinstance(answer, ApiProblem):
        return await _page(viewer, refused=answer)
    made = decode(NewInvite, answer.json())
    if "mail" in fields:
        sent = await viewer.or_refusal(
            viewer.call("POST", f"/v1/invites/{made.id}/letter"), ANSWERED
        )
        if isinstance(sent, ApiProblem):
            return await _page(viewer, refused=sent)
        return redirect_saying(viewer, PAGE, mailed=made.email or "")
    return redirect_saying(viewer, PAGE, made=made.url, made_for="An invitation")


async def ask(viewer: Viewer) -> Response:
    """Ask before an account is disabled, or gets another role, with what that touches."""
    action = str(viewer.request.path_params["action"])
    if action not in ASKS:
        return redirect(PAGE)
    return await _question(viewer, action, viewer.query("role"), None, "")


async def act(viewer: Viewer) -> Response:
    """Change a role, disable or enable an account, or make a link for a new password."""
    user_id, action = viewer.part("user_id"), str(viewer.request.path_params["action"])
    form = await viewer.form()
    role, reason = form.get("role", ""), form.get("reason", "").strip()
    changes: dict[str, dict[str, object]] = {
        "disable": {"disabled": True},
        "enable": {"disabled": False},
        "role": {"role": role},
    }
    body = {**changes.get(action, {}), **({"reason": reason} if reason else {})}
    asked = {
        "password": ("POST", f"/v1/users/{user_id}/password-link", None),
        "letter": ("POST", f"/v1/users/{user_id}/password-letter", None),
        **{change: ("PATCH", f"/v1/users/{user_id}", body) for change in changes},
    }
    if action not in asked:
        return Response("This action does not exist.", status_code=404, media_type="text/plain")
    method, path, sent = asked[action]
    answer = await viewer.or_refusal(viewer.call(method, path, json=sent), ANSWERED)
    if isinstance(answer, ApiProblem):
        if action in ASKS and answer.status in (409, 422):
            return await _question(viewer, action, role, answer, reason)
        return await _page(viewer, refused=answer)
    if action == "password":
        made = decode(Link, answer.json()).url
        return redirect_saying(viewer, PAGE, made=made, made_for="A link to set a password")
    if action == "letter":
        return redirect_saying(viewer, PAGE, mailed="them")
    user = decode(User, answer.json())
    state = "disabled" if user.disabled else f"enabled, with the role {user.role}"
    undo = user.id if user.disabled else ""
    return redirect_saying(viewer, PAGE, done=f"The account of {user.name} is {state}.", undo=undo)


async def _question(
    viewer: Viewer, action: str, role: str, refused: ApiProblem | None, reason: str
) -> Response:
    me, user = await asyncio.gather(
        viewer.me(), viewer.get(User, f"/v1/users/{viewer.part('user_id')}")
    )
    if action == "role":
        question = before_role(user, role)
    else:
        of_user: dict[str, str | int | list[str] | None] = {"user": user.name, "limit": 200}
        (jobs, _), (leases, _) = await asyncio.gather(
            viewer.page(Job, "/v1/jobs", {**of_user, "state": list(LIVE)}),
            viewer.page(Lease, "/v1/leases", {**of_user, "state": ["booked", "active"]}),
        )
        question = before_disabling(user, jobs, leases)
    context = {
        "me": me,
        "section": "admin",
        "question": question,
        "refused": refused,
        "reason": reason,
    }
    return render("question.html", context, status=refused.status if refused else 200)


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
