"""Look-up of things with names: datasets, models, tokenizers, templates; by id or name."""

from typing import TypeVar

from sqlalchemy import ColumnElement, Select, and_, func, select
from sqlalchemy.orm import Session

from api.web.identity import Person
from api.web.sharing import may_read, reader_of
from core.base.errors import NotFound
from core.tables.files import Dataset, Model, Tokenizer
from core.tables.kinds import SharedKind
from core.tables.people import User
from core.tables.templates import Template

Owned = TypeVar("Owned", Dataset, Model, Tokenizer, Template)


def find_owned(session: Session, kind: type[Owned], person: Person, key: str) -> Owned:
    """Return a person's own dataset, model or tokenizer by id or name, to change it.

    Raises NotFound, also for one that is another person's or deleted.
    """
    found = session.scalars(_own(kind, person.id, key)).first()
    if found is None:
        raise NotFound(f"You have no {word(kind)} {key!r}.")
    return found


def find_readable(session: Session, kind: type[Owned], user_id: str, key: str) -> Owned | None:
    """Return a dataset, model or tokenizer that a person may read; None if there is none.

    `key` is an id, the name of one of their own, or OWNER/NAME of one that is shared with them.
    """
    own = session.scalars(_own(kind, user_id, key)).first()
    if own is not None:
        return own
    owner, slash, name = key.partition("/")
    named = (User.name == owner) & (kind.name == name) if slash else kind.id == key
    return session.scalars(
        select(kind)
        .join(User, User.id == kind.user_id)
        .where(_readable(session, kind, user_id), named)
    ).first()


def show_readable(
    session: Session, kind: type[Owned], person: Person, key: str
) -> tuple[Owned, str]:
    """Return what `find_readable` does, with its owner's name. Raises NotFound."""
    found = find_readable(session, kind, person.id, key)
    if found is None:
        raise NotFound(f"You have no {word(kind)} {key!r}.")
    return found, session.get_one(User, found.user_id).name


def all_readable(session: Session, kind: type[Owned], person: Person) -> Select[Owned, str]:
    """Select what a person may read of a kind, with the names of the owners."""
    rows = select(kind, User.name).join(User, User.id == kind.user_id)
    return rows.where(_readable(session, kind, person.id))


def reference(session: Session, thing: Dataset | Model | Tokenizer, user_id: str) -> str:
    """Return the name by which a person's jobs name a thing: OWNER/NAME, if it is another's."""
    if thing.user_id == user_id:
        return thing.name
    return f"{session.get_one(User, thing.user_id).name}/{thing.name}"


def word(kind: type[Owned]) -> str:
    """Return the word for a kind in sentences."""
    return kind.__name__.lower()


def _own(kind: type[Owned], user_id: str, key: str) -> Select[Owned]:
    own = select(kind).where(kind.user_id == user_id, kind.deleted_at.is_(None))
    named = own.where((kind.id == key) | (kind.name == key))
    return named.order_by(func.length(kind.name)).limit(1)


def _readable(session: Session, kind: type[Owned], user_id: str) -> ColumnElement[bool]:
    allowed = may_read(reader_of(session, user_id), SharedKind(word(kind)), kind.user_id, kind.id)
    return and_(kind.deleted_at.is_(None), allowed)
