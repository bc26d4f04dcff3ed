"""Answers of the API as frozen dataclasses. Times carry their offset.

Written from docs/openapi.json by `make openapi`; do not edit. Fields that a newer server adds are
left in `raw`. States and outcomes are plain texts, so that a server may know more of them.
"""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from trainyard.decoding import View

FINAL_STATES = frozenset({"succeeded", "failed", "cancelled"})


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
    """How near plans were to what runs then needed."""

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
    """A lease to come that new rules would have refused, or that a smaller window leaves out."""

    id: str
    user: str
    node: str
    hold_start: datetime
    hold_end: datetime
    codes: tuple[str, ...]
    message: str


@dataclass(frozen=True, kw_only=True)
class AgendaJob(View):
    """A job of an agenda against the lease. The wall time is its budget."""

    position: int
    """From 1."""
    job: str | None
    """Its id, once submitted."""
    name: str
    nodes: int
    slots: int
    """On each of them."""
    wall_time_s: int
    expected_s: float | None
    """By its plan; null where the speed of the hardware is not known."""
    standing: str
    """`cut`: its wall time was used up, so it was saved and ended."""
    reason: str
    step: int
    steps: int
    planned_start: datetime
    planned_end: datetime
    """Where every job before it uses its whole wall time."""
    start: datetime | None
    """When it began; else when it will, at the latest. Null where it is not to run."""
    end: datetime | None
    """When it ended; else when it will, at the latest."""
    likely_end: datetime | None
    """At the speed that it has, or that its plan expects; null where that is not known."""
    late_s: int
    """Behind what was planned; less than a minute is 0."""
    fits: bool
    """It ends before the jobs of the lease are stopped, even at the latest."""


@dataclass(frozen=True, kw_only=True)
class Agenda(View):
    """An agenda as it stands now."""

    name: str
    lease: str | None
    """Null: a block that is not booked, here from the next full hour on."""
    leases: tuple[str, ...]
    """It and those that were booked together with it: one for each node."""
    node_class: str
    nodes: int
    slots: int
    """Of each node."""
    side_by_side: bool
    on_failure: str
    rules: str
    """How it is run, in a sentence."""
    begins: datetime
    usable_end: datetime
    """When jobs in the lease are stopped."""
    fits: bool
    """Whether every job ends in time, even if all use up their wall times."""
    spare_s: int
    """What is left of the lease then; negative: it is over by so much."""
    likely_spare_s: int | None
    first_cut: int | None
    """Position of the first job that would not end in time."""
    summary: str
    jobs: tuple[AgendaJob, ...]
    id: str
    user: str
    """Name of its owner."""
    node: str
    """Of its lease; of several the node of the one that was named."""
    is_final: bool
    """Whether all of its jobs have ended."""
    created_at: datetime


@dataclass(frozen=True, kw_only=True)
class AgendaPlan(View):
    """Whether the jobs fit into a lease, or into a block of hours."""

    name: str
    lease: str | None
    """Null: a block that is not booked, here from the next full hour on."""
    leases: tuple[str, ...]
    """It and those that were booked together with it: one for each node."""
    node_class: str
    nodes: int
    slots: int
    """Of each node."""
    side_by_side: bool
    on_failure: str
    rules: str
    """How it is run, in a sentence."""
    begins: datetime
    usable_end: datetime
    """When jobs in the lease are stopped."""
    fits: bool
    """Whether every job ends in time, even if all use up their wall times."""
    spare_s: int
    """What is left of the lease then; negative: it is over by so much."""
    likely_spare_s: int | None
    first_cut: int | None
    """Position of the first job that would not end in time."""
    summary: str
    jobs: tuple[AgendaJob, ...]


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
class Place(View):
    """An attempt on one of its nodes."""

    node: str
    """Name."""
    lease: str
    slots: tuple[int, ...]
    """Indices of the GPUs, or CPU slots, that it has there, one for each rank."""
    ranks: tuple[int, ...]
    reason: str
    """How it ended there, as this node tells it; empty before."""


@dataclass(frozen=True, kw_only=True)
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
    """A sentence for whatever was wrong, worst first."""


@dataclass(frozen=True, kw_only=True)
class Attempt(View):
    """One try at running a job."""

    id: str
    epoch: int
    node: str
    """Of several nodes the first, where rank 0 runs."""
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
    """None: it did none. One rank has no others, and what ranks of a node proved holds for an
    hour."""
    assigned_at: datetime
    started_at: datetime | None
    first_step_at: datetime | None
    ended_at: datetime | None


@dataclass(frozen=True, kw_only=True)
class AuditEntry(View):
    """Who did what; `kind` is the action, such as `node.drain`."""

    id: int
    at: datetime
    epoch: int | None
    kind: str
    from_state: str | None
    to_state: str | None
    reason_code: str
    message: str
    actor: str
    subject: str
    details: dict[str, Any]
    actor_name: str | None
    """What the person or node is called now; null for a process."""
    subject_name: str | None
    """The same of what it was about."""


@dataclass(frozen=True, kw_only=True)
class Taken(View):
    """A node that is not free in an hour."""

    node: str
    why: str
    """`leased`, `yours`, `offered`, `maintenance`, `down`, or the node's state; with `block_hours`
    or `any_length` the code of the first rule that a block from this hour on would break."""
    message: str = ""
    """What that rule says."""


@dataclass(frozen=True, kw_only=True)
class FreeHour(View):
    """One hour of a node class."""

    start: datetime
    free: int
    nodes: tuple[str, ...]
    """Names of the free ones."""
    taken: tuple[Taken, ...]


@dataclass(frozen=True, kw_only=True)
class Lengths(View):
    """How long a block on a node may be for you, in hours, at one time of day or another."""

    node: str
    hours: tuple[int, ...]
    """Ascending."""


@dataclass(frozen=True, kw_only=True)
class Availability(View):
    """Which nodes of a class are free, hour by hour."""

    node_class: str | None
    """None: of every class."""
    nodes: int
    hours: tuple[FreeHour, ...]
    lengths: tuple[Lengths, ...]


@dataclass(frozen=True, kw_only=True)
class Span(View):
    """A band or a window, whole."""

    name: str
    """Of a band; of a window its pools."""
    starts_at: datetime
    ends_at: datetime


@dataclass(frozen=True, kw_only=True)
class Bands(View):
    """How one policy divides hours on nodes that it treats alike for you."""

    policy: str
    version: int
    zone: str
    nodes: tuple[str, ...]
    bands: tuple[Span, ...]
    """Of the day, such as the night."""
    windows: tuple[Span, ...] | None
    """Outside of these no lease may lie; null: anywhere."""


@dataclass(frozen=True, kw_only=True)
class Charge(View):
    """What a lease takes from which quota; `quota` is null if it is charged to none."""

    quota: str | None
    hours: int


@dataclass(frozen=True, kw_only=True)
class Left(View):
    """What a quota still allows."""

    quota: str
    alternative: str
    text: str
    by_swap: bool


@dataclass(frozen=True, kw_only=True)
class Reason(View):
    """A rule that a block breaks, or something to know of, with its numbers."""

    code: str
    param: str
    message: str
    numbers: dict[str, int]


@dataclass(frozen=True, kw_only=True)
class NodeVerdict(View):
    """What the policy says to a block on one node."""

    node: str
    node_class: str
    ok: bool
    hold_start: datetime
    hold_end: datetime
    reasons: tuple[Reason, ...]
    warnings: tuple[Reason, ...]
    charge: Charge
    left: tuple[Left, ...]
    next_starts: tuple[datetime, ...]
    """The nearest starts of a block as long, on this node, that would be accepted."""
    policy: str
    policy_version: int


@dataclass(frozen=True, kw_only=True)
class BlockVerdict(View):
    """Whether a block would be booked now, and where. Asking changes nothing."""

    ok: bool
    can_wait: bool
    """It is refused, but the waitlist may give it: others have the hours, or time will tell."""
    chosen: tuple[str, ...]
    """Names of the nodes that would be booked; empty if refused."""
    hold_start: datetime
    hold_end: datetime
    nodes: tuple[NodeVerdict, ...]
    """Those chosen first; of a refused block the nearest to being accepted first."""


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
    """Duration at the highest share of the peak, with all traffic hidden that can be."""
    high_s: float
    """Duration at the lowest share of the peak, with no traffic hidden."""
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
    capacity_gib: float = 0.0
    """Memory available per rank: nine tenths of its GPU, or of its share of the host's RAM."""
    cost: Cost | None = None
    """Cost of the run; None in plans made before costs were computed."""
    files: tuple[MemoryTerm, ...] = ()
    """Disk space per node for state offloaded to files (nvme)."""
    fits: bool = False
    global_batch_size: int = 0
    gradient_accumulation_steps: int = 0
    host_memory: tuple[MemoryTerm, ...] = ()
    """Memory offloaded to the host of each GPU node."""
    layout: dict[str, Any] = field(default_factory=dict)
    learned_factor: float = 1.0
    """Factor of the estimated terms, above 1 if runs of this kind needed more here."""
    memory: tuple[MemoryTerm, ...] = ()
    """Memory of each of the ranks that need the most, by term."""
    micro_batch_size: int = 0
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
    """Where each rank sits; empty where there are more than can be drawn."""
    timeline: tuple[TimeSlot, ...]
    """What a pipeline's ranks do in a step; empty where there is no pipeline."""


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
    """Now."""
    code: str
    rule: str
    message: str
    refund_hours: int
    result: str
    outcome: str
    restored_as: str | None


@dataclass(frozen=True, kw_only=True)
class Selector(View):
    """What to look for; without `wrong`, everything that the other fields name."""

    include_active: bool = False
    """Active ones too: their node is quarantined before they are ended."""
    lab: str | None = None
    node: str | None = None
    starts_before: datetime | None = None
    starts_from: datetime | None = None
    """Only leases that start at that moment or later."""
    tag: str | None = None
    user: str | None = None
    """Name or id, as for the next two."""
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
    """Leases that are removed, or would be."""
    spared: int
    skipped: int
    freed_node_hours: int
    freed_gpu_hours: int
    refunded_hours: int
    owners: int
    """People who are told, with one notice each."""
    rows: tuple[CleanupRow, ...]


@dataclass(frozen=True, kw_only=True)
class ClientRelease(View):
    """The client that this server carries."""

    version: str
    filename: str
    url: str
    sha256: str
    """Of the wheel; the address in `command` ends with it, so that pip checks what it downloads."""
    command: str
    """Installs or updates the command line and the Python package."""


@dataclass(frozen=True, kw_only=True)
class Code(View):
    """An archive of code that you have uploaded."""

    sha256: str
    """What a job's `script.code` names."""
    size: int
    unpacked_size: int
    paths: tuple[str, ...]
    """Of its files."""
    created_at: datetime


@dataclass(frozen=True, kw_only=True)
class CodeLine(View):
    """An archive of code in a list."""

    sha256: str
    size: int
    files: int
    jobs: tuple[str, ...]
    """Ids of the jobs that have not ended and need it."""
    created_at: datetime


@dataclass(frozen=True, kw_only=True)
class Compared(View):
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
class Comparison(View):
    """The curves of two jobs over the steps that both have."""

    job: str
    other: str
    verdict: str
    """`exempt`: one of them promises nothing."""
    result_class: str
    """The weaker of their promises."""
    steps: int
    loss: Difference
    grad_norm: Difference | None


@dataclass(frozen=True, kw_only=True)
class DatasetImages(View):
    """What a dataset of images holds, as a job must say it."""

    count: int
    """To train on, those that `data.held_out` keeps back among them."""
    tests: int
    """That came as a part for tests."""
    image_shape: tuple[int, ...]
    """Height, width, channels."""
    classes: int
    """The largest label + 1."""


@dataclass(frozen=True, kw_only=True)
class Dataset(View):
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
    warnings: tuple[str, ...]
    created_at: datetime | None


@dataclass(frozen=True, kw_only=True)
class DatasetPreview(View):
    """The beginning of a text, or what images there are."""

    text: str
    is_all: bool


@dataclass(frozen=True, kw_only=True)
class Displaced(View):
    """A lease that stands in the way, and what becomes of it."""

    lease: str
    user: str
    node: str
    hold_start: datetime
    hold_end: datetime
    act: str
    """`move` or `refund`, or `keep` for one that can't be displaced."""
    to_node: str | None
    result: str
    """Empty in a plan; afterwards what was done."""


@dataclass(frozen=True, kw_only=True)
class Enrolment(View):
    """The single-use token for a node and the command to run there."""

    token: str = field(repr=False)
    command: str
    expires_at: datetime


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
class Feed(View):
    """A calendar feed."""

    id: str
    node: str | None
    url: str | None
    """Shown once."""
    created_at: datetime
    last_used_at: datetime | None
    revoked_at: datetime | None


@dataclass(frozen=True, kw_only=True)
class ForecastDay(View):
    """A day, or what is left of it, before a window closes."""

    start: datetime
    free_hours: float
    """Node-hours that nobody has booked."""
    wanted_hours: float
    """Of these, what would be booked."""


@dataclass(frozen=True, kw_only=True)
class Forecast(View):
    """How full the days become if what is left of all quotas is spent evenly until the close."""

    policy: str
    zone: str
    nodes: tuple[str, ...]
    closes_at: datetime
    people: int
    """Who may book and are no staff."""
    unspent_hours: float
    free_hours: float
    unmet_hours: float
    """Of the unspent ones, those that would find no room."""
    days: tuple[ForecastDay, ...]
    message: str


@dataclass(frozen=True, kw_only=True)
class Grant(View):
    """An exception, as everybody may see it."""

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
    model: str | None = None
    no_gang_sandbox: str = ""
    """Reason why scripts that run on several of these nodes cannot be sandboxed."""
    no_sandbox: str = ""
    """Reason why scripts cannot be sandboxed here; empty if they can, or it is not known."""


@dataclass(frozen=True, kw_only=True)
class Health(View):
    """An answer for machines."""

    status: str
    version: str
    """Of the platform."""


@dataclass(frozen=True, kw_only=True)
class ImportRow(View):
    """What one line of a list of people means."""

    line: int
    name: str
    action: str
    changes: tuple[str, ...]
    """Names of what is new of a person who was there already."""
    password_link: str | None
    """With which a new person sets a password; shown this once."""


@dataclass(frozen=True, kw_only=True)
class Import(View):
    """What a list of people has done, or would do."""

    dry_run: bool
    added: int
    changed: int
    same: int
    labs: tuple[str, ...]
    """Names of labs that are made for it."""
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
    """What runs in it now, beside each other."""
    together: str | None
    """The first of the leases that were booked with it."""
    counts: bool
    """Against quotas; false once it is refunded."""
    charged_hours: int
    """That it counts for now. Of what was given back too late only those that nobody else has."""
    settled_as: str
    """Why it counts or does not, once it is over: `late_cancel`, `node_fault`, ..."""
    charge: Charge | None
    policy: str | None
    policy_version: int | None
    protected: bool
    unusable_s: int
    """How long its node could not be used in it."""
    created_at: datetime


@dataclass(frozen=True, kw_only=True)
class RunningJob(View):
    """A job that runs on a node."""

    id: str
    name: str
    user: str


@dataclass(frozen=True, kw_only=True)
class InTheWay(View):
    """What runs on a node and what is booked on it."""

    node: str
    state: str
    jobs: tuple[RunningJob, ...]
    leases: tuple[Lease, ...]
    """Booked, active and ending ones, by their start."""


@dataclass(frozen=True, kw_only=True)
class Invite(View):
    """An invitation; its secret is only in the answer that made it."""

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
    peak_gib: tuple[float, ...] = ()
    """Peak memory of each rank's training, without Python and its libraries; empty if it was not
    measured."""


@dataclass(frozen=True, kw_only=True)
class Job(View):
    """A job."""

    id: str
    name: str
    user: str
    """Name of its owner."""
    state: str
    desired: str
    reason_code: str
    reason: str
    predicted_start: datetime | None
    spec: dict[str, Any]
    """As it is stored where this version of the platform can't read it; `reason` says so then."""
    plan: Plan
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
    nodes: tuple[Place, ...]
    """All of them, while it is on any."""
    steps: int
    """0: of a script, which does not say how many it makes."""
    step: int
    loss: float | None
    tokens_per_s: float | None
    stops_at: datetime | None
    """When its present attempt is stopped at the latest."""
    wall_time_s: int
    used_s: int
    certificate: Certificate | None
    """Of its first steps against one rank, if the spec asks for it and they are done."""
    result: Result | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    is_final: bool
    """Whether it has ended for good."""


@dataclass(frozen=True, kw_only=True)
class JobLayout(View):
    """Ranks on their nodes, and the passes of a pipeline."""

    seats: tuple[Seat, ...]
    """Empty where there are more than can be drawn."""
    timeline: tuple[TimeSlot, ...]
    """Empty where there is no pipeline, or one too long to draw."""
    nodes: tuple[str, ...]
    """Names of the nodes of the newest attempt, as far as they are known."""


@dataclass(frozen=True, kw_only=True)
class Lab(View):
    """A group of people."""

    id: str
    name: str
    weight: float
    """Its share of the nodes, relative to the other labs'."""
    groups: tuple[str, ...]
    """Further names under which booking rules find its members."""
    members: tuple[str, ...]
    """Names."""
    leads: tuple[str, ...]
    """Those of them who lead it."""
    created_at: datetime


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
    """-1 is the launcher."""
    stream: str
    line: int
    text: str


@dataclass(frozen=True, kw_only=True)
class Logs(View):
    """Lines, oldest first. `cursor` is where the next call goes on."""

    lines: tuple[LogLine, ...]
    cursor: str
    has_more: bool
    ranks: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Occurrence(View):
    """One time of a maintenance on one node."""

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
    displaced: tuple[Displaced, ...]
    plan: str
    """Hash of what is displaced: repeat the request with it to do so."""
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
    """Texts that booking rules may ask for, such as the cohort."""
    disabled: bool
    created_at: datetime


@dataclass(frozen=True, kw_only=True)
class Me(View):
    """Who is asking."""

    user: User
    labs: tuple[str, ...]
    queued: int
    running: int
    lease: Lease | None
    """The lease that is active now, or the next booked one."""


@dataclass(frozen=True, kw_only=True)
class Measured(View):
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
    curve: Compared | None
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
    """How many were recorded."""
    max: tuple[float | None, ...] = ()
    min: tuple[float | None, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Metrics(View):
    """Series of a job, over all its attempts; a step that was run twice has its last value."""

    job: str
    keys: tuple[str, ...]
    """All keys that exist, also those not asked for."""
    series: tuple[Series, ...]


@dataclass(frozen=True, kw_only=True)
class ModelFile(View):
    """One file of a model's folder."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Model(View):
    """A Hugging Face model that jobs can start from."""

    id: str
    name: str
    architecture: str
    """As its config.json names it."""
    parameters: int
    size: int
    files: tuple[ModelFile, ...]
    has_tokenizer: bool
    model: dict[str, Any]
    """The `model` part of a spec that starts from it."""
    vocabulary_size: int
    """What `data.vocabulary_size` must be."""
    longest_sequence: int | None
    """What `data.sequence_length` may be at most; null: nothing is known against any."""
    created_at: datetime


@dataclass(frozen=True, kw_only=True)
class Move(View):
    """What a move has changed."""

    user: User
    from_lab: str
    to_lab: str
    leases: tuple[str, ...]
    """Ids of the leases to come, which follow; what was used stays with the old lab."""


@dataclass(frozen=True, kw_only=True)
class NewInvite(View):
    """A fresh invitation, with its link: it is shown this once."""

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
    """A fresh token, with its secret: it is shown this once."""

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
    """A webhook, with the secret that signs what is posted: it is shown this once."""

    url: str
    secret: str = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class Telemetry(View):
    """Use of the node at one moment. Per cent are 0 to 100."""

    cpu_pct: float
    memory_used_gib: float
    disk_free_gib: float
    gpu_memory_used_gib: tuple[float, ...] = ()
    gpu_pct: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Node(View):
    """A node. Its inventory and use are for everybody; its address is not shown."""

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
    """Who holds it now."""
    job: str | None
    """The first of `jobs`."""
    jobs: tuple[str, ...]
    """What runs on it now."""
    free_at: datetime | None
    """None if it is free now."""


@dataclass(frozen=True, kw_only=True)
class Notice(View):
    """Something a person was told, and what became of it on its way."""

    id: int
    kind: str
    title: str
    message: str
    subject: str
    """Id of what it is about."""
    channel: str | None
    """None until a way is chosen for it."""
    state: str
    attempts: int
    next_attempt_at: datetime | None
    """Of what waits: when it is tried, or tried again."""
    error: str
    """Why it has not left."""
    created_at: datetime
    sent_at: datetime | None


@dataclass(frozen=True, kw_only=True)
class NoticeChoices(View):
    """How a person wants to be told."""

    every: str
    """Of each kind that is not named."""
    kinds: dict[str, str]
    known_kinds: tuple[str, ...]
    email: str | None
    webhook: str | None
    """Where signed notices are posted."""
    digest_at: str
    """When the day's digest leaves, on the clock of `zone`."""
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
    """As the sign-in page calls it; none if there is none."""


@dataclass(frozen=True, kw_only=True)
class OidcStart(View):
    """Where to send the browser."""

    url: str


@dataclass(frozen=True, kw_only=True)
class PlanAnswer(View):
    """The plan on every class it was asked for; `chosen` is where the job would go."""

    plans: tuple[ClassPlan, ...]
    chosen: str | None
    predicted_start: datetime | None
    predicted_finish: datetime | None
    """Where start and speed are known, whether or not that is after the end of the lease."""
    lease_end: datetime | None
    """When jobs in the lease that the spec names are stopped."""
    reason: str
    """In a sentence: where and when it would start, or why it can't."""


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
    """What applying a document does, or has done."""

    id: str
    version: int
    replaces: int | None
    """The version that is active now, or was until now."""
    applied: bool
    changes: tuple[str, ...]
    advice: tuple[str, ...]
    in_flight: str
    refused: tuple[AffectedLease, ...]
    """Leases to come that these rules would have refused, the first hundred."""
    num_refused: int
    num_cancelled: int


@dataclass(frozen=True, kw_only=True)
class Window(View):
    """When leases may lie on the nodes of some pools."""

    id: str
    policy: str
    pools: tuple[str, ...]
    starts_at: datetime
    ends_at: datetime
    opens_at: datetime | None
    """From when on it may be booked; null: at once."""
    from_document: bool
    """False: staff added it, or have changed it."""


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
class Quota(View):
    """What a policy leaves to somebody on some nodes."""

    policy: str
    version: int
    nodes: tuple[str, ...]
    window_end: datetime | None
    """When its window closes; None: it has none."""
    left: tuple[Left, ...]


@dataclass(frozen=True, kw_only=True)
class Quotas(View):
    """What is left to a person, as it stands now."""

    user: str
    quotas: tuple[Quota, ...]


@dataclass(frozen=True, kw_only=True)
class ReadOnly(View):
    """Whether the platform is read-only."""

    read_only: bool
    reason: str
    until: datetime | None


@dataclass(frozen=True, kw_only=True)
class ReportJob(View):
    """One job, whole."""

    job: Job
    attempts: tuple[Attempt, ...]
    events: tuple[Event, ...]
    checkpoints: tuple[Checkpoint, ...]
    artifacts: tuple[Artifact, ...]
    curves: tuple[Series, ...]
    """Of rank 0, at most 300 points each."""
    gpu_hours: float
    """Ranks times hours, over all attempts."""


@dataclass(frozen=True, kw_only=True)
class ReportContent(View):
    """Who, when, and what became of it."""

    title: str
    platform: str
    """Address of the platform that wrote it."""
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
    """What became of a report since it left."""

    intact: bool
    """The content has the hash that stands beside it."""
    known: bool
    """This platform wrote exactly this content."""
    sha256: str
    """Of the content that was sent."""
    made_by: str | None
    made_at: datetime | None
    message: str


@dataclass(frozen=True, kw_only=True)
class Secret(View):
    """A secret: that it is there, not what it is."""

    name: str
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, kw_only=True)
class Session(View):
    """Where one is signed in."""

    id: str
    name: str
    """What signed in, and from which address: `Firefox on Linux, 10.0.0.7`."""
    is_this_one: bool
    """Whether it is the one that asks."""
    created_at: datetime
    expires_at: datetime | None
    """If it is not used until then."""
    last_used_at: datetime | None
    """To ten minutes."""


@dataclass(frozen=True, kw_only=True)
class StorageHolder(View):
    """You, or a lab of yours, and the bytes that are kept and may be."""

    name: str
    used: int
    limit: int


@dataclass(frozen=True, kw_only=True)
class Storage(View):
    """What is kept for you."""

    used: int
    """Bytes of your checkpoints, artifacts, datasets, models and code."""
    by_kind: dict[str, int]
    limits: tuple[StorageHolder, ...]
    """Empty where bytes are not limited."""
    warnings: tuple[str, ...]
    keep_days: dict[str, int]
    """After the end of a job: logs, metrics, checkpoints, artifacts, code; 0 is for ever."""


@dataclass(frozen=True, kw_only=True)
class StudyJob(View):
    """A job of a study."""

    job: str
    label: str
    """What sets it apart: `2 ranks`, `GPipe`."""
    ranks: int
    state: str
    reason: str
    step: int
    steps: int


@dataclass(frozen=True, kw_only=True)
class Study(View):
    """Jobs that were submitted together. The first is what the others are compared with."""

    id: str
    name: str
    user: str
    """Name of its owner."""
    kind: str
    jobs: tuple[StudyJob, ...]
    is_final: bool
    """Whether all of them have ended."""
    created_at: datetime


@dataclass(frozen=True, kw_only=True)
class StudyReport(View):
    """A study and what it found so far."""

    id: str
    name: str
    user: str
    """Name of its owner."""
    kind: str
    jobs: tuple[StudyJob, ...]
    is_final: bool
    """Whether all of them have ended."""
    created_at: datetime
    summary: str
    """In one or two sentences."""
    points: tuple[Measured, ...]
    """In the order of the jobs."""


@dataclass(frozen=True, kw_only=True)
class Token(View):
    """An API token; the secret is only in the answer that made it."""

    id: str
    name: str
    scopes: tuple[str, ...]
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None
    revoked_at: datetime | None


@dataclass(frozen=True, kw_only=True)
class UnsafeSetting(View):
    """Something that could be safer."""

    setting: str
    """Its environment variable, or what it is about."""
    level: str
    """`danger`: somebody else may get in, or read what is secret."""
    found: str
    todo: str


@dataclass(frozen=True, kw_only=True)
class UsageRow(View):
    """One person, lab or node in one day or week; hours of GPUs, or of CPU slots without GPUs."""

    period: str
    """Its first day."""
    name: str
    booked_hours: float
    """Held by leases, whatever ran in them."""
    used_hours: float
    """In which a job had them."""
    useful_hours: float
    """In training steps whose work was kept."""


@dataclass(frozen=True, kw_only=True)
class Usage(View):
    """Use from `start` to `end`, the days on the clock of `zone`."""

    by: str
    per: str
    start: datetime
    end: datetime
    zone: str
    rows: tuple[UsageRow, ...]
    total: tuple[UsageRow, ...]
    """The same, over all periods; `period` is the first one."""
    object: str = "usage"


@dataclass(frozen=True, kw_only=True)
class Wait(View):
    """A wish on the waitlist."""

    id: str
    user: str
    node_class: str | None
    node: str | None
    first_start: datetime
    last_start: datetime
    hours: int
    priority: bool
    """A fault has taken a lease: served first."""
    state: str
    reason: str
    ahead: int
    """Wishes that are served before it, whatever they are for."""
    offer: Offer | None
    """The one that is open now, or what became of the last one."""
    created_at: datetime


@dataclass(frozen=True, kw_only=True)
class WindowPlan(View):
    """What a change of a window does, or has done."""

    window: Window | None
    """As it will be; null if it goes."""
    orphans: tuple[AffectedLease, ...]
    hash: str
    applied: bool
    num_cancelled: int
