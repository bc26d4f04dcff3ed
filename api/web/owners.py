"""Rows that a list shows and a person may read: by owner, and by what owners share."""

from typing import Annotated

from fastapi import Query
from sqlalchemy import ColumnElement, true
from sqlalchemy.orm import InstrumentedAttribute, Session

from api.web.identity import Person
from api.web.sharing import may_read, reader_of
from api.web.text_types import PlainText
from core.tables.kinds import SharedKind
from core.tables.people import User

Whose = Annotated[
    PlainText | None, Query(description="For staff: a person's name, or `all` for everybody.")
]


def of_whom(
    owner_id: InstrumentedAttribute[str], user: str | None, person: Person
) -> ColumnElement[bool]:
    """Return the condition that rows belong to `person`; for staff, to the `user` of that name, or
    to anybody if it is `all`. The query must have joined User."""
    if user is None or not person.is_staff:
        return owner_id == person.id
    return true() if user == "all" else User.name == user


def listed(
    session: Session,
    kind: SharedKind,
    owner_id: InstrumentedAttribute[str],
    thing_id: InstrumentedAttribute[str],
    user: str | None,
    person: Person,
) -> ColumnElement[bool]:
    """Return the same as `of_whom`, with what others share with `person` among their own."""
    if user is not None and person.is_staff:
        return of_whom(owner_id, user, person)
    return may_read(reader_of(session, person.id), kind, owner_id, thing_id)


def read_by(
    session: Session,
    kind: SharedKind,
    owner_id: InstrumentedAttribute[str],
    thing_id: InstrumentedAttribute[str],
    person: Person,
) -> ColumnElement[bool]:
    """Return the condition that `person` may read the rows of a kind."""
    reader = reader_of(session, person.id, is_staff=person.is_staff)
    return may_read(reader, kind, owner_id, thing_id)
