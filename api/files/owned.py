"""Look-up of a person's uploads, by id or by the name that the person gave."""

from typing import TypeVar

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from api.web.identity import Person
from core.base.errors import NotFound
from core.tables.files import Dataset, Model, Tokenizer

Owned = TypeVar("Owned", Dataset, Model, Tokenizer)


def find_owned(session: Session, kind: type[Owned], person: Person, key: str) -> Owned:
    """Return a person's dataset, model or tokenizer by id or name.

    Raises NotFound, also for one that is another person's or deleted.
    """
    found = session.scalars(
        select(kind)
        .where(
            kind.user_id == person.id,
            kind.deleted_at.is_(None),
            (kind.id == key) | (kind.name == key),
        )
        .order_by(func.length(kind.name))
        .limit(1)
    ).first()
    if found is None:
        raise NotFound(f"You have no {kind.__name__.lower()} {key!r}.")
    return found
