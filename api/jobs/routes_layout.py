"""/v1/jobs/{id}/layout: places of a job's ranks, and one step of its pipeline."""

from fastapi import APIRouter

from api.jobs import job_layout
from api.jobs.schemas import LayoutView
from api.web.auth import SignedIn
from api.web.process import ProcessDep
from api.web.text_types import PlainText

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])


@router.get("/{job_id}/layout", summary="Get the placement of a job's ranks")
def get_layout(job_id: PlainText, person: SignedIn, process: ProcessDep) -> LayoutView:
    """Return each rank's place along every axis and on the nodes, and a step of the pipeline."""
    with process.read() as session:
        return job_layout.show_layout(session, job_id, person)
