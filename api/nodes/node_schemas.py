"""What the public API gives about what is in the way of taking a node out."""

from api.leases.lease_schemas import LeaseView
from api.schema_base import View
from core.states import NodeState


class RunningJobView(View):
    """A job that runs on a node."""

    id: str
    name: str
    user: str


class InTheWayView(View):
    """What runs on a node and what is booked on it."""

    node: str
    state: NodeState
    jobs: list[RunningJobView]
    leases: list[LeaseView]
    """Booked, active and ending ones, by their start."""
