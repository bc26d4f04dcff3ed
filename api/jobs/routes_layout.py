"""/v1/jobs/{id}/layout: places of a job's ranks, and one step of its pipeline."""

from fastapi import APIRouter
from sqlalchemy import select

from api.jobs.job_views import find_job
from api.web.auth import SignedIn
from api.web.process import ProcessDep
from api.web.schemas import View
from api.web.text_types import PlainText
from core.spec.spec import JobSpec, stored_plan, stored_spec
from core.tables.jobs import Attempt, AttemptPart
from core.tables.nodes import Node
from strategies.plan.planner import Plan
from strategies.plan.seats import Seat, TimeSlot, seats, time_slots

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])


class LayoutView(View):
    """Ranks on their nodes, and the passes of a pipeline."""

    seats: list[Seat]
    """Coordinates, node and slot of each rank; empty if the ranks are too many to draw."""
    timeline: list[TimeSlot]
    """Passes of one step of a pipeline; empty if there is no pipeline or the step is too long to
    draw."""
    nodes: list[str]
    """Names of the nodes of the newest attempt, as far as they are known."""


@router.get("/{job_id}/layout", summary="Get the placement of a job's ranks")
def get_layout(job_id: PlainText, person: SignedIn, process: ProcessDep) -> LayoutView:
    """Return each rank's place along every axis and on the nodes, and a step of the pipeline."""
    with process.read() as session:
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
