"""Answers of the public API about jobs and leases in the way of taking a node out."""

from api.leases.lease_schemas import LeaseView
from api.schema_base import View
from core.states import NodeState


class RunningJobView(View):
    """A job that runs on a node."""

    id: str
    name: str
    user: str


class InTheWayView(View):
    """Jobs that run on a node, and leases on it, all in the way of taking the node out."""

    node: str
    state: NodeState
    jobs: list[RunningJobView]
    leases: list[LeaseView]
    """Booked, active and ending leases, sorted by start."""
