"""Requests and answers about jobs, their plans, attempts and files."""

from typing import Any

from pydantic import Field, computed_field

from api.web.schemas import Body, Moment, View
from core.spec.inputs import InputKind
from core.spec.spec import AnyJobSpec, AnyPlan, Tags, UnreadPlan
from core.states import TERMINAL_JOB, AttemptState, Desired, JobState, Outcome
from core.wire.messages import HostUse
from strategies.plan.run_directory import RankMemory, Result
from strategies.plan.seats import Seat, TimeSlot
from strategies.plan.trust.accuracy import AccuracyRow
from strategies.plan.trust.certificate import Certificate


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


class JobInputView(View):
    """An input of a script, by its exact bytes."""

    kind: InputKind
    name: str
    """Name by which the program asks for it."""
    source: str
    """Name of the dataset or model at submission, or the checkpoint as job_.../step-N."""
    source_id: str
    path: str
    """Path of its folder inside the sandbox."""
    variable: str
    """Environment variable that holds the path."""
    sha256: str
    """SHA-256 of what `sha256sum` prints for its files, sorted by path."""
    size: int
    files: int


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
    inputs: list[JobInputView] = Field(default_factory=list)
    """Inputs of a script, as they would be resolved now."""
    network: list[str] = Field(default_factory=list)
    """Hosts that a script may reach on the chosen class, of those that it asks for."""
    fetch_s: float | None = None
    """Seconds in which a node that has none of what the job reads fetches it, before the start: the
    inputs of a script, or the dataset, model and tokenizer of a recipe. Null if there is nothing to
    fetch, or if no node of the class has measured its rate yet."""


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
    hosts: list[HostUse] = Field(default_factory=list)
    """Hosts that a program has reached from this node, or tried to, so far."""


class JobTags(Body):
    """Tags of a job, in place of earlier ones."""

    tags: Tags


class JobReport(Body):
    """Choice whether a job's report is written by itself."""

    when_ended: bool
    """Write a report when the job has ended; at once if it has. False: do not."""


class JobView(View):
    """A job."""

    id: str
    name: str
    user: str
    """Name of the job's owner."""
    state: JobState
    desired: Desired
    reason_code: str
    """Reason for its state, for machines: why it waits, or its outcome. docs/states.md lists the
    codes; more may be added."""
    reason: str
    """Reason for its state, in a sentence for its owner."""
    predicted_start: Moment | None
    spec: AnyJobSpec | dict[str, Any] = Field(union_mode="left_to_right")
    """The spec; as a stored document if this version of the platform cannot read it (`reason` says
    so)."""
    plan: AnyPlan | UnreadPlan
    lease: str | None
    """The booked lease that the job's owner named."""
    cloned_from: str | None
    tags: list[str] = Field(default_factory=list)
    """Words to find the job by: those of its spec until they were changed."""
    report_when_ended: bool = False
    """True while a report is to be written when the job has ended."""
    report: str | None = None
    """Hash of the report that was written when the job had ended; null if there is none."""
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
    is_held: bool = False
    """True while the sandbox of an attempt that has failed is held: its owner may open a shell in
    it, or release it."""
    wall_time_s: int
    used_s: int
    certificate: Certificate | None
    """Comparison of the first steps with one rank; null unless the spec asks for it and they are
    done."""
    result: Result | None
    inputs: list[JobInputView] = Field(default_factory=list)
    """Inputs of a script, resolved when the job was submitted."""
    created_at: Moment
    started_at: Moment | None
    finished_at: Moment | None

    @computed_field  # type: ignore[prop-decorator]  # as pydantic documents it
    @property
    def is_final(self) -> bool:
        """True once the job has ended for good."""
        return self.state in TERMINAL_JOB


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
    memory: list[RankMemory]
    """Planned and used memory of each rank, by phase; empty unless the plan said that the job does
    not fit, and it ran nevertheless (`resources.allow_oom`)."""
    resumed_from_step: int | None
    preflight: PreflightView | None
    """Report of the preflight; null if the attempt ran none. A single rank needs none, and what the
    ranks of a node have proved is valid for an hour."""
    assigned_at: Moment
    started_at: Moment | None
    first_step_at: Moment | None
    ended_at: Moment | None


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


class LayoutView(View):
    """Ranks on their nodes, and the passes of a pipeline."""

    seats: list[Seat]
    """Coordinates, node and slot of each rank; empty if the ranks are too many to draw."""
    timeline: list[TimeSlot]
    """Passes of one step of a pipeline; empty if there is no pipeline or the step is too long to
    draw."""
    nodes: list[str]
    """Names of the nodes of the newest attempt, as far as they are known."""
