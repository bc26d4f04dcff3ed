"""/v1/templates: jobs, scripts and agendas with locked and open fields."""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from api.jobs.spec_body import SpecBody, body_of
from api.templates import starting, templates
from api.templates.schemas import FilledTemplateView, NewStart, StartView, TemplateView
from api.web.auth import SignedIn
from api.web.idempotency import IdempotencyKey, keyed
from api.web.process import ProcessDep
from api.web.schemas import Page
from api.web.text_types import After, Limit, PlainText
from core.base.clock import utc_now

EXAMPLE = {
    "name": "lab-1",
    "description": "Train one model at two learning rates.",
    "spec": {"name": "lab-1", "training": {"learning_rate": 0.001}},
    "open": [{"field": "training.learning_rate", "minimum": 1e-5, "maximum": 0.1}],
}
TEMPLATE_BODY = body_of({"$ref": "#/components/schemas/TemplateSpec"}, EXAMPLE)

router = APIRouter(prefix="/v1/templates", tags=["templates"])


@router.post("", status_code=201, openapi_extra=TEMPLATE_BODY, summary="Keep a template")
def keep_template(
    body: SpecBody,
    request: Request,
    person: SignedIn,
    process: ProcessDep,
    code: Annotated[
        PlainText | None,
        Query(description="SHA-256 of an archive of code of yours, for scripts that name none."),
    ] = None,
    key: IdempotencyKey = None,
) -> TemplateView:
    """Keep a template, as JSON or YAML. One of yours with this name gets the new content as its
    next version. Datasets, models and tokenizers are named with their owner, you by default."""
    text, raw = body
    wanted = templates.read_template(text, person, code)
    sent = keyed(person, key, f"/v1/templates?{request.url.query}", raw)
    return process.transact(templates.keep_template, person, wanted, sent, now=utc_now())


@router.get("", summary="List templates")
def list_templates(
    person: SignedIn, process: ProcessDep, limit: Limit = 50, after: After = None
) -> Page[TemplateView]:
    """Return your templates and those shared with you, newest first."""
    with process.read() as session:
        return templates.list_templates(session, person, limit=limit, after=after)


@router.get("/{template_id}", summary="Get a template")
def get_template(template_id: PlainText, person: SignedIn, process: ProcessDep) -> TemplateView:
    """Return a template that you may read: by id, or one of your own by name."""
    with process.read() as session:
        return templates.show_template(session, template_id, person)


@router.delete("/{template_id}", status_code=204, summary="Delete a template")
def delete_template(template_id: PlainText, person: SignedIn, process: ProcessDep) -> Response:
    """Delete a template of yours. What was started from it stays."""
    process.transact(templates.delete_template, template_id, person, now=utc_now())
    return Response(status_code=204)


@router.post("/{template_id}/fill", summary="Fill a template")
def fill_template(
    template_id: PlainText, body: NewStart, person: SignedIn, process: ProcessDep
) -> FilledTemplateView:
    """Return the spec that a start would submit, to plan it. Nothing is submitted."""
    with process.read() as session:
        return FilledTemplateView(spec=starting.fill(session, template_id, person, body).spec)


@router.post("/{template_id}/start", status_code=201, summary="Start from a template")
def start_template(
    template_id: PlainText,
    body: NewStart,
    request: Request,
    person: SignedIn,
    process: ProcessDep,
    key: IdempotencyKey = None,
) -> StartView:
    """Submit a template's job or agenda with your values. A locked field that you change is refused
    with its name; all other rules are those of jobs and agendas."""
    sent = keyed(person, key, request.url.path, body.model_dump_json().encode())
    return starting.start(process, person, template_id, body, sent, now=utc_now())
