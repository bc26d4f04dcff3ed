"""Templates: their text and their rows."""

from datetime import datetime

from pydantic import ValidationError
from sqlalchemy import select
from sqlalchemy.orm import Session

from api.agendas.agenda_submission import read_agenda
from api.files.owned import all_readable, find_owned, show_readable
from api.jobs.submission import read_spec
from api.templates.schemas import TemplateFieldView, TemplateView
from api.web.bells import Bells
from api.web.errors import InvalidRequest, validation_items
from api.web.idempotency import KeyedRequest
from api.web.identity import Person
from api.web.paging import page
from api.web.schemas import Page, ProblemItem
from api.web.sharing import end_sharing
from core.base.errors import BadRequest
from core.base.ids import IdKind, new_id
from core.base.strict_text import SpecText
from core.spec.template import (
    MISSING,
    TemplateKind,
    TemplateSpec,
    qualified,
    scripts_in,
    value_at,
    with_code,
)
from core.tables.kinds import SharedKind
from core.tables.scripts import CodeArchive
from core.tables.templates import Template


def read_template(text: SpecText, person: Person, code: str | None = None) -> TemplateSpec:
    """Return the template that a text describes, its things named with their owner, its scripts
    with their code.

    Raises InvalidRequest with every wrong field of the template, or of its job or agenda as far as
    its defaults fill it.
    """
    try:
        template = TemplateSpec.model_validate(text.value)
    except ValidationError as error:
        items = validation_items(error.errors(include_url=False), lines=text.lines)
        raise InvalidRequest(items) from error
    spec = with_code(qualified(template.spec, person.name), code)
    template = template.model_copy(update={"spec": spec})
    if all(value_at(template.spec, one.field) is not MISSING for one in template.open):
        require_valid(template)
    return template


def keep_template(
    session: Session,
    _: Bells,
    person: Person,
    wanted: TemplateSpec,
    sent: KeyedRequest,
    *,
    now: datetime,
) -> TemplateView:
    """Insert a template, or give one of this name its next version, once for each key."""
    template_id = sent.begin(session)
    if template_id is None:
        for script in scripts_in(wanted.spec):
            if session.get(CodeArchive, (person.id, str(script.get("code")))) is None:
                raise BadRequest(
                    f"spec.script.code: you have uploaded no code {script.get('code')}. Send it "
                    "with `trainyard templates add FILE --code FOLDER`.",
                    code="unknown_code",
                    param="spec.script.code",
                )
        template_id = keep(session, person.id, wanted, now=now).id
        sent.remember(session, template_id)
    session.flush()
    return view(session.get_one(Template, template_id), person.name)


def keep(session: Session, owner_id: str, wanted: TemplateSpec, *, now: datetime) -> Template:
    """Return the row of a person's template with this content: a new one, or the next version."""
    content = {
        "description": wanted.description,
        "spec": wanted.spec,
        "open": [one.model_dump(mode="json", exclude_defaults=True) for one in wanted.open],
    }
    row = session.scalars(
        select(Template).where(
            Template.user_id == owner_id,
            Template.name == wanted.name,
            Template.deleted_at.is_(None),
        )
    ).one_or_none()
    if row is None:
        row = Template(
            id=new_id(IdKind.TEMPLATE),
            user_id=owner_id,
            name=wanted.name,
            version=1,
            created_at=now,
            changed_at=now,
            **content,
        )
        session.add(row)
    elif any(getattr(row, name) != value for name, value in content.items()):
        for name, value in content.items():
            setattr(row, name, value)
        row.version, row.changed_at = row.version + 1, now
    return row


def list_templates(
    session: Session, person: Person, *, limit: int, after: str | None
) -> Page[TemplateView]:
    """Return a page of the templates that a person may read, newest first."""
    query = all_readable(session, Template, person)
    rows = page(session, query, Template.id, after=after, limit=limit)
    return Page[TemplateView](data=[view(*row) for row in rows], has_more=rows.has_more)


def show_template(session: Session, template_id: str, person: Person) -> TemplateView:
    """Return a template that a person may read. Raises NotFound."""
    return view(*show_readable(session, Template, person, template_id))


def delete_template(
    session: Session, _: Bells, template_id: str, person: Person, *, now: datetime
) -> None:
    """Mark a template as deleted, so that its name is free. Raises NotFound."""
    row = find_owned(session, Template, person, template_id)
    end_sharing(session, SharedKind.TEMPLATE, row.id)
    row.deleted_at, row.name = now, f"{row.name} (deleted {row.id})"


def template_of(row: Template) -> TemplateSpec:
    """Return the template that a row holds."""
    return TemplateSpec(name=row.name, description=row.description, spec=row.spec, open=row.open)


def view(row: Template, owner: str) -> TemplateView:
    """Return the view of a template."""
    template = template_of(row)
    return TemplateView(
        id=row.id,
        name=row.name,
        owner=owner,
        kind=template.kind,
        version=row.version,
        description=row.description,
        spec=row.spec,
        open=[TemplateFieldView.model_validate(one.model_dump()) for one in template.open],
        created_at=row.created_at,
        changed_at=row.changed_at,
    )


def require_valid(template: TemplateSpec) -> None:
    """Raise InvalidRequest if the job, or the list of jobs, is not valid."""
    text = SpecText(value=template.spec, lines={})
    try:
        if template.kind is TemplateKind.AGENDA:
            read_agenda(text)
        else:
            read_spec(text)
    except InvalidRequest as error:
        raise InvalidRequest(
            [
                ProblemItem(param=f"spec.{one.param}", code=one.code, message=f"spec.{one.message}")
                for one in error.items
            ]
        ) from error
