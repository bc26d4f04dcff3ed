"""Answers of the API as frozen dataclasses. Times carry their offset.

Written from docs/openapi.json by `make openapi`; do not edit. Fields that a newer server adds are
left in `raw`. States and outcomes are plain texts, so that a server may know more of them.
"""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from trainyard.transport.decoding import View


@dataclass(frozen=True, kw_only=True)
class AccuracyRow(View):
    """Accuracy of the plans of one kind of run."""

    device: str
    model: str
    strategy: str
    runs: int
    error_median: float
    """Planned over measured, less 1: below 0, more was needed than planned."""
    error_least: float
    error_most: float
    factor: float
    """Factor of the estimated terms in new plans here."""


@dataclass(frozen=True, kw_only=True)
class Accuracy(View):
    """Accuracy of plans: planned memory against the memory that runs then needed."""

    rows: tuple[AccuracyRow, ...]


@dataclass(frozen=True, kw_only=True)
class Advice(View):
    """One change, or several together, and the plan of the changed job."""

    title: str
    change: dict[str, Any]
    """Field of the job, dotted, to its new value; `parallelism`: the whole part anew."""
    costs: str
    fits: bool
    needed_gib: float
    slow_down: float | None
    """Expected step time over that of the unchanged job; None: the hardware's speed is not
    known."""
    result_class: str
    changes_training: bool
    """True if the trained model changes: other weights, or another number format of them."""


@dataclass(frozen=True, kw_only=True)
class AffectedLease(View):
    """A future lease that a change affects: new rules would have refused it, a smaller window
    leaves it out, or new time zone data has moved its clock time."""

    id: str
    user: str
    node: str
    hold_start: datetime
    hold_end: datetime
    codes: tuple[str, ...]
    message: str


@dataclass(frozen=True, kw_only=True)
class AgendaJob(View):
    """One job of an agenda, with its times in the lease. The wall time is its budget."""

    position: int
    """Position in the agenda, counted from 1."""
    job: str | None
    """Id of the job; null until the agenda is submitted."""
    name: str
    nodes: int
    slots: int
    """Slots on each node."""
    wall_time_s: int
    expected_s: float | None
    """Duration in seconds that its plan expects; null if the speed of the hardware is not known."""
    standing: str
    """State within the agenda. `cut`: the wall time was used up, so the job was saved and ended."""
    reason: str
    step: int
    steps: int
    planned_start: datetime
    planned_end: datetime
    """Planned end, if this job and every job before it use their whole wall time."""
    start: datetime | None
    """Real start; before it, the latest expected one. Null if the job will not run."""
    end: datetime | None
    """Real end; before it, the latest expected one. Null if the job will not run."""
    likely_end: datetime | None
    """Expected end at the measured speed, or at the planned one; null if neither is known."""
    late_s: int
    """Delay behind the planned end, in seconds; a delay of less than a minute is 0."""
    fits: bool
    """True if the job, even at the latest, ends before jobs of the lease are stopped."""


@dataclass(frozen=True, kw_only=True)
class Agenda(View):
    """An agenda in its present state."""

    name: str
    lease: str | None
    """Id of the lease; null for a block that is not booked, which begins at the next full hour
    here."""
    leases: tuple[str, ...]
    """Ids of the lease and of those booked together with it: one for each node."""
    node_class: str
    nodes: int
    slots: int
    """Slots of each node."""
    side_by_side: bool
    on_failure: str
    rules: str
    """Rules by which the agenda runs, in a sentence."""
    begins: datetime
    usable_end: datetime
    """Moment at which jobs in the lease are stopped."""
    fits: bool
    """True if every job ends in time, even if all use up their wall times."""
    spare_s: int
    """Seconds of the lease that are left after the latest end; negative if the jobs take longer
    than it."""
    likely_spare_s: int | None
    first_cut: int | None
    """Position of the first job that would not end in time; null if all fit."""
    summary: str
    jobs: tuple[AgendaJob, ...]
    id: str
    user: str
    """Name of the agenda's owner."""
    node: str
    """Name of the lease's node; of several leases, the node of the one that was named."""
    is_final: bool
    """True once all jobs of the agenda have ended."""
    created_at: datetime


@dataclass(frozen=True, kw_only=True)
class AgendaPlan(View):
    """Timetable of an agenda in a lease or a block of hours, and whether all jobs fit."""

    name: str
    lease: str | None
    """Id of the lease; null for a block that is not booked, which begins at the next full hour
    here."""
    leases: tuple[str, ...]
    """Ids of the lease and of those booked together with it: one for each node."""
    node_class: str
    nodes: int
    slots: int
    """Slots of each node."""
    side_by_side: bool
    on_failure: str
    rules: str
    """Rules by which the agenda runs, in a sentence."""
    begins: datetime
    usable_end: datetime
    """Moment at which jobs in the lease are stopped."""
    fits: bool
    """True if every job ends in time, even if all use up their wall times."""
    spare_s: int
    """Seconds of the lease that are left after the latest end; negative if the jobs take longer
    than it."""
    likely_spare_s: int | None
    first_cut: int | None
    """Position of the first job that would not end in time; null if all fit."""
    summary: str
    jobs: tuple[AgendaJob, ...]


@dataclass(frozen=True, kw_only=True)
class Arrival(View):
    """Students who come to book so many days before the deadline."""

    days_left: int
    students: float
    served: float
    """Share of them who get all that they need."""


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
class HostUse(View):
    """Use that an attempt has made of one host, by its node's proxy."""

    host: str
    """Name and port, such as `pypi.org:443`; of very many, the later ones are `other hosts`."""
    connections: int = 0
    received_bytes: int = 0
    refused: int = 0
    sent_bytes: int = 0
    why: str = ""
    """Reason of the last refusal."""


@dataclass(frozen=True, kw_only=True)
class Place(View):
    """One node of an attempt."""

    node: str
    """Name of the node."""
    lease: str
    slots: tuple[int, ...]
    """Indices of the GPUs, or CPU slots, that the attempt has on this node, one for each rank."""
    ranks: tuple[int, ...]
    reason: str
    """Reason of the attempt's end on this node, as the node reports it; empty until then."""
    hosts: tuple[HostUse, ...] = ()
    """Hosts that a program has reached from this node, or tried to, so far."""


@dataclass(frozen=True, kw_only=True)
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


@dataclass(frozen=True, kw_only=True)
class Preflight(View):
    """Preflight: checks of communication between the ranks before the first step."""

    seconds: float
    device: str
    backend: str
    torch: str
    ranks: int
    checks: tuple[PreflightCheck, ...]
    findings: tuple[str, ...]
    """One sentence for each thing that was wrong, worst first."""


@dataclass(frozen=True, kw_only=True)
class RankMemory(View):
    """Content of memory-rank-0.json: planned and used memory of a rank, by phase of a step.

    Without Python and its libraries. Written by runs that their plan says do not fit.
    """

    rank: int
    step: int
    """Step in which it was last, of those that were observed; 0: before the first."""
    phase: str
    """Phase in which it was last."""
    planned_gib: dict[str, float]
    used_gib: dict[str, float]
    """Highest use in each phase that it reached; an allocation that failed is not in it."""


@dataclass(frozen=True, kw_only=True)
class Attempt(View):
    """One try at running a job."""

    id: str
    epoch: int
    node: str
    """Name of the node; of several nodes the first, where rank 0 runs."""
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
    memory: tuple[RankMemory, ...]
    """Planned and used memory of each rank, by phase; empty unless the plan said that the job does
    not fit, and it ran nevertheless (`resources.allow_oom`)."""
    resumed_from_step: int | None
    preflight: Preflight | None
    """Report of the preflight; null if the attempt ran none. A single rank needs none, and what the
    ranks of a node have proved is valid for an hour."""
    assigned_at: datetime
    started_at: datetime | None
    first_step_at: datetime | None
    ended_at: datetime | None


@dataclass(frozen=True, kw_only=True)
class AuditEntry(View):
    """One entry of the audit log: who did what. `kind` is the action, such as `node.drain`."""

    id: int
    at: datetime
    epoch: int | None
    kind: str
    from_state: str | None
    to_state: str | None
    reason_code: str
    """Reason for machines; empty for none. docs/states.md lists the codes; more may be added."""
    message: str
    actor: str
    subject: str
    details: dict[str, Any]
    actor_name: str | None
    """Present name of the person or node that acted; null for a process."""
    subject_name: str | None
    """Present name of the entry's subject."""


@dataclass(frozen=True, kw_only=True)
class BusyNode(View):
    """A node that is not free in an hour."""

    node: str
    why: str
    """`leased`, `yours`, `offered`, `maintenance`, `down`, or the node's state; with `block_hours`
    or `any_length` the code of the first rule that a block from this hour on would break."""
    message: str = ""
    """Message of that rule; empty if no rule is the cause."""


@dataclass(frozen=True, kw_only=True)
class FreeHour(View):
    """One hour, with the nodes that are free in it and those that are not."""

    start: datetime
    free: int
    nodes: tuple[str, ...]
    """Names of the free nodes."""
    taken: tuple[BusyNode, ...]
    free_gpus: dict[str, int] = field(default_factory=dict)
    """Map node -> number of GPUs, or CPU slots, that nobody holds in any part of the hour."""


@dataclass(frozen=True, kw_only=True)
class Lengths(View):
    """Lengths and sizes that the rules allow you for a block on a node, at one time of day or
    another."""

    node: str
    hours: tuple[int, ...]
    """Allowed lengths in hours, ascending."""
    sizes: tuple[int, ...] = ()
    """Allowed numbers of GPUs, or CPU slots, ascending; only all of the node where its policy lists
    no sizes."""


@dataclass(frozen=True, kw_only=True)
class Availability(View):
    """Free nodes of a class, hour by hour."""

    node_class: str | None
    """Name of the class; null: all classes."""
    nodes: int
    hours: tuple[FreeHour, ...]
    lengths: tuple[Lengths, ...]


@dataclass(frozen=True, kw_only=True)
class Span(View):
    """A band or a window, not cut to the requested hours."""

    name: str
    """Name of the band; for a window, its pools."""
    starts_at: datetime
    ends_at: datetime


@dataclass(frozen=True, kw_only=True)
class Bands(View):
    """Bands and windows of one policy, on the nodes that it treats alike for you."""

    policy: str
    version: int
    zone: str
    nodes: tuple[str, ...]
    bands: tuple[Span, ...]
    """Bands of the day, such as the night."""
    windows: tuple[Span, ...] | None
    """Windows; no lease may lie outside of them. Null: leases may lie at any time."""


@dataclass(frozen=True, kw_only=True)
class Charge(View):
    """Hours that a lease takes from a quota; `quota` is null if no quota is charged."""

    quota: str | None
    hours: int
    gpu_hours: int = 0


@dataclass(frozen=True, kw_only=True)
class QuotaRemainder(View):
    """Remainder of a quota."""

    quota: str
    alternative: str
    text: str
    by_swap: bool


@dataclass(frozen=True, kw_only=True)
class Reason(View):
    """A rule that a block breaks, or a warning about it, with the numbers of the case."""

    code: str
    """Code of the rule; docs/states.md lists them."""
    param: str
    message: str
    numbers: dict[str, int | float | str]


@dataclass(frozen=True, kw_only=True)
class NodeVerdict(View):
    """Verdict of the policy on a block on one node."""

    node: str
    node_class: str
    ok: bool
    hold_start: datetime
    hold_end: datetime
    reasons: tuple[Reason, ...]
    warnings: tuple[Reason, ...]
    charge: Charge
    left: tuple[QuotaRemainder, ...]
    next_starts: tuple[datetime, ...]
    """The nearest starts on this node at which a block of the same length would be accepted."""
    policy: str
    policy_version: int


@dataclass(frozen=True, kw_only=True)
class BlockVerdict(View):
    """Verdict on a block: the nodes that would be booked now, or the reasons why none would be.
    Asking changes nothing."""

    ok: bool
    can_wait: bool
    """True if the block is refused, but the waitlist may still provide it: others have the hours,
    or the reason will pass with time."""
    chosen: tuple[str, ...]
    """Names of the nodes that would be booked; empty if refused."""
    hold_start: datetime
    hold_end: datetime
    nodes: tuple[NodeVerdict, ...]
    """Verdicts by node: the chosen ones first, then the refused ones, nearest to acceptance
    first."""


@dataclass(frozen=True, kw_only=True)
class Difference(View):
    """Largest difference between two curves of one quantity."""

    largest: float | None
    """Difference relative to the larger of the two values; None: one of them is not finite."""
    step: int
    found: float | None
    expected: float | None
    tolerance: float | None
    """Largest allowed difference; None: nothing is promised."""


@dataclass(frozen=True, kw_only=True)
class Certificate(View):
    """Content of certificate.json: the first steps of a run against those of one rank alone."""

    verdict: str
    result_class: str
    """Weaker of the two promises."""
    steps: int
    """Number of steps compared."""
    loss: Difference
    grad_norm: Difference | None
    """Difference of the gradient norms; None: float16 skipped each of these steps in one of the
    runs."""
    precision: str
    strategy: str
    layout: dict[str, Any]
    device: str
    torch: str
    """Version of torch."""


@dataclass(frozen=True, kw_only=True)
class CheckResult(View):
    """Result of one check."""

    name: str
    verdict: str
    sentence: str
    """Finding, or the reason of a skipped check."""
    seconds: float
    figures: dict[str, float] = field(default_factory=dict)
    """Measured numbers, by a name that ends with the unit if there is one."""


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
class StepTime(View):
    """Duration of one optimizer step."""

    expected_s: float
    low_s: float
    """Duration of the fastest runs of its kind, with all traffic hidden that can be, at the
    bandwidth of the data sheets."""
    high_s: float
    """Duration of the slowest runs of its kind, with no traffic hidden."""
    compute_s: float
    traffic_s: float
    """Duration of all traffic; the part hidden behind computing is not subtracted."""
    basis: str


@dataclass(frozen=True, kw_only=True)
class Traffic(View):
    """Data that one rank sends along one axis in one step."""

    axis: str
    ranks: int
    """Number of ranks that communicate with each other."""
    num_bytes: int
    crosses_nodes: bool
    overlaps: bool
    """True if the data can travel while the rank computes."""
    what: str


@dataclass(frozen=True, kw_only=True)
class Cost(View):
    """Cost of a run."""

    flops_per_token: int
    flops_per_step: int
    traffic: tuple[Traffic, ...]
    bubble: float
    """Share of a step in which a pipeline's rank waits, from 0 to 1."""
    step_time: StepTime | None
    """Duration of a step; None: the hardware's speed is not known."""
    tokens_per_s: float | None
    total_s: float | None
    gpu_hours: float | None
    convention: str = (
        "6 per matrix weight and token, 12 x layers x width x tokens for attention (PaLM)"
    )
    peak_tflops: float | None = None
    """Peak of one GPU at the run's precision; None: not known."""


@dataclass(frozen=True, kw_only=True)
class MemoryTerm(View):
    """One line of a plan's memory table, per rank."""

    name: str
    gib: float
    exact: bool
    source: str


@dataclass(frozen=True, kw_only=True)
class Problem(View):
    """Reason why a spec cannot run.

    `param` is a dotted field of the spec; the message has the numbers and the nearest valid value.
    """

    code: str
    param: str
    message: str


@dataclass(frozen=True, kw_only=True)
class Plan(View):
    """All decisions made before a run; JSON both ways."""

    device: str = ""
    nodes: int = 0
    problems: tuple[Problem, ...] = ()
    ranks_per_node: int = 0
    strategy: str = ""
    warnings: tuple[str, ...] = ()
    world_size: int = 0
    advice: tuple[Advice, ...] = ()
    """Changes that would make the job fit; empty if it fits."""
    attention: str | None = None
    """Kernel of attention that torch takes; None on a CPU, in a ring, for images and in plans of
    older versions."""
    capacity_gib: float = 0.0
    """Memory available per rank: nine tenths of its GPU, or of its share of the host's RAM."""
    compiles: bool = False
    """True if layers run as generated kernels."""
    cost: Cost | None = None
    """Cost of the run; None in plans made before costs were computed."""
    deterministic: bool = False
    files: tuple[MemoryTerm, ...] = ()
    """Disk space per node for state offloaded to files (nvme)."""
    fits: bool = False
    float32_matmul: str = "exact"
    global_batch_size: int = 0
    gradient_accumulation_steps: int = 0
    host_capacity_gib: float | None = None
    """Memory of that host for the job: nine tenths of its slots' share. None: not known, or on
    CPU."""
    host_memory: tuple[MemoryTerm, ...] = ()
    """Memory that the host of each GPU node needs."""
    layout: dict[str, Any] = field(default_factory=dict)
    learned_factor: float = 1.0
    """Factor of the estimated terms, above 1 if runs of this kind needed more here."""
    made_for: str | None = None
    """Digest of the hardware that it was made for; None in plans of older versions."""
    memory: tuple[MemoryTerm, ...] = ()
    """Memory of each of the ranks that need the most, by term."""
    micro_batch_size: int = 0
    needed_by_phase_gib: tuple[dict[str, float], ...] = ()
    """Highest memory per rank in each phase, by position along the pipeline; without Python and its
    libraries."""
    needed_by_stage_gib: tuple[float, ...] = ()
    """Memory per rank, by position along the pipeline."""
    needed_gib: float = 0.0
    """Memory of each of the ranks that need the most."""
    parameters: int = 0
    """Parameters of the whole model, with its adapters."""
    result_class: str = ""
    tokens_per_step: int = 0
    trainable_parameters: int | None = None
    """Trained parameters among them; None, from older versions: all."""
    unit: str = "tokens"
    """Unit that the loss averages over, and that is meant where a name says tokens."""


@dataclass(frozen=True, kw_only=True)
class Seat(View):
    """One rank: its coordinate along each axis, and the node and slot that it runs on."""

    rank: int
    pipeline: int
    replicate: int
    shard: int
    context: int
    tensor: int
    node: int
    """Number of the job's node, from 0."""
    slot: int
    """Number of the node's GPU, or of the share of its cores."""


@dataclass(frozen=True, kw_only=True)
class TimeSlot(View):
    """One pass of a pipeline's rank; time in forward passes of one stage."""

    rank: int
    """Position along the pipeline."""
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
    seats: tuple[Seat, ...]
    """Coordinates, node and slot of each rank; empty if the ranks are too many to draw."""
    timeline: tuple[TimeSlot, ...]
    """Passes of one step of a pipeline; empty if there is no pipeline or the step is too long to
    draw."""


@dataclass(frozen=True, kw_only=True)
class CleanupRow(View):
    """A lease in a clean-up."""

    lease: str
    user: str
    node: str
    hold_start: datetime
    hold_end: datetime
    hours: int
    state: str
    """State of the lease now."""
    jobs: tuple[str, ...]
    """Names of the jobs of its owner that run in it now; they stop with a checkpoint."""
    code: str
    rule: str
    message: str
    refund_hours: int
    result: str
    outcome: str
    restored_as: str | None


@dataclass(frozen=True, kw_only=True)
class Selector(View):
    """Leases to look for; without `wrong`, all leases that the other fields name."""

    include_active: bool = False
    """Include active leases. The node of each is quarantined before the lease is ended."""
    lab: str | None = None
    node: str | None = None
    starts_before: datetime | None = None
    starts_from: datetime | None = None
    """Earliest start: only leases that start at that moment or later."""
    tag: str | None = None
    user: str | None = None
    """Name or id of the owner; `lab` and `node` are given by name or id as well."""
    wrong: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Cleanup(View):
    """A clean-up, with its rows."""

    id: str
    state: str
    selector: Selector
    reason: str
    hash: str
    made_by: str
    created_at: datetime
    expires_at: datetime
    applied_at: datetime | None
    undone_at: datetime | None
    undo_until: datetime | None
    removed: int
    """Number of leases that are removed, or would be."""
    spared: int
    skipped: int
    freed_node_hours: int
    freed_gpu_hours: int
    refunded_hours: int
    owners: int
    """Number of people who get a notice, one each."""
    rows: tuple[CleanupRow, ...]


@dataclass(frozen=True, kw_only=True)
class ClientRelease(View):
    """The client that this server carries."""

    version: str
    filename: str
    url: str
    sha256: str
    """SHA-256 of the wheel. The address in `command` ends with it, so that pip checks its
    download."""
    command: str
    """Shell command that installs or updates the command line and the Python package."""


@dataclass(frozen=True, kw_only=True)
class Code(View):
    """An archive of code that you have uploaded."""

    sha256: str
    """SHA-256 of the archive, by which a job's `script.code` names it."""
    size: int
    unpacked_size: int
    paths: tuple[str, ...]
    """Paths of the files in the archive."""
    created_at: datetime


@dataclass(frozen=True, kw_only=True)
class CodeLine(View):
    """An archive of code in a list."""

    sha256: str
    size: int
    files: int
    jobs: tuple[str, ...]
    """Ids of the jobs that need the archive and have not ended."""
    created_at: datetime


@dataclass(frozen=True, kw_only=True)
class Comparison(View):
    """The curves of two jobs over the steps that both have."""

    job: str
    other: str
    verdict: str
    """Verdict on the two curves; `exempt`: one of the jobs promises nothing."""
    result_class: str
    """The weaker of the two jobs' promises."""
    steps: int
    loss: Difference
    grad_norm: Difference | None


@dataclass(frozen=True, kw_only=True)
class Constants(View):
    """Numbers of a class of nodes that were measured on one of its nodes; None: not measured."""

    communicator_gib: float | None = None
    """Device memory of each group of ranks that communicates."""
    link_gb_per_s: float | None = None
    """Bus bandwidth of a large all-reduce over all GPUs, in 10^9 bytes per second."""
    process_gib: float | None = None
    """Device memory of a rank before its model: context and libraries on a GPU."""
    source: str = ""
    """Node and day of the measurement."""


@dataclass(frozen=True, kw_only=True)
class Exercise(View):
    """Work that a student books, starts and hands in."""

    name: str
    title: str
    template: str
    """Id of the template to start."""
    opens_at: datetime
    due_at: datetime
    hours: int
    """Length of the block that it needs."""


@dataclass(frozen=True, kw_only=True)
class Course(View):
    """A course."""

    id: str
    name: str
    title: str
    owner: str
    zone: str
    group: str
    first_day: str
    exercises: tuple[Exercise, ...]
    applied_at: datetime


@dataclass(frozen=True, kw_only=True)
class ForecastPool(View):
    """A pool with the number of its nodes in a forecast."""

    pool: str
    title: str
    nodes: int


@dataclass(frozen=True, kw_only=True)
class NodeLoad(View):
    """Hours of a node by day until the deadline, booked ones included."""

    node: str
    hours: float
    booked_hours: float


@dataclass(frozen=True, kw_only=True)
class Prospect(View):
    """Chances of one student, from 0 to 1."""

    user: str
    has_all: bool
    """True if everything is booked already."""
    whole: float
    part: float


@dataclass(frozen=True, kw_only=True)
class CourseForecast(View):
    """Answer to the question whether the hours are enough: means of several simulations in which
    the students come and book."""

    policy: str
    begins: datetime
    deadline: datetime
    zone: str
    needs: tuple[str, ...]
    """Needs of a student, in words: one of these."""
    students: int
    have_all: int
    """Students who have booked everything already."""
    whole: float
    """Share of the students who will have all that they need."""
    part: float
    """Share who will have some of it."""
    nothing: float
    hours: float
    """Node-hours by day until the deadline."""
    booked_hours: float
    """Node-hours of them that will be booked."""
    nodes: tuple[NodeLoad, ...]
    pools: tuple[ForecastPool, ...]
    """The pools of the policy; `all` alone if it has none."""
    arrivals: tuple[Arrival, ...]
    prospects: tuple[Prospect, ...]
    """The students who are there, least chance first."""
    message: str


@dataclass(frozen=True, kw_only=True)
class CourseStep(View):
    """One thing that a bundle makes or changes."""

    kind: str
    name: str
    action: str
    """`upload`: it must be uploaded before the bundle can be applied."""
    what: str


@dataclass(frozen=True, kw_only=True)
class CourseUpload(View):
    """A part of a bundle that must be uploaded first, by the routes for such things."""

    kind: str
    name: str
    """Name of the dataset or model; of code its folder."""
    path: str
    format: str | None
    """Format of a dataset; null otherwise."""


@dataclass(frozen=True, kw_only=True)
class CoursePlan(View):
    """Effects of a bundle: done, or those that it would have."""

    course: str
    first_day: str
    applied: bool
    """False for a dry run, and as long as something must be uploaded."""
    steps: tuple[CourseStep, ...]
    uploads: tuple[CourseUpload, ...]


@dataclass(frozen=True, kw_only=True)
class CourseTexts(View):
    """Texts of a bundle as they were applied, without the list of people."""

    name: str
    texts: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class CurveComparison(View):
    """Result of comparing two curves by the rule.

    `exempt`: one of them promises nothing, so there is no verdict.
    """

    verdict: str
    result_class: str
    """Weaker of the two promises."""
    steps: int
    """Number of steps compared."""
    loss: Difference
    grad_norm: Difference | None
    """Difference of the gradient norms; None: float16 skipped each of these steps in one of the
    runs."""


@dataclass(frozen=True, kw_only=True)
class DatasetFile(View):
    """One file of a dataset."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class DatasetImages(View):
    """Contents of a dataset of images, in the terms that a job's spec must use."""

    count: int
    """Number of training images, including those that `data.held_out` keeps back."""
    tests: int
    """Number of images in the dataset's own test part."""
    image_shape: tuple[int, ...]
    """Height, width and channels."""
    classes: int
    """The largest label + 1."""


@dataclass(frozen=True, kw_only=True)
class HubOrigin(View):
    """Job that fetched a dataset from the hub."""

    job: str
    epoch: int
    hub: str
    """Repository and commit: `owner/name@COMMIT`."""


@dataclass(frozen=True, kw_only=True)
class Dataset(View):
    """A text, or images, that jobs can train on."""

    id: str
    name: str
    owner: str | None
    """Name of its owner; null if it is built in. Jobs of others name it OWNER/NAME."""
    built_in: bool
    format: str
    size: int
    files: tuple[DatasetFile, ...]
    """Files in their order; none for a built-in dataset."""
    lines: int | None
    characters: int | None
    images: DatasetImages | None
    """Images of the dataset; null for a text."""
    warnings: tuple[str, ...]
    origin: HubOrigin | None
    """Job that fetched it; null if it was uploaded or is built in."""
    created_at: datetime | None


@dataclass(frozen=True, kw_only=True)
class DatasetPreview(View):
    """The beginning of a text, or a description of the images."""

    text: str
    is_all: bool


@dataclass(frozen=True, kw_only=True)
class TokenPiece(View):
    """A token of a row, or a run of bytes."""

    text: str
    learned: bool
    """True if a model learns to write it; otherwise it is only read."""


@dataclass(frozen=True, kw_only=True)
class RowPreview(View):
    """A row of a dataset as a model reads it."""

    place: str
    """`line 1`, `row 1`, or `beginning` of a text."""
    form: str
    num_tokens: int
    num_learned: int
    pieces: tuple[TokenPiece, ...]
    """First tokens of the row; with the tokenizer `bytes`, runs of them of one kind."""
    is_cut: bool
    """True if it has more than are here."""


@dataclass(frozen=True, kw_only=True)
class DatasetRows(View):
    """The first rows of a dataset."""

    tokenizer: str
    rows: tuple[RowPreview, ...]


@dataclass(frozen=True, kw_only=True)
class DisplacedLease(View):
    """A lease that stands in the way of a maintenance, and its fate."""

    lease: str
    user: str
    node: str
    hold_start: datetime
    hold_end: datetime
    act: str
    """Fate of the lease: `move`, `refund`, or `keep` if it cannot be displaced."""
    to_node: str | None
    result: str
    """Sentence that says what was done; empty in a plan."""


@dataclass(frozen=True, kw_only=True)
class Enrolment(View):
    """The single-use token of a node and the command to run there."""

    token: str = field(repr=False)
    command: str
    expires_at: datetime


@dataclass(frozen=True, kw_only=True)
class Event(View):
    """One event in the history of a job, node or lease."""

    id: int
    at: datetime
    epoch: int | None
    kind: str
    from_state: str | None
    to_state: str | None
    reason_code: str
    """Reason for machines; empty for none. docs/states.md lists the codes; more may be added."""
    message: str
    actor: str


@dataclass(frozen=True, kw_only=True)
class ExerciseJob(View):
    """A job that a student started for an exercise."""

    job: str
    name: str
    state: str
    reason: str
    step: int
    steps: int


@dataclass(frozen=True, kw_only=True)
class Fabric(View):
    """Network between the nodes of a class, as an administrator set it."""

    adapters: str = ""
    """RDMA adapters that NCCL uses, such as `mlx5_0,mlx5_1:1`. Empty: NCCL chooses."""
    interface: str = ""
    """Interface of every node that NCCL and gloo use, such as `ib0`. Empty: the one with the
    address that the node reports."""
    programs: str = "relay"
    """Network of users' programs that run on several nodes: a private one, relayed through the
    first node, or the nodes' own with their RDMA devices."""


@dataclass(frozen=True, kw_only=True)
class Feed(View):
    """A calendar feed."""

    id: str
    node: str | None
    url: str | None
    """Secret address of the feed. It is shown only once."""
    created_at: datetime
    last_used_at: datetime | None
    revoked_at: datetime | None


@dataclass(frozen=True, kw_only=True)
class FilledTemplate(View):
    """A template's spec with values filled in; nothing is submitted."""

    spec: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class ForecastDay(View):
    """A day, or the rest of it, before a window closes."""

    start: datetime
    free_hours: float
    """Hours that nobody has booked, in the forecast's unit."""
    wanted_hours: float
    """Part of `free_hours` that would be booked."""


@dataclass(frozen=True, kw_only=True)
class Forecast(View):
    """Forecast of how full the days become if the rest of all quotas is spent evenly until the
    window closes."""

    policy: str
    zone: str
    nodes: tuple[str, ...]
    closes_at: datetime
    people: int
    """Number of people who may book, staff not counted."""
    unspent_hours: float
    free_hours: float
    unmet_hours: float
    """Part of `unspent_hours` that would find no room."""
    days: tuple[ForecastDay, ...]
    message: str
    unit: str = "node-hours"
    """Unit of all hours: `node-hours`, or `GPU-hours` of a policy that sells parts of nodes."""


@dataclass(frozen=True, kw_only=True)
class GpuReading(View):
    """State of one GPU at one moment, as far as it reports it."""

    index: int
    """Number of its slot."""
    clock_mhz: int | None = None
    """Clock of its multiprocessors."""
    max_clock_mhz: int | None = None
    max_pcie_width: int | None = None
    nvlink_errors: int | None = None
    """Replay, recovery and checksum errors of all NVLinks since the driver was loaded."""
    pcie_generation: int | None = None
    pcie_replays: int | None = None
    """Packets that were sent again over PCIe since the driver was loaded."""
    pcie_width: int | None = None
    """PCIe lanes in use."""
    power_limit_w: float | None = None
    power_w: float | None = None
    temperature_c: int | None = None
    throttled: tuple[str, ...] = ()
    """Reasons for which the clock is held down now, such as `thermal slowdown`."""


@dataclass(frozen=True, kw_only=True)
class GpuSpeeds(View):
    """Dense peaks in TFLOP/s of products that are summed in float32, and the link in GB/s.

    None: the GPU has no unit for that type. In 16 bits it is then no faster than in float32.
    """

    float32: float
    tf32: float | None
    float16: float | None
    bfloat16: float | None
    float8: float | None
    link_gb_per_s: float | None
    source: str
    memory_gb_per_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Grant(View):
    """An exception to a booking rule, visible to everybody."""

    id: str
    user: str
    rule: str
    extra: int
    starts_at: datetime
    ends_at: datetime
    granted_by: str
    why: str
    created_at: datetime
    revoked_at: datetime | None


@dataclass(frozen=True, kw_only=True)
class Hardware(View):
    """One node of a class. `memory_gib` is per GPU, or the whole host's RAM on CPU."""

    class_name: str
    device: str
    slots: int
    memory_gib: float
    host_memory_gib: float | None = None
    """RAM of the host of a GPU node; None if it is not known."""
    job_memory_gib: float | None = None
    """Most memory of one job on a node, however many slots it has; None: no limit is set."""
    measured: Constants | None = None
    """Constants from the last proof of a node of this class; None: none is known."""
    model: str | None = None
    no_compiler: str = ""
    """Missing parts of the compiler for generated kernels; empty if it is complete, or not
    known."""
    no_gang_sandbox: str = ""
    """Reason why scripts that run on several of these nodes cannot be sandboxed."""
    no_sandbox: str = ""
    """Reason why scripts cannot be sandboxed here; empty if they can, or it is not known."""
    speeds: GpuSpeeds | None = None
    """Measured speeds of a GPU whose data sheet is not known; None: known, or not measured."""


@dataclass(frozen=True, kw_only=True)
class Health(View):
    """Health of the API, for machines."""

    status: str
    version: str
    """Version of the platform."""


@dataclass(frozen=True, kw_only=True)
class ImportRow(View):
    """Effect of one line of a list of people: the person is added, changed or the same."""

    line: int
    name: str
    action: str
    changes: tuple[str, ...]
    """Changes to a person who exists already: `email`, `zone`, `lab`, or names of attributes."""
    password_link: str | None
    """Link with which a new person sets a password; shown only in this answer."""


@dataclass(frozen=True, kw_only=True)
class Import(View):
    """Changes made by a list of people; with `dry_run`, the changes that it would make."""

    dry_run: bool
    added: int
    changed: int
    same: int
    labs: tuple[str, ...]
    """Names of the labs that the list adds."""
    rows: tuple[ImportRow, ...]


@dataclass(frozen=True, kw_only=True)
class Lease(View):
    """A lease. Jobs in it are stopped at `usable_end`; the node is free again at `hold_end`."""

    id: str
    user: str
    node: str
    node_class: str
    kind: str
    state: str
    reason: str
    hold_start: datetime
    hold_end: datetime
    usable_end: datetime
    job: str | None
    """The first of `jobs`."""
    jobs: tuple[str, ...]
    """Ids of the owner's jobs that run in the lease now, side by side; the first assigned comes
    first."""
    together: str | None
    """Id of the first of the leases that were booked together with it; null if it was booked
    alone."""
    counts: bool
    """True while the lease counts against quotas; false once it is refunded."""
    charged_hours: int
    """Hours that count against quotas now. Of hours returned too late, only those that nobody else
    has."""
    settled_as: str
    """Reason why an ended lease counts or does not: `late_cancel`, `node_fault`, ... docs/states.md
    lists the codes; more may be added. Empty: not settled."""
    charge: Charge | None
    policy: str | None
    policy_version: int | None
    protected: bool
    unusable_s: int
    """Seconds of the lease in which its node could not be used."""
    created_at: datetime
    gpus: int | None = None
    """GPUs, or CPU slots, of the lease; null from servers that lease only whole nodes."""
    of_gpus: int | None = None
    """GPUs, or CPU slots, of the node."""
    slots: tuple[int, ...] | None = None
    """Indices of its GPUs, or CPU slots, on the node; null while it has not begun and when it is
    over."""
    whole: bool = True
    """True for a lease of the whole node."""


@dataclass(frozen=True, kw_only=True)
class RunningJob(View):
    """A job that runs on a node."""

    id: str
    name: str
    user: str


@dataclass(frozen=True, kw_only=True)
class InTheWay(View):
    """Jobs that run on a node, and leases on it, all in the way of taking the node out."""

    node: str
    state: str
    jobs: tuple[RunningJob, ...]
    leases: tuple[Lease, ...]
    """Booked, active and ending leases, sorted by start."""


@dataclass(frozen=True, kw_only=True)
class Invite(View):
    """An invitation. Its secret is only in the answer to the request that made it."""

    id: str
    lab: str | None
    email: str | None
    attributes: dict[str, str]
    invited_by: str
    state: str
    used_by: str | None
    created_at: datetime
    expires_at: datetime


@dataclass(frozen=True, kw_only=True)
class JobInput(View):
    """An input of a script, by its exact bytes."""

    kind: str
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


@dataclass(frozen=True, kw_only=True)
class Result(View):
    """Content of result.json: the end of the run, by rank 0.

    A diverged run's last loss may be nan, written as null.
    """

    finished: bool
    step: int
    loss_first: float | None
    loss_last: float | None
    eval_loss: float | None
    tokens_per_s: float | None
    wall_s: float
    checkpoint: str | None
    sample: str | None
    reason: str
    eval_accuracy: float | None = None
    """Images only: the share of the held-out ones whose label was the likeliest."""
    missing: tuple[str, ...] = ()
    """Artifacts of a finished run that are not written yet. Its checkpoints are complete; if ranks
    have ended and some are left, the run was cut off or failed while it wrote them."""
    peak_gib: tuple[float, ...] = ()
    """Peak memory of each rank's training, without Python and its libraries; empty if it was not
    measured."""


@dataclass(frozen=True, kw_only=True)
class Job(View):
    """A job."""

    id: str
    name: str
    user: str
    """Name of the job's owner."""
    state: str
    desired: str
    reason_code: str
    """Reason for its state, for machines: why it waits, or its outcome. docs/states.md lists the
    codes; more may be added."""
    reason: str
    """Reason for its state, in a sentence for its owner."""
    predicted_start: datetime | None
    spec: dict[str, Any]
    """The spec; as a stored document if this version of the platform cannot read it (`reason` says
    so)."""
    plan: Plan
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
    nodes: tuple[Place, ...]
    """All nodes that the job is on; empty while it is on none."""
    steps: int
    """Number of training steps; 0 for a script, whose number of steps is not known."""
    step: int
    loss: float | None
    tokens_per_s: float | None
    stops_at: datetime | None
    """Latest moment at which the present attempt is stopped."""
    wall_time_s: int
    used_s: int
    certificate: Certificate | None
    """Comparison of the first steps with one rank; null unless the spec asks for it and they are
    done."""
    result: Result | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    is_final: bool
    """True once the job has ended for good."""
    inputs: tuple[JobInput, ...] = ()
    """Inputs of a script, resolved when the job was submitted."""
    is_held: bool = False
    """True while the sandbox of an attempt that has failed is held: its owner may open a shell in
    it, or release it."""
    report: str | None = None
    """Hash of the report that was written when the job had ended; null if there is none."""
    report_when_ended: bool = False
    """True while a report is to be written when the job has ended."""
    tags: tuple[str, ...] = ()
    """Words to find the job by: those of its spec until they were changed."""


@dataclass(frozen=True, kw_only=True)
class JobLayout(View):
    """Ranks on their nodes, and the passes of a pipeline."""

    seats: tuple[Seat, ...]
    """Coordinates, node and slot of each rank; empty if the ranks are too many to draw."""
    timeline: tuple[TimeSlot, ...]
    """Passes of one step of a pipeline; empty if there is no pipeline or the step is too long to
    draw."""
    nodes: tuple[str, ...]
    """Names of the nodes of the newest attempt, as far as they are known."""


@dataclass(frozen=True, kw_only=True)
class Lab(View):
    """A group of people."""

    id: str
    name: str
    weight: float
    """Share of the nodes, relative to the weights of the other labs."""
    groups: tuple[str, ...]
    """Further names under which booking rules find the lab's members."""
    members: tuple[str, ...]
    """Names of the members."""
    leads: tuple[str, ...]
    """Names of the members who lead the lab."""
    created_at: datetime


@dataclass(frozen=True, kw_only=True)
class Letter(View):
    """A letter that is on its way."""

    message: str


@dataclass(frozen=True, kw_only=True)
class Link(View):
    """A link that works once."""

    url: str
    secret: str = field(repr=False)
    expires_at: datetime


@dataclass(frozen=True, kw_only=True)
class LogLine(View):
    """One line of one rank's output."""

    epoch: int
    rank: int
    """Rank that wrote the line; -1 is the launcher, -2 the launcher of the second node, and so
    on."""
    stream: str
    line: int
    text: str
    at: datetime | None = None
    """Arrival of the line's part of the output at the platform, about a second after it was
    written."""


@dataclass(frozen=True, kw_only=True)
class Logs(View):
    """Lines, oldest first. `cursor` is the position from which the next call continues."""

    lines: tuple[LogLine, ...]
    cursor: str
    has_more: bool
    ranks: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Machine(View):
    """Hardware and software that a proof is about."""

    device: str
    ranks: int
    """Number of GPUs, or of CPU slots, that took part."""
    gpus: tuple[str, ...]
    """Name of each GPU."""
    driver: str
    """Version of the GPUs' driver; empty without GPUs."""
    torch: str
    python: str
    cores: int


@dataclass(frozen=True, kw_only=True)
class Occurrence(View):
    """One occurrence of a maintenance on one node."""

    node: str
    start: datetime
    end: datetime
    held: bool
    """False while a lease still stands in the way."""


@dataclass(frozen=True, kw_only=True)
class Maintenance(View):
    """A maintenance, or the plan of one."""

    id: str | None
    why: str
    rule: str | None
    zone: str
    hours: int
    occurrences: tuple[Occurrence, ...]
    displaced: tuple[DisplacedLease, ...]
    plan: str
    """Hash of the displaced leases. Repeat the request with it to displace them."""
    created_at: datetime | None
    cancelled_at: datetime | None


@dataclass(frozen=True, kw_only=True)
class User(View):
    """A person."""

    id: str
    name: str
    role: str
    zone: str
    email: str | None
    attributes: dict[str, str]
    """Texts that booking rules may ask for, such as the cohort, by attribute name."""
    disabled: bool
    created_at: datetime


@dataclass(frozen=True, kw_only=True)
class Me(View):
    """The signed-in person, with labs, jobs and lease."""

    user: User
    labs: tuple[str, ...]
    queued: int
    running: int
    lease: Lease | None
    """The lease that is active now, or the next booked one."""
    job_columns: tuple[str, ...] | None = None
    """Columns that your lists of jobs show; null: the usual ones."""


@dataclass(frozen=True, kw_only=True)
class MeasuredJob(View):
    """One job of a study in numbers; None if a number is not known, or never will be."""

    label: str
    """Name that distinguishes it: `2 ranks`, `GPipe`."""
    ranks: int
    global_batch_size: int
    learning_rate: float
    """Highest rate, after scaling by the batch size."""
    timed_steps: int
    """Number of steps in the median: all but the warm-up of each attempt and the measured ones."""
    step_time_s: float | None
    """Median step time."""
    tokens_per_s: float | None
    speed_up: float | None
    """Samples per second relative to the first job of the study."""
    expected_speed_up: float | None
    """Ratio of the numbers of ranks; for schedules, the ratio that their bubbles predict."""
    efficiency: float | None
    """Quotient speed_up / expected_speed_up."""
    serial_fraction: float | None
    """Share of the work that is not done in parallel, by Karp and Flatt; only in strong studies
    that start from one rank."""
    bubble: float | None
    """Share of a step in which a pipeline's ranks wait for each other, as predicted from its
    schedule."""
    communication: float | None
    """Exposed communication over forward and backward time, on rank 0."""
    judgement: str | None
    """Bottleneck, judged by that ratio."""
    curve: CurveComparison | None
    """Comparison with the first job of the study; None in weak studies, whose batches differ."""
    missing: str | None
    """Reason why there are no times."""


@dataclass(frozen=True, kw_only=True)
class Series(View):
    """One metric of one rank, down-sampled to at most `resolution` points; extremes are kept.

    `steps` and `values` have the same length. `min` and `max` are the band around each point when
    several were merged into it, else empty.
    """

    key: str
    rank: int
    steps: tuple[int, ...]
    values: tuple[float | None, ...]
    points: int
    """Number of recorded points."""
    max: tuple[float | None, ...] = ()
    min: tuple[float | None, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Metrics(View):
    """Series of a job, over all its attempts; a step that was run twice has its last value."""

    job: str
    keys: tuple[str, ...]
    """All keys that exist, including those that were not requested."""
    series: tuple[Series, ...]


@dataclass(frozen=True, kw_only=True)
class ModelFile(View):
    """One file of a model's folder."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class ModelOrigin(View):
    """Checkpoint that a model was promoted from, or job that fetched it from the hub."""

    job: str
    step: int | None
    """Step of the checkpoint; null if it was fetched."""
    epoch: int
    hub: str | None = None
    """Repository and commit that it was fetched from: `owner/name@COMMIT`."""


@dataclass(frozen=True, kw_only=True)
class Model(View):
    """A Hugging Face model that jobs can start from."""

    id: str
    name: str
    owner: str
    """Name of its owner. Jobs of others name it OWNER/NAME."""
    architecture: str
    """Architecture as named in the model's config.json."""
    parameters: int
    size: int
    files: tuple[ModelFile, ...]
    has_tokenizer: bool
    model: dict[str, Any]
    """The `model` part of a spec that starts from this model."""
    vocabulary_size: int
    """Required value of `data.vocabulary_size`."""
    longest_sequence: int | None
    """Largest allowed `data.sequence_length`; null if no limit is known."""
    version: int
    """Number among the models that have had its name; an earlier one is NAME@1."""
    origin: ModelOrigin | None
    """Job that it came from; null if it was uploaded."""
    used_by: tuple[str, ...]
    """Ids of your jobs that were submitted with it, newest first, at most 20; empty in a list of
    models."""
    created_at: datetime


@dataclass(frozen=True, kw_only=True)
class Move(View):
    """Result of a move from one lab to another."""

    user: User
    from_lab: str
    to_lab: str
    leases: tuple[str, ...]
    """Ids of the booked leases, which move along; past and active ones stay with the old lab."""


@dataclass(frozen=True, kw_only=True)
class Standing(View):
    """Progress of one student in an exercise."""

    user: str
    next: str
    lease: str | None
    """Booked lease: the one that runs or comes next, else the last in the time of the exercise."""
    booked_from: datetime | None
    booked_to: datetime | None
    started_at: datetime | None
    agenda: str | None
    """Id of the agenda that was started last; null if it was a job."""
    jobs: tuple[ExerciseJob, ...]
    succeeded: int
    failed: int
    expected: int
    """Number of jobs that the exercise starts."""
    handed_in_at: datetime | None
    late: bool
    """True if it was handed in after the exercise was due."""
    report: str | None
    """Hash of the report that was handed in."""
    left: tuple[str, ...]
    """Rest of the quotas, in words."""


@dataclass(frozen=True, kw_only=True)
class MyExercise(View):
    """An exercise with its notes, and one's own progress."""

    course: str
    exercise: Exercise
    notes: str
    """Markdown."""
    standing: Standing


@dataclass(frozen=True, kw_only=True)
class NetworkList(View):
    """Hosts that programs of a node class, or of a lab, may reach."""

    node_class: str | None
    lab: str | None
    """Name of the lab, if it is a lab's list."""
    hosts: tuple[str, ...]
    """Hosts and groups, as they were listed."""


@dataclass(frozen=True, kw_only=True)
class Network(View):
    """All lists, and the hosts of each group."""

    lists: tuple[NetworkList, ...]
    groups: dict[str, tuple[str, ...]]


@dataclass(frozen=True, kw_only=True)
class NewInvite(View):
    """A new invitation with its link, which is shown only in this answer."""

    id: str
    lab: str | None
    email: str | None
    attributes: dict[str, str]
    invited_by: str
    state: str
    used_by: str | None
    created_at: datetime
    expires_at: datetime
    url: str
    secret: str = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class NewToken(View):
    """A new token with its secret, which is shown only in this answer."""

    id: str
    name: str
    scopes: tuple[str, ...]
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None
    revoked_at: datetime | None
    secret: str = field(repr=False)
    user: User


@dataclass(frozen=True, kw_only=True)
class NewWebhook(View):
    """A webhook with the secret that signs its posts, which is shown only in this answer."""

    url: str
    secret: str = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class ProofSummary(View):
    """The last proof of a node (`trainyard prove`), in short."""

    sha256: str
    """Hash of the proof, its name."""
    proven_at: datetime
    device: str
    driver: str
    torch: str
    sentence: str
    """Numbers of checks passed, and the names of those that failed or were skipped."""
    failed: tuple[str, ...]
    skipped: tuple[str, ...]
    changes: tuple[str, ...]
    """Differences of the node's hardware and software now, such as another driver."""


@dataclass(frozen=True, kw_only=True)
class Slot(View):
    """A slot of a node: a GPU, or a CPU slot."""

    slot: int
    """Number of the slot, from 0."""
    state: str
    """`ready`, `dirty` (not known to be clean after its last job) or `quarantined` (out of
    service); jobs start on ready slots only."""
    reason: str
    """Reason why it is out of service; else empty."""


@dataclass(frozen=True, kw_only=True)
class Telemetry(View):
    """Load of the node at one moment. Percentages are 0 to 100; lists are in order of slots."""

    cpu_pct: float
    memory_used_gib: float
    disk_free_gib: float
    fetch_bytes_per_s: float | None = None
    """Rate at which the last large file came from the store; None: none has come yet."""
    gpu_memory_used_gib: tuple[float | None, ...] = ()
    """Memory in use on each GPU; None: it does not answer."""
    gpu_pct: tuple[float | None, ...] = ()
    """Share of the time in which anything ran on each GPU; None: not known, as for an instance of
    MIG."""
    gpus: tuple[GpuReading, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Node(View):
    """A node. Everybody sees its inventory and use; its address is not shown."""

    id: str
    name: str
    node_class: str
    state: str
    reason: str
    hardware: Hardware
    fabric: Fabric
    """Network between the nodes of its class."""
    inventory: dict[str, Any]
    slots: tuple[Slot, ...]
    telemetry: Telemetry | None
    reachable: bool
    last_seen_at: datetime | None
    unreachable_since: datetime | None
    proof: ProofSummary | None
    """Last proof that the node trains as planned; null if it was never proven."""
    user: str | None
    """The first of `users`."""
    job: str | None
    """The first of `jobs`."""
    jobs: tuple[str, ...]
    """Ids of the jobs that run on the node now."""
    free_at: datetime | None
    """End of the holds that follow each other on the node without a break; null if it is free
    now."""
    job_names: dict[str, str] = field(default_factory=dict)
    """Map id -> name of those of `jobs` that you may see: your own, and for staff all."""
    no_sharing: str = ""
    """Reason why not all of them, in a clause; else empty."""
    sharing: str = "none"
    """Jobs of different owners that it can run beside each other: parts of it can be leased unless
    it is `none`."""
    users: tuple[str, ...] = ()
    """Names of the users who hold slots of the node now."""


@dataclass(frozen=True, kw_only=True)
class NodeHold(View):
    """Hours for which a node, or some of its slots, is taken."""

    kind: str
    """`lease`, `offer` (a block held for somebody of the waitlist), `maintenance` or `down`."""
    walk_in: bool
    """True for the lease of a job that was started without booking."""
    hold_start: datetime
    hold_end: datetime
    gpus: int
    """Number of GPUs, or CPU slots."""
    slots: tuple[int, ...]
    """Indices of the slots, once the lease has them; else empty."""
    user: str | None
    """Name of the owner of a lease that has begun, of your own and, for staff, of every lease."""
    lease: str | None
    """Id of the lease, if you may see it."""


@dataclass(frozen=True, kw_only=True)
class Notice(View):
    """A notice to a person, and the state of its delivery."""

    id: int
    kind: str
    title: str
    message: str
    subject: str
    """Id of the object that the notice is about, or the hash of the report."""
    channel: str | None
    """Channel by which the notice is sent; null until one is chosen."""
    state: str
    attempts: int
    next_attempt_at: datetime | None
    """Time of the first or next attempt to send a waiting notice; otherwise null."""
    error: str
    """Reason that the notice has not left; empty if there is none."""
    created_at: datetime
    sent_at: datetime | None
    page: str = ""
    """Path of the page about it, such as `/jobs/job_...`; empty if there is none."""


@dataclass(frozen=True, kw_only=True)
class NoticeChoices(View):
    """Channels that a person has chosen for notices, and their addresses."""

    every: str
    """Channel of every kind that `kinds` does not name."""
    kinds: dict[str, str]
    known_kinds: tuple[str, ...]
    email: str | None
    webhook: str | None
    """URL to which signed notices are posted; null if there is none."""
    digest_at: str
    """Time of day at which the digest leaves, as `HH:MM` on the clock of `zone`."""
    zone: str


@dataclass(frozen=True, kw_only=True)
class Offer(View):
    """A block that is held for you until `expires_at`."""

    id: str
    node: str
    hold_start: datetime
    hold_end: datetime
    state: str
    lease: str | None
    expires_at: datetime


@dataclass(frozen=True, kw_only=True)
class Oidc(View):
    """The provider with which people sign in here."""

    name: str | None
    """Name of the provider on the sign-in page; null if there is no provider."""


@dataclass(frozen=True, kw_only=True)
class OidcStart(View):
    """Address of the provider to which the browser is to be sent."""

    url: str


@dataclass(frozen=True, kw_only=True)
class PlanAnswer(View):
    """The plan on every node class that the job may run on; `chosen` is the class where it would
    go."""

    plans: tuple[ClassPlan, ...]
    chosen: str | None
    predicted_start: datetime | None
    predicted_finish: datetime | None
    """Predicted finish; may be later than the lease's end. Null if start or speed is not known."""
    lease_end: datetime | None
    """Moment at which jobs in the lease that the spec names are stopped."""
    reason: str
    """Explanation in words: where and when the job would start, or why it cannot."""
    fetch_s: float | None = None
    """Seconds in which a node that has none of what the job reads fetches it, before the start: the
    inputs of a script, or the dataset, model and tokenizer of a recipe. Null if there is nothing to
    fetch, or if no node of the class has measured its rate yet."""
    inputs: tuple[JobInput, ...] = ()
    """Inputs of a script, as they would be resolved now."""
    network: tuple[str, ...] = ()
    """Hosts that a script may reach on the chosen class, of those that it asks for."""


@dataclass(frozen=True, kw_only=True)
class Policy(View):
    """A version of a booking policy."""

    id: str
    version: int
    active: bool
    zone: str
    sha256: str
    applied_by: str
    applied_at: datetime


@dataclass(frozen=True, kw_only=True)
class PolicyPlan(View):
    """Effects of applying a policy document: planned, or done if `applied`."""

    id: str
    version: int
    replaces: int | None
    """The version that is active now, or was until this one was applied; null if there was none."""
    applied: bool
    changes: tuple[str, ...]
    advice: tuple[str, ...]
    in_flight: str
    refused: tuple[AffectedLease, ...]
    """Future leases that these rules would have refused; at most the first hundred."""
    num_refused: int
    num_cancelled: int


@dataclass(frozen=True, kw_only=True)
class Window(View):
    """A window: a time in which leases may lie on the nodes of some pools."""

    id: str
    policy: str
    pools: tuple[str, ...]
    starts_at: datetime
    ends_at: datetime
    opens_at: datetime | None
    """Moment from which hours in the window may be booked; null: at once."""
    from_document: bool
    """True if the policy's document brought the window; false if staff added or changed it."""


@dataclass(frozen=True, kw_only=True)
class PolicyText(View):
    """A version with its document and, if it is active, its windows as they are now."""

    id: str
    version: int
    active: bool
    zone: str
    sha256: str
    applied_by: str
    applied_at: datetime
    document: str
    windows: tuple[Window, ...]


@dataclass(frozen=True, kw_only=True)
class Proof(View):
    """Results of all checks of one node that were asked for."""

    trainyard: str
    """Version of the platform."""
    proven_at: datetime
    seconds: float
    machine: Machine
    checks: tuple[CheckResult, ...]
    constants: Constants | None = None
    """Numbers that the planner may use for nodes of this class; None on CPU slots."""
    format: str = "trainyard-proof/1"


@dataclass(frozen=True, kw_only=True)
class ProofDocument(View):
    """A whole proof. `sha256` is that of `content` as JSON with sorted keys and no spaces."""

    sha256: str
    content: Proof


@dataclass(frozen=True, kw_only=True)
class Quota(View):
    """Remaining allowance of a person under one policy, on some nodes."""

    policy: str
    version: int
    nodes: tuple[str, ...]
    window_end: datetime | None
    """Closing time of the policy's window; null if it has none."""
    left: tuple[QuotaRemainder, ...]


@dataclass(frozen=True, kw_only=True)
class Quotas(View):
    """Remaining quotas of a person, as of now."""

    user: str
    quotas: tuple[Quota, ...]


@dataclass(frozen=True, kw_only=True)
class ReadOnly(View):
    """State of the platform: read-only or not, with the reason and the latest end."""

    read_only: bool
    reason: str
    until: datetime | None


@dataclass(frozen=True, kw_only=True)
class ReportJob(View):
    """One job with everything that is recorded about it."""

    job: Job
    attempts: tuple[Attempt, ...]
    events: tuple[Event, ...]
    checkpoints: tuple[Checkpoint, ...]
    artifacts: tuple[Artifact, ...]
    curves: tuple[Series, ...]
    """Metrics of rank 0, at most 300 points each."""
    gpu_hours: float
    """Hours multiplied by ranks, summed over all attempts."""


@dataclass(frozen=True, kw_only=True)
class ReportContent(View):
    """Content of a report: author, time, lease, and jobs with their results."""

    title: str
    platform: str
    """Address of the platform that wrote the report."""
    made_by: str
    made_at: datetime
    lease: Lease | None
    jobs: tuple[ReportJob, ...]
    format: str = "trainyard-report/1"


@dataclass(frozen=True, kw_only=True)
class Report(View):
    """A report. `sha256` is that of `content` as JSON with sorted keys and no spaces, in UTF-8."""

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
    """Answer to the check of a report: whether it was changed since this platform wrote it."""

    intact: bool
    """True if the content has the hash that stands beside it."""
    known: bool
    """True if this platform wrote exactly this content."""
    sha256: str
    """Hash of the content that was sent."""
    made_by: str | None
    made_at: datetime | None
    message: str


@dataclass(frozen=True, kw_only=True)
class Secret(View):
    """A secret without its value."""

    name: str
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, kw_only=True)
class Session(View):
    """A session: one browser or program in which a person is signed in."""

    id: str
    name: str
    """Device that signed in, and its address: `Firefox on Linux, 10.0.0.7`."""
    is_this_one: bool
    """True for the session that sends this request."""
    created_at: datetime
    expires_at: datetime | None
    """End of the session if it is not used until then."""
    last_used_at: datetime | None
    """Time of the last use, exact to ten minutes."""


@dataclass(frozen=True, kw_only=True)
class Share(View):
    """Permission to read one of your things. The bytes exist once, whoever reads them."""

    id: str
    kind: str
    thing: str
    """Id of the thing; of a report its hash."""
    name: str
    """Name of the thing; of a report its title."""
    audience: str
    who: str
    """Name of the person or group; empty for everybody."""
    created_at: datetime


@dataclass(frozen=True, kw_only=True)
class SharedEntry(View):
    """Entry at the top of your folder in the site's shared one, with all that is below it."""

    path: str
    kind: str
    size: int
    files: int
    """Number of files, folders and links below it."""


@dataclass(frozen=True, kw_only=True)
class SharedUse(View):
    """Use of your folder in the site's shared one, as a node saw it."""

    used: int
    """Bytes of its files."""
    files: int
    """Number of its files, folders and links."""
    is_whole: bool
    """False: the look was ended; there is at least so much."""
    top: tuple[SharedEntry, ...]
    """Entries at its top, the largest first; at most 200."""
    seen_at: datetime


@dataclass(frozen=True, kw_only=True)
class Start(View):
    """Result of a start: a job or an agenda."""

    job: str | None
    """Id of the job; null for an agenda."""
    agenda: str | None
    """Id of the agenda; null for a job."""


@dataclass(frozen=True, kw_only=True)
class StorageHolder(View):
    """Bytes used by you or a lab of yours, and the most that are allowed."""

    name: str
    used: int
    limit: int


@dataclass(frozen=True, kw_only=True)
class Storage(View):
    """Storage of one person."""

    used: int
    """Bytes of your checkpoints, artifacts, datasets, models and code."""
    by_kind: dict[str, int]
    limits: tuple[StorageHolder, ...]
    """Limits on your bytes and those of your labs; empty if there are none."""
    warnings: tuple[str, ...]
    keep_days: dict[str, int]
    """Days for which logs, metrics, checkpoints, artifacts and code are kept after the end of a
    job; 0 means for ever."""


@dataclass(frozen=True, kw_only=True)
class StudentResult(View):
    """Result of one student."""

    user: str
    email: str | None
    results: dict[str, Any]
    """A `results.json` as Gradescope's autograder reads it."""


@dataclass(frozen=True, kw_only=True)
class StudyJob(View):
    """A job of a study."""

    job: str
    label: str
    """Difference from the other jobs: `2 ranks`, `GPipe`."""
    ranks: int
    state: str
    reason: str
    step: int
    steps: int


@dataclass(frozen=True, kw_only=True)
class Study(View):
    """Jobs that were submitted together. The others are compared with the first."""

    id: str
    name: str
    user: str
    """Name of the study's owner."""
    kind: str
    jobs: tuple[StudyJob, ...]
    is_final: bool
    """True once all jobs of the study have ended."""
    created_at: datetime


@dataclass(frozen=True, kw_only=True)
class StudyReport(View):
    """A study and its findings so far."""

    id: str
    name: str
    user: str
    """Name of the study's owner."""
    kind: str
    jobs: tuple[StudyJob, ...]
    is_final: bool
    """True once all jobs of the study have ended."""
    created_at: datetime
    summary: str
    """The findings in one or two sentences."""
    points: tuple[MeasuredJob, ...]
    """Measurements, in the order of the jobs."""


@dataclass(frozen=True, kw_only=True)
class TemplateField(View):
    """A field that the person who starts a template may set."""

    field: str
    """Path of the field, such as `training.learning_rate`."""
    label: str
    """Name of the field in the form; empty: its path."""
    hint: str
    choices: tuple[str | int | float | bool, ...]
    """Values that are allowed; empty: any."""
    minimum: float | None
    maximum: float | None


@dataclass(frozen=True, kw_only=True)
class Template(View):
    """A job, script or agenda with locked and open fields."""

    id: str
    name: str
    owner: str
    """Name of its owner."""
    kind: str
    version: int
    """Number of its content; jobs that were started from an earlier one keep what they had."""
    description: str
    spec: dict[str, Any]
    """The job or agenda; open fields have their defaults here."""
    open: tuple[TemplateField, ...]
    """Fields that you may set. All others are locked."""
    created_at: datetime
    changed_at: datetime


@dataclass(frozen=True, kw_only=True)
class Token(View):
    """An API token. Its secret is only in the answer to the request that made it."""

    id: str
    name: str
    scopes: tuple[str, ...]
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None
    revoked_at: datetime | None


@dataclass(frozen=True, kw_only=True)
class Tokenizer(View):
    """A tokenizer that jobs can pretrain with."""

    id: str
    name: str
    owner: str
    """Name of its owner. Jobs of others name it OWNER/NAME."""
    vocabulary_size: int
    """Number of tokens; `data.vocabulary_size` of a job, if that leaves it open."""
    size: int
    files: tuple[ModelFile, ...]
    job: str | None
    """Id of the job that made it; null if it was uploaded."""
    created_at: datetime


@dataclass(frozen=True, kw_only=True)
class UnsafeSetting(View):
    """A setting, or another part of the installation, that could be safer."""

    setting: str
    """Environment variable of the setting, or the name of the weak part."""
    level: str
    """Severity. `danger`: others may get in, or read secrets."""
    found: str
    todo: str


@dataclass(frozen=True, kw_only=True)
class Upload(View):
    """A file that arrives in parts. It is gone once a dataset, model or archive is made of it."""

    id: str
    path: str
    format: str
    size: int
    received: int
    """Bytes that are safe: the offset at which the next part begins."""
    sha256: str | None
    """SHA-256 of the whole, once it has arrived and passed its check."""
    touched_at: datetime
    """Last time that bytes arrived; three days later it is deleted."""
    created_at: datetime


@dataclass(frozen=True, kw_only=True)
class UsageRow(View):
    """One person, lab or node in one day or week; hours of GPUs, or of CPU slots without GPUs."""

    period: str
    """The day, or the first day of the week."""
    name: str
    booked_hours: float
    """Hours held by leases, whatever ran in them."""
    used_hours: float
    """Hours in which a job had the GPUs or CPU slots."""
    useful_hours: float
    """Hours spent in training steps whose work was kept."""


@dataclass(frozen=True, kw_only=True)
class Usage(View):
    """Use from `start` to `end`; days begin at midnight in `zone`."""

    by: str
    per: str
    start: datetime
    end: datetime
    zone: str
    rows: tuple[UsageRow, ...]
    total: tuple[UsageRow, ...]
    """Rows of sums over all periods; `period` is the first one in which the name has hours."""
    object: str = "usage"


@dataclass(frozen=True, kw_only=True)
class Wait(View):
    """An entry of the waitlist."""

    id: str
    user: str
    node_class: str | None
    node: str | None
    first_start: datetime
    last_start: datetime
    hours: int
    priority: bool
    """True if a fault took a lease of the user: the entry is then served first."""
    state: str
    reason: str
    ahead: int
    """Number of entries that are served before it, whatever they are for."""
    offer: Offer | None
    """The open offer, or the last one with its result."""
    created_at: datetime
    gpus: int | None = None
    """GPUs, or CPU slots, of one node; null: a whole node."""


@dataclass(frozen=True, kw_only=True)
class WindowPlan(View):
    """Effects of a change of a window: planned, or done if `applied`."""

    window: Window | None
    """The window after the change; null if it is deleted."""
    orphans: tuple[AffectedLease, ...]
    hash: str
    applied: bool
    num_cancelled: int


@dataclass(frozen=True, kw_only=True)
class Workbench(View):
    """A workbench: a job that its owner sits in front of, or the held sandbox of one that has
    failed."""

    id: str
    """Id of the job."""
    name: str
    kind: str
    state: str
    reason: str
    """Reason of this state, in a sentence."""
    node: str | None
    lease: str | None
    """Lease that it runs in."""
    slots: int
    """Number of GPUs, or of CPU slots, that it has."""
    ends_at: datetime | None
    """Moment at which it is stopped. Null: it has not started."""
    can_be_entered: bool
    """True if it runs and its lease has begun."""
    no_browser: str
    """Reason why its program in the browser cannot be opened here; empty if it can, or if it has
    none."""
    idle_since: datetime | None
    """Moment since which it is idle, by the policy of its node. Null: it is in use."""
    idle_note: str
    """Use of its slots meanwhile, in sentences; empty if it is in use."""
    is_held: bool
    """True for the sandbox of a job that has failed (`hold_on_failure`): POST /v1/jobs/{id}/release
    ends it."""


@dataclass(frozen=True, kw_only=True)
class WorkbenchEntry(View):
    """A way into a workbench in the browser."""

    url: str
    """Address with a ticket, which works once."""
    expires_at: datetime


@dataclass(frozen=True, kw_only=True)
class WorkspaceWriter(View):
    """The program that writes to your workspace now."""

    job: str
    name: str
    """Name of the job."""
    epoch: int
    since: datetime


@dataclass(frozen=True, kw_only=True)
class Workspace(View):
    """State of your workspace, the folder that outlives leases and follows you between nodes."""

    used: int
    """Bytes of its files."""
    max_bytes: int
    files: int
    """Number of its files, folders and links."""
    max_files: int
    snapshot: str | None
    """Id of the snapshot that the next program begins with. Null: it is empty."""
    taken_at: datetime | None
    writer: WorkspaceWriter | None
    """Null: nobody writes to it, and the next program may."""
    trouble: str
    """Reason why the last look at it was not kept, or that a limit is near. Empty: neither."""
    shared_classes: tuple[str, ...]
    """Node classes whose nodes keep workspaces in a folder of the site."""
    shared: SharedUse | None
    """Use of your folder there, as a program of yours left it last. Null: none has used it."""


@dataclass(frozen=True, kw_only=True)
class WorkspaceEntry(View):
    """A file, folder or link of your workspace."""

    path: str
    kind: str
    size: int
    modified_at: datetime | None
    executable: bool
    sha256: str | None
    """SHA-256 of a file's content."""
    target: str | None
    """Text of a link."""


@dataclass(frozen=True, kw_only=True)
class WorkspaceSnapshot(View):
    """Snapshot of your workspace: all of its files at one moment."""

    id: str
    origin: str
    job: str | None
    """Job of the program that it was taken of."""
    epoch: int | None
    used: int
    files: int
    left_out: int
    """Number of files that could not be kept, such as sockets."""
    taken_at: datetime
    is_current: bool
    """True for the one that the next program begins with."""
