"""The jobs of agendas and studies, each in its own order."""

from collections import defaultdict
from collections.abc import Iterable

from sqlalchemy import select
from sqlalchemy.orm import InstrumentedAttribute, Session

from core.tables.jobs import Job


def jobs_in_order(
    session: Session, owner: InstrumentedAttribute[str], ids: Iterable[str]
) -> dict[str, list[Job]]:
    """Map each id to its jobs in order; empty if it has none.

    `owner` is AgendaJob.agenda_id or StudyJob.study_id, and `ids` are of agendas or studies.
    """
    link = owner.class_
    rows = session.execute(
        select(owner, Job)
        .join(Job, Job.id == link.job_id)
        .where(owner.in_(ids))
        .order_by(owner, link.position)
    )
    found: dict[str, list[Job]] = defaultdict(list)
    for owner_id, job in rows:
        found[owner_id].append(job)
    return found
