"""What the public API gives about what is in the way of taking a node out."""

from api.leases.lease_schemas import LeaseView
from api.schema_base import View
from core.states import NodeState


class InTheWayView(View):
    """What runs on a node and what is booked on it."""

    node: str
    state: NodeState
    jobs: list[str]
    """Ids of the jobs that run on it."""
    leases: list[LeaseView]
    """Booked, active and ending ones, by their start."""
