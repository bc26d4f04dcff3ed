"""Events of a job."""

from sqlalchemy import select
from sqlalchemy.orm import Session

from api.jobs.job_views import (
    find_job,
)
from api.web.identity import Person
from api.web.paging import page
from api.web.schemas import EventView, Page
from core.tables.jobs import Event


def events_of(
    session: Session, job_id: str, person: Person, *, limit: int, after: int
) -> Page[EventView]:
    """Return a page of a job's events, oldest first. Raises NotFound."""
    job = find_job(session, job_id, person)
    query = select(Event).where(Event.subject == job.id)
    rows = page(session, query, Event.id, after=after, limit=limit, rising=True)
    data = [EventView.model_validate(event) for (event,) in rows]
    return Page[EventView](data=data, has_more=rows.has_more)
