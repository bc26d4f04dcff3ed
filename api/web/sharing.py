"""The right to read: what belongs to a person may be read by those with whom it is shared.

Every route that reads a dataset, model, tokenizer, job, agenda, study or report asks `may_read`. To
change or delete a thing is left to its owner: sharing never gives more than reading.
"""

from dataclasses import dataclass

from sqlalchemy import ColumnElement, and_, delete, exists, or_, select, true
from sqlalchemy.orm import InstrumentedAttribute, Session

from core.base import ids
from core.base.errors import NotFound
from core.tables.jobs import Job
from core.tables.kinds import AudienceKind, SharedKind
from core.tables.people import Lab, Membership
from core.tables.sharing import Share

FOR_STAFF = frozenset({SharedKind.JOB, SharedKind.AGENDA, SharedKind.STUDY, SharedKind.REPORT})
"""Kinds that staff may read of everybody; files of others are private to them too."""


@dataclass(frozen=True)
class Reader:
    """A person who wants to read."""

    id: str
    groups: frozenset[str]
    """Names of the person's labs, and their further names."""
    is_staff: bool = False


def reader_of(session: Session, user_id: str, *, is_staff: bool = False) -> Reader:
    """Return a person with the groups that they are in now."""
    rows = session.execute(
        select(Lab.name, Lab.groups)
        .join(Membership, Membership.lab_id == Lab.id)
        .where(Membership.user_id == user_id)
    )
    groups = frozenset(group for name, others in rows for group in (name, *others))
    return Reader(user_id, groups, is_staff)


def may_read(
    reader: Reader,
    kind: SharedKind,
    owner_id: InstrumentedAttribute[str],
    thing_id: InstrumentedAttribute[str],
) -> ColumnElement[bool]:
    """Return the condition that a reader may read the rows of a kind: their own, those shared with
    them, and as staff those of FOR_STAFF."""
    if reader.is_staff and kind in FOR_STAFF:
        return true()
    mine = and_(Share.audience == AudienceKind.PERSON, Share.audience_id == reader.id)
    of_group = and_(Share.audience == AudienceKind.GROUP, Share.audience_id.in_(reader.groups))
    shared = exists().where(
        Share.kind == kind,
        Share.thing_id == thing_id,
        or_(mine, of_group, Share.audience == AudienceKind.EVERYBODY),
    )
    return or_(owner_id == reader.id, shared)


def find_readable_job(
    session: Session, job_id: str, user_id: str, *, is_staff: bool = False
) -> Job | None:
    """Return a job that a person may read: their own, one shared with them, as staff any."""
    job = session.get(Job, job_id)
    if job is None or job.user_id == user_id or is_staff:
        return job
    shared = may_read(reader_of(session, user_id), SharedKind.JOB, Job.user_id, Job.id)
    return session.scalar(select(Job).where(Job.id == job_id, shared))


def require_readable_job(session: Session, job_id: str, user_id: str) -> Job:
    """Return a job that a person may read. Raises NotFound, with `job` as the field."""
    job = find_readable_job(session, job_id, user_id)
    if job is None:
        raise NotFound(f"You have no job {job_id!r}, and none is shared with you.", param="job")
    return job


def pass_on(session: Session, kind: SharedKind, old_id: str, new_id: str) -> None:
    """Share a thing's next version with those with whom the thing is shared."""
    rows = session.scalars(select(Share).where(Share.kind == kind, Share.thing_id == old_id)).all()
    session.add_all(
        Share(
            id=ids.new_id(ids.IdKind.SHARE),
            kind=kind,
            thing_id=new_id,
            owner_id=row.owner_id,
            audience=row.audience,
            audience_id=row.audience_id,
            created_at=row.created_at,
        )
        for row in rows
    )


def end_sharing(session: Session, kind: SharedKind, thing_id: str) -> None:
    """Share a thing with nobody any more, as it is deleted."""
    session.execute(delete(Share).where(Share.kind == kind, Share.thing_id == thing_id))
