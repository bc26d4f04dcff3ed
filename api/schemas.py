"""What the public API takes and gives: the contract of client, dashboard and scripts.

Times are RFC 3339 with an offset. Lists are `{"object": "list", "data": [...], "has_more": bool}`;
the next page starts `after` the last id of this one.
"""

from typing import Any, Literal

from pydantic import Field, computed_field

from api.leases.lease_schemas import LeaseView as LeaseView
from api.people.people_schemas import (
    FirstStart as FirstStart,
)
from api.people.people_schemas import (
    LabView as LabView,
)
from api.people.people_schemas import (
    LinkSignIn as LinkSignIn,
)
from api.people.people_schemas import (
    LinkView as LinkView,
)
from api.people.people_schemas import (
    MyChange as MyChange,
)
from api.people.people_schemas import (
    NewLab as NewLab,
)
from api.people.people_schemas import (
    NewMember as NewMember,
)
from api.people.people_schemas import (
    NewToken as NewToken,
)
from api.people.people_schemas import (
    NewUser as NewUser,
)
from api.people.people_schemas import (
    Password as Password,
)
from api.people.people_schemas import (
    SignIn as SignIn,
)
from api.people.people_schemas import (
    TokenMade as TokenMade,
)
from api.people.people_schemas import (
    TokenView as TokenView,
)
from api.people.people_schemas import (
    UserChange as UserChange,
)
from api.people.people_schemas import (
    UserName as UserName,
)
from api.people.people_schemas import (
    UserView as UserView,
)
from api.schema_base import (
    Body as Body,
)
from api.schema_base import (
    Moment as Moment,
)
from api.schema_base import (
    Page as Page,
)
from api.schema_base import (
    View as View,
)
from core.base.node_names import NodeName
from core.spec.spec import AnyJobSpec, AnyPlan, UnreadPlan
from core.states import TERMINAL_JOB, AttemptState, Desired, JobState, NodeState, Outcome
from core.wire.messages import Inventory, Telemetry
from strategies.catalog import ResultClass
from strategies.hardware import Hardware
from strategies.planning.accuracy import AccuracyRow
from strategies.planning.seats import Seat, TimeSlot
from strategies.run_directory import Result
from strategies.trust.certificate import Certificate, Difference, Verdict
from strategies.trust.scaling import Measured, StudyKind

# ------------------------------------------------------------------------------------------ jobs


class PlanRequest(Body):
    """A job that is only planned."""

    spec: AnyJobSpec


class ClassPlan(View):
    """The plan on one node class."""

    node_class: str
    plan: AnyPlan
    ready_nodes: int
    seats: list[Seat]
    """Where each rank sits; empty where there are more than can be drawn."""
    timeline: list[TimeSlot]
    """What a pipeline's ranks do in a step; empty where there is no pipeline."""


class AccuracyView(View):
    """How near plans were to what runs then needed."""

    rows: list[AccuracyRow]


class PlanView(View):
    """The plan on every class it was asked for; `chosen` is where the job would go."""

    plans: list[ClassPlan]
    chosen: str | None
    predicted_start: Moment | None
    predicted_finish: Moment | None
    """Where start and speed are known, whether or not that is after the end of the lease."""
    lease_end: Moment | None
    """When jobs in the lease that the spec names are stopped."""
    reason: str
    """In a sentence: where and when it would start, or why it can't."""


class PlaceView(View):
    """An attempt on one of its nodes."""

    node: str
    """Name."""
    lease: str
    slots: list[int]
    """Indices of the GPUs, or CPU slots, that it has there, one for each rank."""
    ranks: list[int]
    reason: str
    """How it ended there, as this node tells it; empty before."""


class JobView(View):
    """A job."""

    id: str
    name: str
    user: str
    """Name of its owner."""
    state: JobState
    desired: Desired
    reason_code: str
    reason: str
    predicted_start: Moment | None
    spec: AnyJobSpec | dict[str, Any] = Field(union_mode="left_to_right")
    """As it is stored where this version of the platform can't read it; `reason` says so then."""
    plan: AnyPlan | UnreadPlan
    lease: str | None
    """The booked lease that its owner named."""
    cloned_from: str | None
    study: str | None
    """The study that it belongs to."""
    agenda: str | None
    """The agenda that it belongs to."""
    epoch: int
    node: str | None
    """Name of the node it is on; of several the first, where rank 0 runs."""
    nodes: list[PlaceView]
    """All of them, while it is on any."""
    steps: int
    """0: of a script, which does not say how many it makes."""
    step: int
    loss: float | None
    tokens_per_s: float | None
    stops_at: Moment | None
    """When its present attempt is stopped at the latest."""
    wall_time_s: int
    used_s: int
    certificate: Certificate | None
    """Of its first steps against one rank, if the spec asks for it and they are done."""
    result: Result | None
    created_at: Moment
    started_at: Moment | None
    finished_at: Moment | None

    @computed_field  # type: ignore[prop-decorator]  # as pydantic documents it
    @property
    def is_final(self) -> bool:
        """Whether it has ended for good."""
        return self.state in TERMINAL_JOB


class ComparisonView(View):
    """The curves of two jobs over the steps that both have."""

    job: str
    other: str
    verdict: Verdict
    """`exempt`: one of them promises nothing."""
    result_class: ResultClass
    """The weaker of their promises."""
    steps: int
    loss: Difference
    grad_norm: Difference | None


class StudyJobView(View):
    """A job of a study."""

    job: str
    label: str
    """What sets it apart: `2 ranks`, `GPipe`."""
    ranks: int
    state: JobState
    reason: str
    step: int
    steps: int


class StudyView(View):
    """Jobs that were submitted together. The first is what the others are compared with."""

    id: str
    name: str
    user: str
    """Name of its owner."""
    kind: StudyKind
    jobs: list[StudyJobView]
    is_final: bool
    """Whether all of them have ended."""
    created_at: Moment


class StudyReport(StudyView):
    """A study and what it found so far."""

    summary: str
    """In one or two sentences."""
    points: list[Measured]
    """In the order of the jobs."""


class PreflightCheck(View):
    """One collective, once, between all ranks."""

    check: str
    """Such as `all_reduce (sum, float32, 16 KiB)`."""
    right: bool
    ms: float
    bus_gb_per_s: float
    """10^9 bytes per second over the busiest link."""
    slowest_rank: int
    """Which the others waited for."""


class PreflightView(View):
    """How the ranks proved themselves to each other before the first step."""

    seconds: float
    device: str
    backend: str
    torch: str
    ranks: int
    checks: list[PreflightCheck]
    findings: list[str]
    """A sentence for whatever was wrong, worst first."""


class AttemptView(View):
    """One try at running a job."""

    id: str
    epoch: int
    node: str
    """Of several nodes the first, where rank 0 runs."""
    lease: str
    nodes: list[PlaceView]
    state: AttemptState
    outcome: Outcome | None
    reason: str
    launcher: str
    culprit_rank: int | None
    signal: int | None
    exit_code: int | None
    last_lines: list[str]
    resumed_from_step: int | None
    preflight: PreflightView | None
    """None: it did none. One rank has no others, and what ranks of a node proved holds for an
    hour."""
    assigned_at: Moment
    started_at: Moment | None
    first_step_at: Moment | None
    ended_at: Moment | None


class EventView(View):
    """Something that happened to a job, node or lease."""

    id: int
    at: Moment
    epoch: int | None
    kind: str
    from_state: str | None
    to_state: str | None
    reason_code: str
    message: str
    actor: str


class Series(View):
    """One metric of one rank, down-sampled to at most `resolution` points; extremes are kept.

    `steps` and `values` have the same length. `min` and `max` are the band around each point when
    several were merged into it, else empty.
    """

    key: str
    rank: int
    steps: list[int]
    values: list[float | None]
    min: list[float | None] = Field(default_factory=list)
    max: list[float | None] = Field(default_factory=list)
    points: int
    """How many were recorded."""


class MetricsView(View):
    """Series of a job, over all its attempts; a step that was run twice has its last value."""

    job: str
    keys: list[str]
    """All keys that exist, also those not asked for."""
    series: list[Series]


class LogLine(View):
    """One line of one rank's output."""

    epoch: int
    rank: int
    """-1 is the launcher."""
    stream: str
    line: int
    text: str


class LogsView(View):
    """Lines, oldest first. `cursor` is where the next call goes on."""

    lines: list[LogLine]
    cursor: str
    has_more: bool
    ranks: list[int]


class LiveMetrics(View):
    """Data of a stream's `metrics` event: new lines of `metrics.jsonl`, each stored once."""

    epoch: int
    rank: int
    lines: list[dict[str, float | int | None]]
    """Each has `step`, `line` (its number) and the numeric keys of that line."""


class LiveLog(View):
    """Data of a stream's `log` event."""

    lines: list[LogLine]


class CheckpointView(View):
    """A checkpoint in the store."""

    id: str
    epoch: int
    step: int
    size: int
    files: int
    created_at: Moment


class ArtifactView(View):
    """A file that a job left behind."""

    id: str
    epoch: int
    path: str
    size: int
    sha256: str
    created_at: Moment


# --------------------------------------------------------------------- datasets, nodes and leases


class DatasetImages(View):
    """What a dataset of images holds, as a job must say it."""

    count: int
    """To train on, those that `data.held_out` keeps back among them."""
    tests: int
    """That came as a part for tests."""
    image_shape: list[int]
    """Height, width, channels."""
    classes: int
    """The largest label + 1."""


class DatasetView(View):
    """A text, or images, that jobs can train on. Built-in ones belong to nobody."""

    id: str
    name: str
    built_in: bool
    format: str
    size: int
    lines: int | None
    characters: int | None
    images: DatasetImages | None
    """None of a text."""
    warnings: list[str]
    created_at: Moment | None


class DatasetPreview(View):
    """The beginning of a text, or what images there are."""

    text: str
    is_all: bool


class ModelFile(View):
    """One file of a model's folder."""

    path: str
    size: int
    sha256: str


class ModelView(View):
    """A Hugging Face model that jobs can start from."""

    id: str
    name: str
    architecture: str
    """As its config.json names it."""
    parameters: int
    size: int
    files: list[ModelFile]
    has_tokenizer: bool
    model: dict[str, Any]
    """The `model` part of a spec that starts from it."""
    vocabulary_size: int
    """What `data.vocabulary_size` must be."""
    longest_sequence: int | None
    """What `data.sequence_length` may be at most; null: nothing is known against any."""
    created_at: Moment


class NodeView(View):
    """A node. Its inventory and use are for everybody; its address is not shown."""

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
    """Who holds it now."""
    job: str | None
    """The first of `jobs`."""
    jobs: list[str]
    """What runs on it now."""
    free_at: Moment | None
    """None if it is free now."""


class NewEnrolment(Body):
    """A node that may join once."""

    name: NodeName
    node_class: str | None = Field(default=None, pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")
    """None lets the hardware name it, such as `cpu2` or `a100x4`."""


class EnrolmentView(View):
    """The single-use token for a node and the command to run there."""

    token: str
    command: str
    expires_at: Moment


class AuditView(EventView):
    """Who did what; `kind` is the action, such as `node.drain`."""

    subject: str
    details: dict[str, Any]
    actor_name: str | None
    """What the person or node is called now; null for a process."""
    subject_name: str | None
    """The same of what it was about."""


class Health(View):
    """An answer for machines."""

    status: Literal["ok"]
    version: str
    """Of the platform."""


class Me(View):
    """Who is asking."""

    user: UserView
    labs: list[str]
    queued: int
    running: int
    lease: LeaseView | None
    """The lease that is active now, or the next booked one."""


class ProblemItem(View):
    """One thing that is wrong with a request."""

    param: str
    code: str
    message: str


class ProblemDocument(View):
    """RFC 9457 problem document."""

    type: str = "about:blank"
    title: str
    status: int
    code: str
    detail: str
    param: str | None = None
    errors: list[ProblemItem] = Field(default_factory=list)
    choices: list[str] = Field(default_factory=list)
    """What could be asked for instead: moments."""
