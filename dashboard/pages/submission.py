"""The form for a new job: its YAML as it is, and the plan beside it before anything is sent."""

import asyncio
import json
import secrets
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import quote

from starlette.responses import Response

from dashboard.examples import FIRST, grouped_examples, lacking, lesson_of, read_examples
from dashboard.rendering import redirect, render
from dashboard.sentences import lease_words, spec_yaml
from dashboard.spec_form import (
    Group,
    Unreadable,
    groups_of,
    merged,
    read_yaml,
    spec_of,
    values_of,
)
from dashboard.spec_uses import unused
from dashboard.viewer import ApiProblem, Viewer
from trainyard.transport.decoding import decode
from trainyard.views import ClassPlan, Dataset, Job, Lease, Node, PlanAnswer, Template
from trainyard.wording import reference

ANSWERED = (400, 409, 413, 415, 422, 429)  # refusals that the form itself can show


@dataclass(frozen=True)
class Preview:
    """The API's answer to a spec: a plan, or the reason that there is none."""

    answer: PlanAnswer | None
    refused: ApiProblem | None

    @property
    def shown(self) -> ClassPlan | None:
        """The plan of the class where the job would go, else of the first one."""
        if self.answer is None or not self.answer.plans:
            return None
        chosen = [one for one in self.answer.plans if one.node_class == self.answer.chosen]
        return (chosen or list(self.answer.plans))[0]

    @property
    def is_submittable(self) -> bool:
        """True if the button can be pressed."""
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
        job = await viewer.get(Job, f"/v1/jobs/{quote(clone, safe='')}")
        if "script" in job.spec:
            return await _program(viewer, job, _program_fields(job), None)
        text = _text_of(job)
    if lease := viewer.query("lease"):
        text = spec_yaml(merged(read_yaml(text), {"lease": lease}))
    return await _page(viewer, text, chosen=chosen if chosen in examples else "", clone=clone)


async def plan(viewer: Viewer) -> Response:
    """The verdict on the text as it is in the form now."""
    fields = await viewer.form()
    text = fields.get("spec", "")
    rewritten = await _rewritten(viewer, fields)
    preview = await _preview(viewer, text if rewritten is None else rewritten)
    return render("plan.html", {"preview": preview, "is_swapped": True, "rewritten": rewritten})


async def fields(viewer: Viewer) -> Response:
    """The form's fields, as the text has them."""
    text = (await viewer.form()).get("spec", "")
    return render("spec_fields.html", await _fields(viewer, text))


async def submit(viewer: Viewer) -> Response:
    """Send the text; the form's own key makes a second click harmless."""
    fields = await viewer.form()
    text = fields.get("spec", "")
    answer = await viewer.or_refusal(
        viewer.call("POST", "/v1/jobs", yaml=text, idempotency_key=fields.get("key") or _new_key()),
        ANSWERED,
    )
    if isinstance(answer, ApiProblem):
        return await _page(viewer, text, chosen="", clone="", refused=answer)
    return redirect(f"/jobs/{decode(Job, answer.json()).id}")


async def again(viewer: Viewer) -> Response:
    """Run a program's code again, with what was changed about it."""
    form = await viewer.form()
    path = f"/v1/jobs/{viewer.part('job_id')}"
    job = await viewer.get(Job, path)
    ranks = form.get("ranks", "")
    try:
        changes: dict[str, object] = {
            "name": form.get("name", ""),
            "script": {"arguments": shlex.split(form.get("arguments", ""))},
            "resources": {
                "ranks_per_node": int(ranks) if ranks.isdecimal() else ranks,
                "wall_time": form.get("wall_time", ""),
            },
        }
    except ValueError as error:  # a quote that is not closed
        return await _program(viewer, job, form, f"Arguments: {error}.")
    if form.get("lease"):
        changes["lease"] = form["lease"]
    key = form.get("key") or _new_key()
    answer = await viewer.or_refusal(
        viewer.call("POST", f"{path}/clone", json=changes, idempotency_key=key), ANSWERED
    )
    if isinstance(answer, ApiProblem):
        return await _program(viewer, job, form, answer)
    return redirect(f"/jobs/{decode(Job, answer.json()).id}")


def _program_fields(job: Job) -> dict[str, str]:
    resources = job.spec["resources"]
    return {
        "name": job.name,
        "arguments": shlex.join(job.spec["script"]["arguments"]),
        "ranks": str(resources["ranks_per_node"]),
        "wall_time": str(resources["wall_time"]),
    }


async def _program(
    viewer: Viewer, job: Job, form: Mapping[str, str], refused: ApiProblem | str | None
) -> Response:
    me, (leases, _) = await asyncio.gather(
        viewer.me(), viewer.page(Lease, "/v1/leases", {"state": ["booked", "active"]})
    )
    reasons = [("", refused)] if isinstance(refused, str) else refused.reasons if refused else []
    context = {
        "me": me,
        "section": "jobs",
        "job": job,
        "form": form,
        "reasons": reasons,
        "leases": [(lease.id, lease_words(lease)) for lease in leases if lease.kind == "booked"],
        "key": _new_key(),
    }
    return render("clone_program.html", context, status=422 if reasons else 200)


async def _rewritten(viewer: Viewer, sent: dict[str, str]) -> str | None:
    """The text with what was changed in the form, or by advice; None if it stays as it is."""
    from_form, apply = sent.get("source") == "form", sent.get("apply", "")
    if not from_form and not apply:
        return None
    try:
        spec = await asyncio.to_thread(read_yaml, sent.get("spec", ""))
    except Unreadable:
        return None  # the API says why
    if from_form:
        values = {name[2:]: value for name, value in sent.items() if name.startswith("f.")}
        spec = spec_of(values, await _groups(viewer), spec)
    if apply:
        spec = merged(spec, _change_of(apply))
    return await asyncio.to_thread(spec_yaml, spec)


def _change_of(text: str) -> dict[str, object]:
    try:
        change = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return change if isinstance(change, dict) else {}


async def _fields(viewer: Viewer, text: str) -> dict[str, object]:
    groups, (leases, _) = await asyncio.gather(
        _groups(viewer),
        viewer.page(Lease, "/v1/leases", {"state": ["booked", "active"]}),
    )
    try:
        values, unreadable = values_of(await asyncio.to_thread(read_yaml, text)), ""
    except Unreadable as error:
        values, unreadable = {}, str(error)
    return {
        "groups": groups,
        "unused": unused,
        "values": values,
        "unreadable": unreadable,
        "leases": [(lease.id, lease_words(lease)) for lease in leases if lease.kind == "booked"],
    }


async def _groups(viewer: Viewer) -> list[Group]:
    return _groups_in((await viewer.call("GET", "/v1/openapi.json")).body)


@lru_cache(maxsize=2)  # the same for everybody, and of several hundred KB
def _groups_in(document: bytes) -> list[Group]:
    return groups_of(json.loads(document))


async def _page(
    viewer: Viewer, text: str, *, chosen: str, clone: str, refused: ApiProblem | None = None
) -> Response:
    me, form_, (datasets, _), (nodes, _), (templates, _) = await asyncio.gather(
        viewer.me(),
        _fields(viewer, text),
        viewer.page(Dataset, "/v1/datasets"),
        viewer.page(Node, "/v1/nodes"),
        viewer.page(Template, "/v1/templates"),
    )
    context = {
        **form_,
        "me": me,
        "datasets": [reference(one.name, one.owner, me.user.name) for one in datasets],
        "templates": templates,
        "classes": sorted({node.node_class for node in nodes}),
        "section": "jobs",
        "text": text,
        "examples": grouped_examples(),
        "lacking": lacking(nodes),
        "lesson": lesson_of(read_examples().get(chosen or FIRST, "")) if not clone else "",
        "chosen": chosen,
        "clone": clone,
        "key": _new_key(),
        "preview": Preview(None, refused) if refused else None,
        "is_swapped": False,
    }
    return render("new_job.html", context, status=refused.status if refused else 200)


async def _preview(viewer: Viewer, text: str) -> Preview:
    answer = await viewer.or_refusal(viewer.call("POST", "/v1/jobs/plan", yaml=text), ANSWERED)
    if isinstance(answer, ApiProblem):
        return Preview(None, answer)
    return Preview(decode(PlanAnswer, answer.json()), None)


def _text_of(job: Job) -> str:
    """The spec of a job as YAML, without what it left open and without its lease."""
    return spec_yaml({name: part for name, part in job.spec.items() if name != "lease"})


def _new_key() -> str:
    return secrets.token_urlsafe(16)
