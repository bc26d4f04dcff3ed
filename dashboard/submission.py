"""The form for a new job: its YAML as it is, and the plan beside it before anything is sent."""

import secrets
from dataclasses import dataclass
from urllib.parse import quote

import yaml
from starlette.responses import Response

from dashboard.examples import read_examples
from dashboard.rendering import redirect, render
from dashboard.viewer import Refused, Viewer
from trainyard.decoding import decode
from trainyard.views import ClassPlan, Job, PlanAnswer

ANSWERED = (400, 409, 413, 415, 422, 429)  # refusals that the form itself can show


@dataclass(frozen=True)
class Preview:
    """What the API says about a spec: a plan, or why there is none."""

    answer: PlanAnswer | None
    refused: Refused | None

    @property
    def shown(self) -> ClassPlan | None:
        """The plan of the class where the job would go, else of the first one."""
        if self.answer is None or not self.answer.plans:
            return None
        chosen = [one for one in self.answer.plans if one.node_class == self.answer.chosen]
        return (chosen or list(self.answer.plans))[0]

    @property
    def is_submittable(self) -> bool:
        """Whether the button can be pressed."""
        return self.answer is not None and self.answer.chosen is not None


async def form(viewer: Viewer) -> Response:
    """A spec that works, another example, or that of a job to clone.

    The plan is asked for by the page: on behalf of a link that was followed, the API plans nothing.
    """
    examples = read_examples()
    chosen = viewer.query("example")
    text = examples.get(chosen, next(iter(examples.values())))
    clone = viewer.query("clone")
    if clone:
        text = _text_of(await viewer.get(Job, f"/v1/jobs/{quote(clone, safe='')}"))
    return await _page(viewer, text, chosen=chosen if chosen in examples else "", clone=clone)


async def plan(viewer: Viewer) -> Response:
    """The verdict on the text as it is in the form now."""
    text = (await viewer.form()).get("spec", "")
    return render("plan.html", {"preview": await _preview(viewer, text), "is_swapped": True})


async def submit(viewer: Viewer) -> Response:
    """Send the text; the form's own key makes a second click harmless."""
    fields = await viewer.form()
    text = fields.get("spec", "")
    try:
        answer = await viewer.call(
            "POST", "/v1/jobs", yaml=text, idempotency_key=fields.get("key") or _new_key()
        )
    except Refused as refused:
        if refused.status not in ANSWERED:
            raise
        return await _page(viewer, text, chosen="", clone="", refused=refused)
    return redirect(f"/jobs/{decode(Job, answer.json()).id}")


async def _page(
    viewer: Viewer, text: str, *, chosen: str, clone: str, refused: Refused | None = None
) -> Response:
    context = {
        "me": await viewer.me(),
        "section": "jobs",
        "text": text,
        "examples": list(read_examples()),
        "chosen": chosen,
        "clone": clone,
        "key": _new_key(),
        "preview": Preview(None, refused) if refused else None,
        "is_swapped": False,
    }
    return render("new_job.html", context, status=refused.status if refused else 200)


async def _preview(viewer: Viewer, text: str) -> Preview:
    try:
        answer = await viewer.call("POST", "/v1/jobs/plan", yaml=text)
    except Refused as refused:
        if refused.status not in ANSWERED:
            raise
        return Preview(None, refused)
    return Preview(decode(PlanAnswer, answer.json()), None)


def _text_of(job: Job) -> str:
    """The spec of a job as YAML, without what it left open and without its lease."""
    spec = {name: _given(part) for name, part in job.spec.items() if part is not None}
    spec.pop("lease", None)
    dumped: str = yaml.safe_dump(spec, sort_keys=False, default_flow_style=None, width=200)
    return dumped


def _given(part: object) -> object:
    if not isinstance(part, dict):
        return part
    return {name: value for name, value in part.items() if value is not None}


def _new_key() -> str:
    return secrets.token_urlsafe(16)
