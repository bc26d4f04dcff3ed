"""Jobs that run on the node of a world."""

from tests.api.conftest import World
from tests.api.shapes import job_spec, place


def running_job(world: World, *, num_slots: int | None = None) -> str:
    """Submit ann's example job and place it on `box`, or on so many slots of it; return its id."""
    job_id = str(world.ann.post("/v1/jobs", json=job_spec()).json()["id"])
    place(world.database, job_id, num_slots=num_slots)
    return job_id
