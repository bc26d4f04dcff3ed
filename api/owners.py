"""Whose rows a list shows."""

from typing import Annotated

from fastapi import Query
from sqlalchemy import ColumnElement, true
from sqlalchemy.orm import InstrumentedAttribute

from api.identity import Person
from api.text_types import PlainText
from core.tables.people import User

Whose = Annotated[PlainText | None, Query(description="For staff: a person's name, or `all`.")]


def of_whom(
    owner_id: InstrumentedAttribute[str], user: str | None, person: Person
) -> ColumnElement[bool]:
    """Of `person`; for staff those of another `user` by name, if one is named, or of all. The query
    has joined User."""
    if user is None or not person.is_staff:
        return owner_id == person.id
    return true() if user == "all" else User.name == user
