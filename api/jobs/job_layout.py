"""Placement of a job's ranks."""

from sqlalchemy import select
from sqlalchemy.orm import Session

from api.jobs.job_views import find_job
from api.jobs.schemas import LayoutView
from api.web.identity import Person
from core.spec.spec import JobSpec, stored_plan, stored_spec
from core.tables.jobs import Attempt, AttemptPart
from core.tables.nodes import Node
from strategies.plan.planner import Plan
from strategies.plan.seats import seats, time_slots


def show_layout(session: Session, job_id: str, person: Person) -> LayoutView:
    """Return the places of a job's ranks, and one step of its pipeline. Raises NotFound."""
    job = find_job(session, job_id, person)
    nodes = session.scalars(
        select(Node.name)
        .join(AttemptPart, AttemptPart.node_id == Node.id)
        .join(Attempt, Attempt.id == AttemptPart.attempt_id)
        .where(Attempt.job_id == job.id, Attempt.epoch == job.epoch)
        .order_by(AttemptPart.position)
    ).all()
    spec, plan = stored_spec(job.spec), stored_plan(job.plan)
    if not isinstance(spec, JobSpec) or not isinstance(plan, Plan):
        # Only a script knows what its ranks do; or this version can't read the row.
        return LayoutView(seats=[], timeline=[], nodes=list(nodes))
    return LayoutView(seats=seats(plan), timeline=time_slots(spec, plan), nodes=list(nodes))
