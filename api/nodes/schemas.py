"""Requests and answers about nodes, and about jobs and leases in the way of taking one out."""

from typing import Literal

from pydantic import Field

from api.leases.schemas import LeaseView
from api.web.schemas import Body, Moment, View
from api.web.text_types import PlainText
from core.base.node_names import NodeName
from core.states import NodeState, Sharing
from core.tables.kinds import OccupancyKind, SlotState
from core.wire.messages import Fabric, Inventory, Telemetry
from strategies.plan.hardware import Hardware
from strategies.plan.trust.proof import Proof


class RunningJobView(View):
    """A job that runs on a node."""

    id: str
    name: str
    user: str


class NodeActReason(Body):
    """Reason for an act on a node. It is shown to everyone with the node's state."""

    reason: PlainText = Field(min_length=3, max_length=300)


class InTheWayView(View):
    """Jobs that run on a node, and leases on it, all in the way of taking the node out."""

    node: str
    state: NodeState
    jobs: list[RunningJobView]
    leases: list[LeaseView]
    """Booked, active and ending leases, sorted by start."""


class ProofSummaryView(View):
    """The last proof of a node (`trainyard prove`), in short."""

    sha256: str
    """Hash of the proof, its name."""
    proven_at: Moment
    device: Literal["cpu", "cuda"]
    driver: str
    torch: str
    sentence: str
    """Numbers of checks passed, and the names of those that failed or were skipped."""
    failed: list[str]
    skipped: list[str]
    changes: list[str]
    """Differences of the node's hardware and software now, such as another driver."""


class ProofDocument(View):
    """A whole proof. `sha256` is that of `content` as JSON with sorted keys and no spaces."""

    sha256: str
    content: Proof


class SlotView(View):
    """A slot of a node: a GPU, or a CPU slot."""

    slot: int
    """Number of the slot, from 0."""
    state: SlotState
    """`ready`, `dirty` (not known to be clean after its last job) or `quarantined` (out of
    service); jobs start on ready slots only."""
    reason: str
    """Reason why it is out of service; else empty."""


class NodeView(View):
    """A node. Everybody sees its inventory and use; its address is not shown."""

    id: str
    name: str
    node_class: str
    state: NodeState
    reason: str
    hardware: Hardware
    fabric: Fabric
    """Network between the nodes of its class."""
    inventory: Inventory
    slots: list[SlotView]
    sharing: Sharing = Sharing.NONE
    """Jobs of different owners that it can run beside each other: parts of it can be leased unless
    it is `none`."""
    no_sharing: str = ""
    """Reason why not all of them, in a clause; else empty."""
    telemetry: Telemetry | None
    reachable: bool
    last_seen_at: Moment | None
    unreachable_since: Moment | None
    proof: ProofSummaryView | None
    """Last proof that the node trains as planned; null if it was never proven."""
    user: str | None
    """The first of `users`."""
    users: list[str] = Field(default=[])
    """Names of the users who hold slots of the node now."""
    job: str | None
    """The first of `jobs`."""
    jobs: list[str]
    """Ids of the jobs that run on the node now."""
    job_names: dict[str, str] = Field(default={})
    """Map id -> name of those of `jobs` that you may see: your own, and for staff all."""
    free_at: Moment | None
    """End of the holds that follow each other on the node without a break; null if it is free
    now."""


class NodeHoldView(View):
    """Hours for which a node, or some of its slots, is taken."""

    kind: OccupancyKind
    """`lease`, `offer` (a block held for somebody of the waitlist), `maintenance` or `down`."""
    walk_in: bool
    """True for the lease of a job that was started without booking."""
    hold_start: Moment
    hold_end: Moment
    gpus: int
    """Number of GPUs, or CPU slots."""
    slots: list[int]
    """Indices of the slots, once the lease has them; else empty."""
    user: str | None
    """Name of the owner of a lease that has begun, of your own and, for staff, of every lease."""
    lease: str | None
    """Id of the lease, if you may see it."""


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
