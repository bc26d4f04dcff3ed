"""The orders in which jobs can be listed, page by page."""

from enum import StrEnum
from typing import Any, TypeVarTuple

from sqlalchemy import ColumnElement, Select, func, literal, select, tuple_

from core.tables.jobs import Job

Columns = TypeVarTuple("Columns")

NO_LOSS = 1e308  # sorts after every loss


class JobOrder(StrEnum):
    """Order of a list of jobs, by the job that comes first."""

    NEWEST = "newest"
    OLDEST = "oldest"
    NAME = "name"
    LOSS = "loss"
    """The lowest last loss; jobs without one come last."""


def in_order(query: Select[*Columns], order: JobOrder, *, after: str | None) -> Select[*Columns]:
    """Return the query in this order, starting behind the job `after`: rows that change meanwhile
    are neither skipped nor repeated unless their own place has changed."""
    if order in (JobOrder.NEWEST, JobOrder.OLDEST):
        is_newest = order is JobOrder.NEWEST
        if after:
            query = query.where(Job.id < after if is_newest else Job.id > after)
        return query.order_by(Job.id.desc() if is_newest else Job.id)
    key = _key(order)
    if after:
        place = select(key).where(Job.id == after).correlate(None).scalar_subquery()
        query = query.where(tuple_(key, Job.id) > tuple_(place, literal(after)))
    return query.order_by(key, Job.id)


def _key(order: JobOrder) -> ColumnElement[Any]:
    if order is JobOrder.NAME:
        return func.lower(Job.name)
    return func.coalesce(Job.last_loss, NO_LOSS)
