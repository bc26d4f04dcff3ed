"""Start of a template: its open fields filled in, the rest as it is, then submitted as any job."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy.orm import Session

from api.agendas import agendas
from api.agendas.agenda_submission import block_of_lease, plan_agenda, read_agenda
from api.files.owned import show_readable
from api.jobs.plan_cache import PlanCache
from api.jobs.queueing import NewJob, queue_one
from api.jobs.submission import plan_job, read_spec, require_runnable
from api.templates.schemas import NewStart, StartView
from api.templates.templates import template_of
from api.web.bells import Bells
from api.web.errors import InvalidRequest
from api.web.idempotency import KeyedRequest
from api.web.identity import Person
from api.web.process import Process
from api.web.schemas import ProblemItem
from core.base.errors import BadRequest
from core.base.strict_text import SpecText
from core.spec.template import (
    Refusal,
    TemplateKind,
    TemplateSpec,
    changes,
    filled,
    scripts_in,
)
from core.tables.scripts import CodeArchive
from core.tables.templates import Template, TemplateStart


@dataclass(frozen=True)
class FilledTemplate:
    """A template with a person's values."""

    row: Template
    template: TemplateSpec
    spec: dict[str, Any]


def fill(session: Session, template_id: str, person: Person, asked: NewStart) -> FilledTemplate:
    """Return a template with a person's values and lease.

    Raises NotFound; InvalidRequest with every field that is locked or has a value that is not
    allowed.
    """
    row, _ = show_readable(session, Template, person, template_id)
    template = template_of(row)
    values: dict[str, Any] = asked.values
    wrong: list[Refusal] = []
    if asked.spec is not None:
        given, wrong = changes(template, asked.spec)
        values = {**given, **values}
    spec, refusals = filled(template, values)
    if wrong or refusals:
        raise InvalidRequest(
            [
                ProblemItem(param=one.field, code=one.code, message=one.message)
                for one in (*wrong, *refusals)
            ]
        )
    if asked.lease is not None and template.kind is not TemplateKind.AGENDA:
        spec["lease"] = asked.lease
    return FilledTemplate(row, template, spec)


def start(
    process: Process,
    person: Person,
    template_id: str,
    asked: NewStart,
    sent: KeyedRequest,
    *,
    now: datetime,
) -> StartView:
    """Submit what a template makes of a person's values, once for each key."""
    with process.read() as session:
        found = fill(session, template_id, person, asked)
    if any(scripts_in(found.spec)):
        process.transact(_hand_on, person, found, now=now)
    text = SpecText(value=found.spec, lines={})
    if found.template.kind is TemplateKind.AGENDA:
        return _start_agenda(process, person, found, text, asked, sent, now=now)
    process.limits.count_submission(person.id)
    spec = read_spec(text)
    with process.read() as session:
        planned = plan_job(session, process.service(PlanCache), spec, user_id=person.id)
    new = NewJob(person, planned, require_runnable(planned), sent, now)

    def work(session: Session, bells: Bells) -> StartView:
        job = queue_one(session, bells, process, new)
        _record(session, job.id, found.row, person, now)
        return StartView(job=job.id, agenda=None)

    return process.transact(work)


def _start_agenda(
    process: Process,
    person: Person,
    found: FilledTemplate,
    text: SpecText,
    asked: NewStart,
    sent: KeyedRequest,
    *,
    now: datetime,
) -> StartView:
    lease = asked.lease
    if lease is None:
        raise BadRequest(
            "lease: this template is an agenda, which runs in a booked lease. Name one of yours.",
            param="lease",
        )
    agenda = read_agenda(text)
    process.limits.count_submission(person.id, jobs=len(agenda.jobs))
    cache = process.service(PlanCache)
    with process.read() as session:
        block = block_of_lease(session, lease, user_id=person.id, now=now)
        entries = plan_agenda(session, cache, agenda, block, {}, user_id=person.id, now=now)

    def work(session: Session, bells: Bells) -> StartView:
        made = agendas.submit_agenda(
            session,
            bells,
            person,
            process,
            lease,
            asked.anyway,
            sent=sent,
            agenda=agenda,
            entries=entries,
            now=now,
        )
        _record(session, made.id, found.row, person, now)
        return StartView(job=None, agenda=made.id)

    return process.transact(work)


def _hand_on(
    session: Session, _: Bells, person: Person, found: FilledTemplate, *, now: datetime
) -> None:
    """Give a person the code of a template that they may read; its bytes stay as they are."""
    for script in scripts_in(found.spec):
        code = str(script.get("code"))
        theirs = session.get(CodeArchive, (found.row.user_id, code))
        if theirs is None or session.get(CodeArchive, (person.id, code)) is not None:
            continue
        session.add(
            CodeArchive(
                user_id=person.id,
                sha256=code,
                size=theirs.size,
                paths=theirs.paths,
                unpacked_size=theirs.unpacked_size,
                created_at=now,
            )
        )
        session.flush()


def _record(session: Session, subject: str, row: Template, person: Person, now: datetime) -> None:
    if session.get(TemplateStart, subject) is None:  # a repeated request has its own
        session.add(
            TemplateStart(
                subject=subject,
                template_id=row.id,
                version=row.version,
                user_id=person.id,
                created_at=now,
            )
        )
