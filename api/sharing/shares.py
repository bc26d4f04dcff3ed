"""Shares: their rows, and the things that they are about."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ColumnElement, select, true
from sqlalchemy.orm import InstrumentedAttribute, Session

from api.people.users import find_user
from api.sharing.schemas import NewShare, ShareView
from api.web import audit
from api.web.bells import Bells
from api.web.idempotency import KeyedRequest
from api.web.identity import Person
from api.web.paging import page
from api.web.schemas import Page
from api.web.sharing import reader_of
from core.base.errors import NotFound
from core.base.ids import IdKind, new_id
from core.tables.agendas import Agenda
from core.tables.files import Dataset, Model, Report, Tokenizer
from core.tables.jobs import Job, Study
from core.tables.kinds import AudienceKind, SharedKind
from core.tables.people import Lab, User
from core.tables.sharing import Share
from core.tables.templates import Template


@dataclass(frozen=True)
class Thing:
    """Columns of a table whose rows can be shared."""

    id: InstrumentedAttribute[str]
    name: InstrumentedAttribute[str]
    owner_id: InstrumentedAttribute[str]
    exists: ColumnElement[bool]
    """Condition that a row is not deleted."""


THINGS = {
    SharedKind.DATASET: Thing(
        Dataset.id, Dataset.name, Dataset.user_id, Dataset.deleted_at.is_(None)
    ),
    SharedKind.MODEL: Thing(Model.id, Model.name, Model.user_id, Model.deleted_at.is_(None)),
    SharedKind.TOKENIZER: Thing(
        Tokenizer.id, Tokenizer.name, Tokenizer.user_id, Tokenizer.deleted_at.is_(None)
    ),
    SharedKind.TEMPLATE: Thing(
        Template.id, Template.name, Template.user_id, Template.deleted_at.is_(None)
    ),
    SharedKind.JOB: Thing(Job.id, Job.name, Job.user_id, true()),
    SharedKind.AGENDA: Thing(Agenda.id, Agenda.name, Agenda.user_id, true()),
    SharedKind.STUDY: Thing(Study.id, Study.name, Study.user_id, true()),
    SharedKind.REPORT: Thing(
        Report.sha256, Report.title, Report.user_id, Report.deleted_at.is_(None)
    ),
}


def share(
    session: Session,
    _: Bells,
    person: Person,
    asked: NewShare,
    sent: KeyedRequest,
    *,
    now: datetime,
) -> ShareView:
    """Insert a share, or find the one that is there. Raises NotFound."""
    share_id = sent.begin(session)
    if share_id is None:
        thing_id = _own_thing(session, asked.kind, asked.thing, person)
        audience, audience_id = _audience(session, asked, person)
        row = grant(session, person, asked.kind, thing_id, audience, audience_id, now=now)[0]
        share_id = row.id
        sent.remember(session, share_id)
    session.flush()
    return _views(session, [session.get_one(Share, share_id)])[0]


def grant(
    session: Session,
    owner: Person,
    kind: SharedKind,
    thing_id: str,
    audience: AudienceKind,
    audience_id: str,
    *,
    now: datetime,
) -> tuple[Share, bool]:
    """Return the share of an owner's thing with an audience, and True if it was not there."""
    row = session.scalars(
        select(Share).where(
            Share.kind == kind,
            Share.thing_id == thing_id,
            Share.audience == audience,
            Share.audience_id == audience_id,
        )
    ).one_or_none()
    if row is not None:
        return row, False
    row = Share(
        id=new_id(IdKind.SHARE),
        kind=kind,
        thing_id=thing_id,
        owner_id=owner.id,
        audience=audience,
        audience_id=audience_id,
        created_at=now,
    )
    session.add(row)
    _record(session, owner, "share.add", row, now)
    return row, True


def list_shares(
    session: Session,
    person: Person,
    kind: SharedKind | None,
    thing_id: str | None,
    *,
    limit: int,
    after: str | None,
) -> Page[ShareView]:
    """Return a page of what a person shares, newest first."""
    query = select(Share).where(Share.owner_id == person.id)
    if kind is not None:
        query = query.where(Share.kind == kind)
    if thing_id is not None:
        query = query.where(Share.thing_id == thing_id)
    rows = page(session, query, Share.id, after=after, limit=limit)
    views = _views(session, [row for (row,) in rows])
    return Page[ShareView](data=views, has_more=rows.has_more)


def unshare(session: Session, _: Bells, share_id: str, person: Person, *, now: datetime) -> None:
    """Delete a share of a person's own. Raises NotFound."""
    row = session.get(Share, share_id)
    if row is None or row.owner_id != person.id:
        raise NotFound(f"You share nothing as {share_id!r}.")
    _record(session, person, "share.end", row, now)
    session.delete(row)


def _own_thing(session: Session, kind: SharedKind, key: str, person: Person) -> str:
    """Return the id of a person's own thing, by id or name; the newest of those with the name."""
    of = THINGS[kind]
    found = session.scalars(
        select(of.id)
        .where(of.owner_id == person.id, of.exists, (of.id == key) | (of.name == key))
        .order_by((of.id == key).desc(), of.id.desc())
        .limit(1)
    ).first()
    if found is None:
        raise NotFound(f"You have no {kind} {key!r} of your own.", param="thing")
    return found


def _audience(session: Session, asked: NewShare, person: Person) -> tuple[AudienceKind, str]:
    if asked.everybody:
        return AudienceKind.EVERYBODY, ""
    if asked.person is not None:
        return AudienceKind.PERSON, find_user(session, asked.person, param="person").id
    assert asked.group is not None
    known = reader_of(session, person.id).groups
    if person.is_staff:
        rows = session.execute(select(Lab.name, Lab.groups))
        known |= {group for name, others in rows for group in (name, *others)}
    if asked.group not in known:
        there = ", ".join(sorted(known)) or "none"
        raise NotFound(
            f"You are in no lab or group {asked.group!r}. You can share with: {there}.",
            param="group",
        )
    return AudienceKind.GROUP, asked.group


def _record(session: Session, person: Person, action: str, row: Share, now: datetime) -> None:
    audit.record(
        session,
        person.id,
        action,
        row.thing_id,
        now=now,
        audience=row.audience,
        who=row.audience_id,
    )


def _views(session: Session, rows: Sequence[Share]) -> list[ShareView]:
    people = {row.audience_id for row in rows if row.audience is AudienceKind.PERSON}
    found = session.execute(select(User.id, User.name).where(User.id.in_(people)))
    who = {user_id: name for user_id, name in found}
    names: dict[str, str] = {}
    for kind in {row.kind for row in rows}:
        of, wanted = THINGS[kind], [row.thing_id for row in rows if row.kind is kind]
        names |= {
            key: name
            for key, name in session.execute(select(of.id, of.name).where(of.id.in_(wanted)))
        }
    return [
        ShareView(
            id=row.id,
            kind=row.kind,
            thing=row.thing_id,
            name=names[row.thing_id],
            audience=row.audience,
            who=who.get(row.audience_id, row.audience_id),
            created_at=row.created_at,
        )
        for row in rows
    ]
