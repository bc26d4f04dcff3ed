"""The booking rules: the document that holds, and what a change would do before it does."""

import asyncio

from starlette.responses import Response

from dashboard.examples import policy_examples
from dashboard.rendering import redirect, render
from dashboard.text_changes import changed_lines
from dashboard.viewer import ApiProblem, Viewer
from trainyard.transport.decoding import decode
from trainyard.views import Policy, PolicyPlan, PolicyText

ANSWERED = (400, 403, 409, 413, 422)
FIRST = """\
policy: {id: course, zone: Europe/Berlin}
grid: {horizon_days: 14}
"""


async def show(viewer: Viewer) -> Response:
    """The policies that hold, and the editor with one of them."""
    return await _page(viewer, None, None)


async def plan(viewer: Viewer) -> Response:
    """Show the effects of the text in the editor."""
    text = (await viewer.form()).get("document", "")
    context = {"plan": None, "refused": None}
    answer = await viewer.or_refusal(
        viewer.call("POST", "/v1/policies", query={"dry_run": "true"}, yaml=text), ANSWERED
    )
    if isinstance(answer, ApiProblem):
        return render("policy_plan.html", {**context, "refused": answer})
    return render("policy_plan.html", {**context, "plan": decode(PolicyPlan, answer.json())})


async def apply(viewer: Viewer) -> Response:
    """Put the text into force."""
    text = (await viewer.form()).get("document", "")
    answer = await viewer.or_refusal(viewer.call("POST", "/v1/policies", yaml=text), ANSWERED)
    if isinstance(answer, ApiProblem):
        return await _page(viewer, text, answer)
    return redirect(f"/admin/policies?id={viewer.quoted(decode(PolicyPlan, answer.json()).id)}")


async def _page(viewer: Viewer, text: str | None, refused: ApiProblem | None) -> Response:
    me, (policies, _) = await asyncio.gather(viewer.me(), viewer.page(Policy, "/v1/policies"))
    asked = viewer.query("id") or (policies[0].id if policies else "")
    shown: PolicyText | None = None
    other: PolicyText | None = None
    versions: list[Policy] = []
    if asked:
        version, compared = viewer.query("version"), viewer.query("with")
        path = f"/v1/policies/{viewer.quoted(asked)}"
        shown, (versions, _) = await asyncio.gather(
            viewer.get(PolicyText, path, {"version": version if version.isdigit() else None}),
            viewer.page(Policy, f"{path}/versions"),
        )
        if compared.isdigit() and shown is not None and int(compared) != shown.version:
            other = await viewer.get(PolicyText, path, {"version": compared})
    examples = {} if shown else policy_examples()  # a start, where there is no policy
    first = examples.get(viewer.query("example"), FIRST)
    context = {
        "me": me,
        "examples": examples,
        "section": "admin",
        "part": "policies",
        "policies": policies,
        "shown": shown,
        "versions": versions,
        "other": other,
        "changed": [] if not (shown and other) else changed_lines(other.document, shown.document),
        "text": text if text is not None else shown.document if shown else first,
        "refused": refused,
    }
    return render("admin_policies.html", context, status=refused.status if refused else 200)
