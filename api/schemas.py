"""Requests and answers of the public API: the contract of client, dashboard and scripts.

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
    """Coordinates, node and slot of each rank; empty if the ranks are too many to draw."""
    timeline: list[TimeSlot]
    """Passes of one step of a pipeline; empty if there is no pipeline or the step is too long to
    draw."""


class AccuracyView(View):
    """Accuracy of plans: planned memory against the memory that runs then needed."""

    rows: list[AccuracyRow]


class PlanView(View):
    """The plan on every node class that the job may run on; `chosen` is the class where it would
    go."""

    plans: list[ClassPlan]
    chosen: str | None
    predicted_start: Moment | None
    predicted_finish: Moment | None
    """Predicted finish; may be later than the lease's end. Null if start or speed is not known."""
    lease_end: Moment | None
    """Moment at which jobs in the lease that the spec names are stopped."""
    reason: str
    """Explanation in words: where and when the job would start, or why it cannot."""


class PlaceView(View):
    """One node of an attempt."""

    node: str
    """Name of the node."""
    lease: str
    slots: list[int]
    """Indices of the GPUs, or CPU slots, that the attempt has on this node, one for each rank."""
    ranks: list[int]
    reason: str
    """Reason of the attempt's end on this node, as the node reports it; empty until then."""


class JobView(View):
    """A job."""

    id: str
    name: str
    user: str
    """Name of the job's owner."""
    state: JobState
    desired: Desired
    reason_code: str
    reason: str
    predicted_start: Moment | None
    spec: AnyJobSpec | dict[str, Any] = Field(union_mode="left_to_right")
    """The spec; as a stored document if this version of the platform cannot read it (`reason` says
    so)."""
    plan: AnyPlan | UnreadPlan
    lease: str | None
    """The booked lease that the job's owner named."""
    cloned_from: str | None
    study: str | None
    """The study that the job belongs to."""
    agenda: str | None
    """The agenda that the job belongs to."""
    epoch: int
    node: str | None
    """Name of the node that the job is on; of several nodes the first, where rank 0 runs."""
    nodes: list[PlaceView]
    """All nodes that the job is on; empty while it is on none."""
    steps: int
    """Number of training steps; 0 for a script, whose number of steps is not known."""
    step: int
    loss: float | None
    tokens_per_s: float | None
    stops_at: Moment | None
    """Latest moment at which the present attempt is stopped."""
    wall_time_s: int
    used_s: int
    certificate: Certificate | None
    """Comparison of the first steps with one rank; null unless the spec asks for it and they are
    done."""
    result: Result | None
    created_at: Moment
    started_at: Moment | None
    finished_at: Moment | None

    @computed_field  # type: ignore[prop-decorator]  # as pydantic documents it
    @property
    def is_final(self) -> bool:
        """True once the job has ended for good."""
        return self.state in TERMINAL_JOB


class ComparisonView(View):
    """The curves of two jobs over the steps that both have."""

    job: str
    other: str
    verdict: Verdict
    """Verdict on the two curves; `exempt`: one of the jobs promises nothing."""
    result_class: ResultClass
    """The weaker of the two jobs' promises."""
    steps: int
    loss: Difference
    grad_norm: Difference | None


class StudyJobView(View):
    """A job of a study."""

    job: str
    label: str
    """Difference from the other jobs: `2 ranks`, `GPipe`."""
    ranks: int
    state: JobState
    reason: str
    step: int
    steps: int


class StudyView(View):
    """Jobs that were submitted together. The others are compared with the first."""

    id: str
    name: str
    user: str
    """Name of the study's owner."""
    kind: StudyKind
    jobs: list[StudyJobView]
    is_final: bool
    """True once all jobs of the study have ended."""
    created_at: Moment


class StudyReport(StudyView):
    """A study and its findings so far."""

    summary: str
    """The findings in one or two sentences."""
    points: list[Measured]
    """Measurements, in the order of the jobs."""


class PreflightCheck(View):
    """One collective operation, run once between all ranks."""

    check: str
    """Name of the check, such as `all_reduce (sum, float32, 16 KiB)`."""
    right: bool
    ms: float
    bus_gb_per_s: float
    """10^9 bytes per second over the busiest link."""
    slowest_rank: int
    """The rank that the others waited for."""


class PreflightView(View):
    """Preflight: checks of communication between the ranks before the first step."""

    seconds: float
    device: str
    backend: str
    torch: str
    ranks: int
    checks: list[PreflightCheck]
    findings: list[str]
    """One sentence for each thing that was wrong, worst first."""


class AttemptView(View):
    """One try at running a job."""

    id: str
    epoch: int
    node: str
    """Name of the node; of several nodes the first, where rank 0 runs."""
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
    """Report of the preflight; null if the attempt ran none. A single rank needs none, and what the
    ranks of a node have proved is valid for an hour."""
    assigned_at: Moment
    started_at: Moment | None
    first_step_at: Moment | None
    ended_at: Moment | None


class EventView(View):
    """One event in the history of a job, node or lease."""

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
    """Number of recorded points."""


class MetricsView(View):
    """Series of a job, over all its attempts; a step that was run twice has its last value."""

    job: str
    keys: list[str]
    """All keys that exist, including those that were not requested."""
    series: list[Series]


class LogLine(View):
    """One line of one rank's output."""

    epoch: int
    rank: int
    """Rank that wrote the line; -1 is the launcher, -2 the launcher of the second node, and so
    on."""
    stream: str
    line: int
    text: str


class LogsView(View):
    """Lines, oldest first. `cursor` is the position from which the next call continues."""

    lines: list[LogLine]
    cursor: str
    has_more: bool
    ranks: list[int]


class LiveMetrics(View):
    """Data of a stream's `metrics` event: new lines of `metrics.jsonl`, each stored once."""

    epoch: int
    rank: int
    lines: list[dict[str, float | int | None]]
    """New lines. Each has `step`, `line` (its number) and the numeric keys of that line."""


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
    """Contents of a dataset of images, in the terms that a job's spec must use."""

    count: int
    """Number of training images, including those that `data.held_out` keeps back."""
    tests: int
    """Number of images in the dataset's own test part."""
    image_shape: list[int]
    """Height, width and channels."""
    classes: int
    """The largest label + 1."""


class DatasetView(View):
    """A text, or images, that jobs can train on. Built-in datasets have no owner."""

    id: str
    name: str
    built_in: bool
    format: str
    size: int
    lines: int | None
    characters: int | None
    images: DatasetImages | None
    """Images of the dataset; null for a text."""
    warnings: list[str]
    created_at: Moment | None


class DatasetPreview(View):
    """The beginning of a text, or a description of the images."""

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
    """Architecture as named in the model's config.json."""
    parameters: int
    size: int
    files: list[ModelFile]
    has_tokenizer: bool
    model: dict[str, Any]
    """The `model` part of a spec that starts from this model."""
    vocabulary_size: int
    """Required value of `data.vocabulary_size`."""
    longest_sequence: int | None
    """Largest allowed `data.sequence_length`; null if no limit is known."""
    created_at: Moment


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


class AuditView(EventView):
    """One entry of the audit log: who did what. `kind` is the action, such as `node.drain`."""

    subject: str
    details: dict[str, Any]
    actor_name: str | None
    """Present name of the person or node that acted; null for a process."""
    subject_name: str | None
    """Present name of the entry's subject."""


class Health(View):
    """Health of the API, for machines."""

    status: Literal["ok"]
    version: str
    """Version of the platform."""


class Me(View):
    """The signed-in person, with labs, jobs and lease."""

    user: UserView
    labs: list[str]
    queued: int
    running: int
    lease: LeaseView | None
    """The lease that is active now, or the next booked one."""


class ProblemItem(View):
    """One error in a request."""

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
    """Moments that could be asked for instead."""
