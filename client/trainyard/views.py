"""What the API answers, as frozen dataclasses. Times carry their offset.

States and outcomes are plain strings, so that a server may know more of them than this client.
"""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from trainyard.decoding import View
from trainyard.lease_views import Availability as Availability
from trainyard.lease_views import FreeHour as FreeHour
from trainyard.lease_views import Lease as Lease

FINAL_STATES = frozenset({"succeeded", "failed", "cancelled"})


# ---------------------------------------------------------------------------------------- people


@dataclass(frozen=True, kw_only=True)
class User(View):
    """A person. `role` is user, staff or admin."""

    id: str
    name: str
    role: str
    zone: str
    email: str | None
    attributes: dict[str, str]
    disabled: bool
    created_at: datetime


@dataclass(frozen=True, kw_only=True)
class Token(View):
    """An API token, without its secret. `scopes` are read, jobs, leases, account, all."""

    id: str
    name: str
    scopes: tuple[str, ...]
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None
    revoked_at: datetime | None


@dataclass(frozen=True, kw_only=True)
class NewToken(Token):
    """A fresh token. `secret` is shown this once."""

    secret: str
    user: User

    def __repr__(self) -> str:
        return f"NewToken(id={self.id!r}, name={self.name!r}, user={self.user.name!r})"


@dataclass(frozen=True, kw_only=True)
class Link(View):
    """A link that works once."""

    url: str
    secret: str
    expires_at: datetime


# ---------------------------------------------------------------------------------- plan and job


@dataclass(frozen=True, kw_only=True)
class Problem(View):
    """Why a plan cannot run: the field of the spec, and a sentence with the numbers."""

    code: str
    param: str
    message: str


@dataclass(frozen=True, kw_only=True)
class MemoryTerm(View):
    """One line of a plan's memory, GiB per rank."""

    name: str
    gib: float
    exact: bool
    source: str


@dataclass(frozen=True, kw_only=True)
class Traffic(View):
    """What one rank sends along one axis in one step."""

    axis: str
    ranks: int
    num_bytes: int
    crosses_nodes: bool
    overlaps: bool
    what: str


@dataclass(frozen=True, kw_only=True)
class StepTime(View):
    """How long a step should take, and between what and what."""

    expected_s: float
    low_s: float
    high_s: float
    compute_s: float
    traffic_s: float
    basis: str


@dataclass(frozen=True, kw_only=True)
class Cost(View):
    """What a run costs. Times are None where the hardware's speed is not known."""

    flops_per_token: int
    flops_per_step: int
    convention: str
    traffic: tuple[Traffic, ...]
    bubble: float
    """The share of a step in which a pipeline's rank waits."""
    step_time: StepTime | None
    tokens_per_s: float | None
    total_s: float | None
    gpu_hours: float | None


@dataclass(frozen=True, kw_only=True)
class Advice(View):
    """A change that would make a job fit, or several together, and what it would come to."""

    title: str
    change: dict[str, Any]
    costs: str
    fits: bool
    needed_gib: float
    slow_down: float | None
    """Step time over that of the job as it is."""
    result_class: str
    changes_training: bool


@dataclass(frozen=True, kw_only=True)
class Plan(View):
    """A spec resolved against the hardware of one node class.

    Of a script only the ranks, the device and the problems are known; the rest is then 0 or empty.
    """

    strategy: str
    layout: dict[str, int] = field(default_factory=dict)
    device: str
    world_size: int
    nodes: int
    ranks_per_node: int
    micro_batch_size: int = 0
    gradient_accumulation_steps: int = 0
    global_batch_size: int = 0
    tokens_per_step: int = 0
    parameters: int = 0
    trainable_parameters: int | None = None
    """None: all."""
    memory: tuple[MemoryTerm, ...] = ()
    needed_gib: float = 0.0
    """Per rank."""
    capacity_gib: float = 0.0
    """Per rank."""
    fits: bool = True
    problems: tuple[Problem, ...]
    warnings: tuple[str, ...]
    result_class: str = ""
    unit: str = "tokens"
    """What is counted where a name says tokens: tokens or images."""
    cost: Cost | None = None
    learned_factor: float = 1.0
    """By which estimated terms were multiplied, because runs of this kind needed more here."""
    host_memory: tuple[MemoryTerm, ...] = ()
    """Per GPU node: what is offloaded to its host."""
    files: tuple[MemoryTerm, ...] = ()
    """Per node: what is offloaded to files on its disk (nvme)."""
    needed_by_stage_gib: tuple[float, ...] = ()
    """Per rank, by its place along the pipeline."""
    advice: tuple[Advice, ...] = ()
    """What would make it fit, where it does not."""

    @property
    def runnable(self) -> bool:
        """Whether nothing stands in the way."""
        return not self.problems


@dataclass(frozen=True, kw_only=True)
class Seat(View):
    """One rank: its coordinate along each axis, and where it runs."""

    rank: int
    pipeline: int
    replicate: int
    shard: int
    context: int
    tensor: int
    node: int
    slot: int


@dataclass(frozen=True, kw_only=True)
class TimeSlot(View):
    """One pass of a pipeline's rank; time in forward passes of one stage."""

    rank: int
    kind: str
    stage: int
    micro_batch: int
    start: int
    end: int


@dataclass(frozen=True, kw_only=True)
class ClassPlan(View):
    """The plan on one node class."""

    node_class: str
    plan: Plan
    ready_nodes: int
    seats: tuple[Seat, ...] = ()
    """Empty where there are more than can be drawn."""
    timeline: tuple[TimeSlot, ...] = ()
    """Empty where there is no pipeline."""


@dataclass(frozen=True, kw_only=True)
class PlanAnswer(View):
    """The plan on every class; `chosen` is where the job would go, `reason` says why and when."""

    plans: tuple[ClassPlan, ...]
    chosen: str | None
    predicted_start: datetime | None
    predicted_finish: datetime | None = None
    """Where start and speed are known."""
    lease_end: datetime | None = None
    """When jobs in the lease that the spec names are stopped."""
    reason: str


@dataclass(frozen=True, kw_only=True)
class AccuracyRow(View):
    """How near the plans of one kind of run were: planned over measured memory, less 1."""

    device: str
    model: str
    strategy: str
    runs: int
    error_median: float
    error_least: float
    error_most: float
    factor: float
    """By which new plans' estimated terms are multiplied."""


@dataclass(frozen=True, kw_only=True)
class Accuracy(View):
    """How near plans were to what runs then needed."""

    rows: tuple[AccuracyRow, ...]


@dataclass(frozen=True, kw_only=True)
class Result(View):
    """How a training ended."""

    finished: bool
    step: int
    loss_first: float | None
    loss_last: float | None
    eval_loss: float | None
    eval_accuracy: float | None = None
    """Images only."""
    tokens_per_s: float | None
    wall_s: float
    checkpoint: str | None
    sample: str | None
    reason: str
    peak_gib: tuple[float, ...] = ()
    """The most that each rank's training held at a time; empty where that was not weighed."""


@dataclass(frozen=True, kw_only=True)
class Difference(View):
    """Where two curves lie furthest apart. `largest` is relative; None: a number is not finite.
    `tolerance` None: nothing is promised."""

    largest: float | None
    step: int
    found: float | None
    expected: float | None
    tolerance: float | None


@dataclass(frozen=True, kw_only=True)
class Compared(View):
    """Two curves by one rule. `verdict` is pass, fail, or exempt where nothing is promised."""

    verdict: str
    result_class: str
    steps: int
    loss: Difference
    grad_norm: Difference | None
    """None: float16 skipped all of these steps."""


@dataclass(frozen=True, kw_only=True)
class Certificate(Compared):
    """The first steps of a job against one rank that trained them alone."""

    precision: str
    strategy: str
    layout: dict[str, int]
    device: str
    torch: str


@dataclass(frozen=True, kw_only=True)
class Comparison(Compared):
    """Two jobs, over the steps that both have."""

    job: str
    other: str


@dataclass(frozen=True, kw_only=True)
class Place(View):
    """An attempt on one of its nodes: which slots (GPUs) it has there, and its ranks."""

    node: str
    lease: str
    slots: tuple[int, ...]
    ranks: tuple[int, ...]
    reason: str


@dataclass(frozen=True, kw_only=True)
class Job(View):
    """A job."""

    id: str
    name: str
    user: str
    state: str
    desired: str
    reason_code: str
    reason: str
    predicted_start: datetime | None
    spec: dict[str, Any]
    plan: Plan
    lease: str | None
    cloned_from: str | None
    study: str | None
    agenda: str | None
    epoch: int
    node: str | None
    nodes: tuple[Place, ...]
    steps: int
    step: int
    loss: float | None
    tokens_per_s: float | None
    stops_at: datetime | None
    wall_time_s: int
    used_s: int
    certificate: Certificate | None
    result: Result | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None

    @property
    def is_final(self) -> bool:
        """Whether it has ended for good."""
        return self.state in FINAL_STATES


@dataclass(frozen=True, kw_only=True)
class StudyJob(View):
    """A job of a study; `label` sets it apart."""

    job: str
    label: str
    ranks: int
    state: str
    reason: str
    step: int
    steps: int


@dataclass(frozen=True, kw_only=True)
class Study(View):
    """Jobs that were submitted together. `kind` is strong, weak or schedules."""

    id: str
    name: str
    user: str
    kind: str
    jobs: tuple[StudyJob, ...]
    is_final: bool
    created_at: datetime


@dataclass(frozen=True, kw_only=True)
class Measured(View):
    """One job of a study in numbers, against the first; None is not known. Shares are from 0 to 1,
    but an efficiency may be more."""

    label: str
    ranks: int
    global_batch_size: int
    learning_rate: float
    timed_steps: int
    step_time_s: float | None
    tokens_per_s: float | None
    speed_up: float | None
    expected_speed_up: float | None
    efficiency: float | None
    serial_fraction: float | None
    bubble: float | None
    communication: float | None
    judgement: str | None
    curve: Compared | None
    missing: str | None
    """Why there are no times."""


@dataclass(frozen=True, kw_only=True)
class StudyReport(Study):
    """A study and what it found so far; `points` are in the order of its jobs."""

    summary: str
    points: tuple[Measured, ...]


@dataclass(frozen=True, kw_only=True)
class PreflightCheck(View):
    """One collective, once, between all ranks."""

    check: str
    right: bool
    ms: float
    bus_gb_per_s: float
    slowest_rank: int


@dataclass(frozen=True, kw_only=True)
class Preflight(View):
    """How the ranks proved themselves to each other before the first step."""

    seconds: float
    device: str
    backend: str
    torch: str
    ranks: int
    checks: tuple[PreflightCheck, ...]
    findings: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Attempt(View):
    """One try at running a job."""

    id: str
    epoch: int
    node: str
    lease: str
    nodes: tuple[Place, ...]
    state: str
    outcome: str | None
    reason: str
    launcher: str
    culprit_rank: int | None
    signal: int | None
    exit_code: int | None
    last_lines: tuple[str, ...]
    resumed_from_step: int | None
    preflight: Preflight | None
    assigned_at: datetime
    started_at: datetime | None
    first_step_at: datetime | None
    ended_at: datetime | None


@dataclass(frozen=True, kw_only=True)
class Event(View):
    """Something that happened to a job, node or lease."""

    id: int
    at: datetime
    epoch: int | None
    kind: str
    from_state: str | None
    to_state: str | None
    reason_code: str
    message: str
    actor: str


@dataclass(frozen=True, kw_only=True)
class AuditEntry(Event):
    """Who did what; `kind` is the action, such as `node.drain`. Names are those of today."""

    subject: str
    details: dict[str, Any]
    actor_name: str | None
    subject_name: str | None


@dataclass(frozen=True, kw_only=True)
class Series(View):
    """One metric of one rank; `min` and `max` are the band where points were merged."""

    key: str
    rank: int
    steps: tuple[int, ...]
    values: tuple[float | None, ...]
    min: tuple[float | None, ...] = ()
    max: tuple[float | None, ...] = ()
    points: int
    """How many were recorded."""


@dataclass(frozen=True, kw_only=True)
class Metrics(View):
    """Series of a job over all its attempts. `keys` are all that exist."""

    job: str
    keys: tuple[str, ...]
    series: tuple[Series, ...]


@dataclass(frozen=True, kw_only=True)
class LogLine(View):
    """One line of one rank's output; rank -1 is the launcher."""

    epoch: int
    rank: int
    stream: str
    line: int
    text: str


@dataclass(frozen=True, kw_only=True)
class Logs(View):
    """Lines, oldest first; the next call goes on at `cursor`."""

    lines: tuple[LogLine, ...]
    cursor: str
    has_more: bool
    ranks: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Checkpoint(View):
    """A checkpoint in the store."""

    id: str
    epoch: int
    step: int
    size: int
    files: int
    created_at: datetime


@dataclass(frozen=True, kw_only=True)
class Artifact(View):
    """A file that a job left behind."""

    id: str
    epoch: int
    path: str
    size: int
    sha256: str
    created_at: datetime


@dataclass(frozen=True, kw_only=True)
class JobLayout(View):
    """Where a job's ranks sit, and a step of its pipeline. `nodes` are those of its newest
    attempt."""

    seats: tuple[Seat, ...]
    timeline: tuple[TimeSlot, ...]
    nodes: tuple[str, ...]


# --------------------------------------------------------------------- datasets, nodes and leases


@dataclass(frozen=True, kw_only=True)
class DatasetImages(View):
    """What a dataset of images holds. `tests` came as a part for tests; `image_shape` is height,
    width, channels."""

    count: int
    tests: int
    image_shape: tuple[int, ...]
    classes: int


@dataclass(frozen=True, kw_only=True)
class Dataset(View):
    """A text, or images, that jobs can train on."""

    id: str
    name: str
    built_in: bool
    format: str
    size: int
    lines: int | None
    characters: int | None
    images: DatasetImages | None = None
    """None of a text."""
    warnings: tuple[str, ...]
    created_at: datetime | None


@dataclass(frozen=True, kw_only=True)
class ModelFile(View):
    """One file of a model's folder."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Model(View):
    """A Hugging Face model that jobs can start from. `model` is that part of their spec."""

    id: str
    name: str
    architecture: str
    parameters: int
    size: int
    files: tuple[ModelFile, ...]
    has_tokenizer: bool
    model: dict[str, Any]
    vocabulary_size: int
    longest_sequence: int | None
    created_at: datetime


@dataclass(frozen=True, kw_only=True)
class Hardware(View):
    """What the planner counts with. `memory_gib` is per GPU, or the host's."""

    class_name: str
    device: str
    slots: int
    memory_gib: float
    model: str | None = None
    no_sandbox: str = ""
    """Why no script runs there; empty where they do."""
    no_gang_sandbox: str = ""
    """Why none runs on several of these nodes."""


@dataclass(frozen=True, kw_only=True)
class Telemetry(View):
    """Use of a node at one moment, per cent from 0 to 100."""

    cpu_pct: float
    memory_used_gib: float
    disk_free_gib: float
    gpu_pct: tuple[float, ...] = ()
    gpu_memory_used_gib: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Node(View):
    """A node. `free_at` is None when it is free now."""

    id: str
    name: str
    node_class: str
    state: str
    reason: str
    hardware: Hardware
    inventory: dict[str, Any]
    telemetry: Telemetry | None
    reachable: bool
    last_seen_at: datetime | None
    unreachable_since: datetime | None
    user: str | None
    job: str | None
    jobs: tuple[str, ...]
    free_at: datetime | None


@dataclass(frozen=True, kw_only=True)
class Enrolment(View):
    """A node's single-use token and the command to run there."""

    token: str
    command: str
    expires_at: datetime


@dataclass(frozen=True, kw_only=True)
class Me(View):
    """Who is asking."""

    user: User
    labs: tuple[str, ...]
    queued: int
    running: int
    lease: Lease | None


# --------------------------------------------------------------------------------------- reports


@dataclass(frozen=True, kw_only=True)
class ReportJob(View):
    """One job in a report, whole. `curves` are rank 0's, at most 300 points each."""

    job: Job
    attempts: tuple[Attempt, ...]
    events: tuple[Event, ...]
    checkpoints: tuple[Checkpoint, ...]
    artifacts: tuple[Artifact, ...]
    curves: tuple[Series, ...]
    gpu_hours: float
    """Ranks times hours, over all attempts."""


@dataclass(frozen=True, kw_only=True)
class ReportContent(View):
    """Who, when, and what became of it."""

    format: str
    title: str
    platform: str
    made_by: str
    made_at: datetime
    lease: Lease | None
    jobs: tuple[ReportJob, ...]


@dataclass(frozen=True, kw_only=True)
class Report(View):
    """A report, named by the SHA-256 of its content."""

    sha256: str
    content: ReportContent


@dataclass(frozen=True, kw_only=True)
class ReportLine(View):
    """A report in a list."""

    sha256: str
    title: str
    user: str
    made_at: datetime


@dataclass(frozen=True, kw_only=True)
class ReportVerdict(View):
    """Whether a report is as it was written, and whether this platform wrote it."""

    intact: bool
    known: bool
    sha256: str
    made_by: str | None
    made_at: datetime | None
    message: str
