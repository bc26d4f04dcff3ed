"""Lists in pages: each begins after the last row of the page before."""

from collections.abc import Sequence
from typing import Any, TypeVar, TypeVarTuple

from sqlalchemy import Row, Select
from sqlalchemy.orm import InstrumentedAttribute, Session

Columns = TypeVarTuple("Columns")
One = TypeVar("One")


class Rows(list[One]):
    """The rows of one page."""

    def __init__(self, found: Sequence[One], limit: int) -> None:
        super().__init__(found[:limit])
        self.has_more = len(found) > limit


def page(
    session: Session,
    query: Select[*Columns],
    key: InstrumentedAttribute[Any],
    *,
    after: str | int | None,
    limit: int,
    rising: bool = False,
) -> Rows[Row[*Columns]]:
    """Return the next `limit` rows by falling `key`, or by rising; `after` is the last key of the
    page before."""
    if after:
        query = query.where(key > after if rising else key < after)
    return cut(session, query.order_by(key if rising else key.desc()), limit=limit)


def cut(session: Session, query: Select[*Columns], *, limit: int) -> Rows[Row[*Columns]]:
    """Return the first `limit` rows of a query that has its order already."""
    return Rows(session.execute(query.limit(limit + 1)).all(), limit)
