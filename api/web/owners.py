"""Owner of the rows that a list shows."""

from typing import Annotated

from fastapi import Query
from sqlalchemy import ColumnElement, true
from sqlalchemy.orm import InstrumentedAttribute

from api.web.identity import Person
from api.web.text_types import PlainText
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
