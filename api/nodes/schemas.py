"""Requests and answers about nodes, and about jobs and leases in the way of taking one out."""

from pydantic import Field

from api.leases.schemas import LeaseView
from api.web.schemas import Body, Moment, View
from core.base.node_names import NodeName
from core.states import NodeState
from core.wire.messages import Inventory, Telemetry
from strategies.plan.hardware import Hardware


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


class NodeView(View):
    """A node. Everybody sees its inventory and use; its address is not shown."""

    id: str
    name: str
    node_class: str
    state: NodeState
    reason: str
    hardware: Hardware
    inventory: Inventory
    telemetry: Telemetry | None
    reachable: bool
    last_seen_at: Moment | None
    unreachable_since: Moment | None
    user: str | None
    """Name of the user who holds the node now."""
    job: str | None
    """The first of `jobs`."""
    jobs: list[str]
    """Ids of the jobs that run on the node now."""
    free_at: Moment | None
    """End of the holds that follow each other on the node without a break; null if it is free
    now."""


class NewEnrolment(Body):
    """A node that may join once."""

    name: NodeName
    node_class: str | None = Field(default=None, pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")
    """Name of the node class. Null: derived from the hardware, such as `cpu2` or `a100x4`."""


class EnrolmentView(View):
    """The single-use token of a node and the command to run there."""

    token: str
    command: str
    expires_at: Moment
