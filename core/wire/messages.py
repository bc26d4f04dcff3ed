"""Messages between a node and the API (`/v1/node/...`). Pure.

The node sends everything it observes, the API answers with everything it wants: a lost message
costs nothing. Deadlines travel as seconds remaining and run on the node's boot clock, counted from
the moment the request was sent. Every message about an attempt carries its epoch.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from core.spec.hosts import MAX_RULES
from core.spec.inputs import HubName, InputKind
from core.spec.script import Script
from core.spec.spec import NAME, AnyPlan, Launcher
from core.spec.workbench import MAX_REQUIREMENTS, Workbench
from core.states import GpuHealth, Outcome, Phase, Sharing
from core.wire.shared_use import SharedUse
from strategies.plan.built_in.datasets import DatasetFormat
from strategies.plan.hardware import GpuSpeeds
from strategies.plan.run_directory import RankMemory, Result
from strategies.plan.spec import TrainSpec
from strategies.plan.trust.certificate import Certificate
from strategies.plan.trust.preflight_report import Report as PreflightReport

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Epoch = Annotated[int, Field(ge=1, le=2**31 - 1)]
# A path below a run directory: no empty part, no `.` or `..`, no backslash. One leading dot is
# allowed, because torch names a checkpoint's index `.metadata`. (pydantic's patterns know no
# look-ahead.)
RelativePath = Annotated[
    str,
    Field(
        pattern=r"^\.?[A-Za-z0-9_-][A-Za-z0-9_.=+@,-]*(/\.?[A-Za-z0-9_-][A-Za-z0-9_.=+@,-]*)*$",
        max_length=400,
    ),
]


BEAT_AFTER = "Beat-After"
"""Header of the answer to a heartbeat: seconds until the API wants the next one. It is no field of
`Orders`, because older workers refuse unknown fields."""
SHIP_AFTER = "Ship-After"
"""Header of the answer to metrics and logs of a job: seconds until the API wants the next ones.
Missing: as soon as there are some. Older workers do not read it."""
ORDERS_MARK = "Orders-Mark"
"""Header of the answer to a heartbeat: text for all that the orders follow from. The node sends it
back with its next heartbeat, and gets 204, without a body, if its orders are still the same. Older
workers send none, older APIs give none."""
ADAPTER = r"[A-Za-z0-9_]+(:[0-9]+)?"  # of RDMA, with its port


class Message(BaseModel):
    """Base class: unknown fields are refused, and so are numbers that JSON does not have."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class FileRef(Message):
    """A file by content."""

    path: RelativePath
    sha256: Sha256
    size: int = Field(ge=0, le=2**53)


# ------------------------------------------------------------------------------------------ node


class Gpu(Message):
    """One GPU, or one MIG instance of a GPU, and its fitness for jobs."""

    index: int = Field(ge=0, le=1023)
    """Number of its slot. The node keeps it for this UUID, however NVML or CUDA count."""
    name: str = Field(max_length=200)
    memory_gib: float = Field(gt=0, le=100_000)
    uuid: str = Field(default="", max_length=100)
    """UUID of the GPU (`GPU-...`) or of the MIG instance (`MIG-...`)."""
    pci_address: str = Field(default="", max_length=40)
    """Address on the PCI bus, such as `00000000:3B:00.0`."""
    link_group: int | None = Field(default=None, ge=0, le=1023)
    """Lowest slot of the GPUs that NVLink bridges join it with; None: it has no bridge, or a switch
    joins it with all."""
    speeds: GpuSpeeds | None = None
    """Measured speeds of a GPU whose data sheet the planner does not know."""
    health: GpuHealth = GpuHealth.HEALTHY
    reason: str = Field(default="", max_length=500)
    """Reason why no job gets it, and what to do about it; empty if it is healthy."""


class Inventory(Message):
    """Hardware and software of a node. Without a GPU its CPU cores are the slots.

    GPUs are sorted by slot; those that are unfit for jobs now are among them.
    """

    hostname: str = Field(max_length=300)
    cores: int = Field(ge=1, le=100_000)
    memory_gib: float = Field(gt=0, le=1_000_000)
    gpus: list[Gpu] = Field(max_length=1024)
    slots: int = Field(ge=1, le=1024)
    """Ranks that may run at a time: GPUs, or CPU slots."""
    python: str
    torch: str
    """Version, or empty where torch is not installed."""
    sandbox: str | None = Field(default=None, max_length=100)
    """Sandbox for users' scripts: `bubblewrap` or `namespaces`; empty where neither works. None: an
    older worker that does not report it."""
    no_sandbox: str = Field(default="", max_length=2000)
    """Reason why no sandbox works."""
    driver: str = Field(default="", max_length=100)
    """Version of the GPUs' driver; empty without GPUs, or if it does not answer."""
    no_gang_sandbox: str = Field(default="", max_length=2000)
    """Reason why no sandbox works for a script that runs on other nodes too."""
    no_compiler: str = Field(default="", max_length=2000)
    """Missing parts of the compiler for generated kernels; empty if it is complete."""
    sharing: Sharing | None = None
    """Jobs of different owners that it can run beside each other. None: an older worker that does
    not report it."""
    no_sharing: str = Field(default="", max_length=2000)
    """Reason why it cannot run all jobs beside each other, and the remedy; empty if it can."""
    shared_workspaces: bool = Field(default=False, exclude_if=lambda shared: not shared)
    """True if people's workspaces are in a folder that the site's nodes share. Left out if False:
    older APIs do not know the field."""
    job_memory_gib: float | None = Field(
        default=None, gt=0, le=1_000_000, exclude_if=lambda limit: limit is None
    )
    """Most memory of one job, as the node's own setting says; None: all that is free. Left out if
    None: older APIs do not know the field."""
    egress: str | None = Field(default=None, max_length=4000)
    """The most that programs may reach from it, as its own setting says; empty: it sets no limit.
    None: an older worker, whose programs reach nothing."""


class GpuReading(Message):
    """State of one GPU at one moment, as far as it reports it."""

    index: int = Field(ge=0, le=1023)
    """Number of its slot."""
    clock_mhz: int | None = None
    """Clock of its multiprocessors."""
    max_clock_mhz: int | None = None
    throttled: list[Annotated[str, Field(max_length=60)]] = Field(default=[], max_length=12)
    """Reasons for which the clock is held down now, such as `thermal slowdown`."""
    temperature_c: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    """PCIe lanes in use."""
    max_pcie_width: int | None = None
    pcie_replays: int | None = None
    """Packets that were sent again over PCIe since the driver was loaded."""
    nvlink_errors: int | None = None
    """Replay, recovery and checksum errors of all NVLinks since the driver was loaded."""


class Telemetry(Message):
    """Load of the node at one moment. Percentages are 0 to 100; lists are in order of slots."""

    cpu_pct: float
    memory_used_gib: float
    disk_free_gib: float
    gpu_pct: list[float | None] = []
    """Share of the time in which anything ran on each GPU; None: not known, as for an instance of
    MIG."""
    gpu_memory_used_gib: list[float | None] = []
    """Memory in use on each GPU; None: it does not answer."""
    gpus: list[GpuReading] = Field(default=[], max_length=1024)
    fetch_bytes_per_s: float | None = Field(default=None, exclude_if=lambda rate: rate is None)
    """Rate at which the last large file came from the store; None: none has come yet."""


class Enrolment(Message):
    """Request of a node to join, with the single-use token an administrator made for it."""

    token: str = Field(min_length=20, max_length=200)
    inventory: Inventory


class NewIdentity(Message):
    """The node's identity. The token is shown this once."""

    node_id: str
    name: str = Field(pattern=NAME)
    node_token: str


# ------------------------------------------------------------------------------------- heartbeat


class RankExit(Message):
    """End of one rank. `code` is negative for a signal, as in `subprocess`."""

    rank: int
    code: int | None
    error: str = ""
    """Type and message of its Python exception, if it left one."""


class ExitRecord(Message):
    """End of an attempt as its shim saw it; written to `exit.json` before anyone is told."""

    job_id: str
    epoch: Epoch
    boot_id: str
    outcome: Outcome
    reason: str
    """A sentence for the owner: what happened, on which rank, with which signal."""
    culprit_rank: int | None = None
    signal: int | None = None
    code: int | None = None
    ranks: list[RankExit] = []
    guilt: int | None = None
    """Weight of its ranks' failure against that of other nodes: 0 an own signal or exit code, 1 an
    own exception, 2 ended by SIGTERM, 3 a victim of ranks elsewhere. None: no rank failed by
    itself."""
    last_lines: list[str] = []
    """Last lines of the culprit's output, 50 at most."""
    memory: list[RankMemory] = []
    """Planned and used memory of its ranks, if the plan said that they do not fit."""
    duration_s: float
    """Seconds from the start of the ranks to the end of the last one, on the boot clock."""
    result: Result | None = None


class HostUse(Message):
    """Use that an attempt has made of one host, by its node's proxy."""

    host: str = Field(max_length=300)
    """Name and port, such as `pypi.org:443`; of very many, the later ones are `other hosts`."""
    connections: int = Field(default=0, ge=0, le=2**53)
    refused: int = Field(default=0, ge=0, le=2**53)
    sent_bytes: int = Field(default=0, ge=0, le=2**53)
    received_bytes: int = Field(default=0, ge=0, le=2**53)
    why: str = Field(default="", max_length=300)
    """Reason of the last refusal."""


class HeldSandbox(Message):
    """Sandbox of an attempt that has failed, held for its owner."""

    outcome: Outcome
    reason: str = Field(max_length=4000)
    """A sentence for the owner, as in the exit record that follows."""
    left_s: float
    """Seconds to its end, counted from the send of this message."""


class ObservedAttempt(Message):
    """An attempt whose run directory is on this node."""

    job_id: str
    epoch: Epoch
    phase: Phase
    step: int = 0
    launcher: Launcher | None = None
    message: str = ""
    """Progress, such as `fetching checkpoint step 400, 1.2 of 1.5 GiB`."""
    certificate: Certificate | None = None
    preflight: PreflightReport | None = None
    """Preflight report of rank 0's node, where the attempt did one."""
    exit: ExitRecord | None = None
    has_output: bool = Field(default=False, exclude_if=lambda found: not found)
    """True if a script has put a file into its output here, on another node than the first."""
    kept: bool = False
    """True after the exit once metrics, logs, checkpoints and artifacts are all acknowledged."""
    hosts: list[HostUse] = Field(default=[], max_length=300, exclude_if=lambda used: not used)
    """Hosts that it has reached, or tried to, so far."""
    held: HeldSandbox | None = Field(default=None, exclude_if=lambda held: held is None)
    """Sandbox of the attempt, if it has failed and is held."""


class Heartbeat(Message):
    """All observations of the node."""

    incarnation: str
    boot_id: str
    inventory: Inventory
    telemetry: Telemetry
    attempts: list[ObservedAttempt]
    clean: bool
    """True if no process of a finished attempt is left on this node."""
    dirty_slots: list[Annotated[int, Field(ge=0, le=1023)]] = Field(default=[], max_length=1024)
    """Slots on which such processes are left; empty, where it is not clean: any of them."""
    peer_address: str = Field(default="", max_length=300)
    """Address at which other nodes reach this one."""


class StopOrder(Message):
    """Order to end this attempt: checkpoint, then SIGTERM, then SIGKILL."""

    reason: Outcome
    """The outcome it will have: cancelled, paused, lease_ended, time_limit or preempted."""
    grace_s: float
    """Seconds for the checkpoint before SIGTERM."""


class Deadlines(Message):
    """Seconds remaining, counted from the send of the request this answers.

    The shim obeys them even when nobody answers any more.
    """

    checkpoint_in_s: float
    stop_in_s: float
    """Seconds to the usable end of the lease or the end of the wall time, whichever is first."""
    stop_reason: Outcome
    kill_in_s: float


class Resume(Message):
    """The checkpoint to resume from."""

    step: int
    files: list[FileRef]


RequestAction = Literal["profile", "snapshot", "release"]
"""`release`: end a sandbox that is held."""


class Secrets(Message):
    """Secrets of a script's attempt, sent beside its order, by the name of the variable."""

    values: dict[str, str] = Field(repr=False)


class Request(Message):
    """Request of the owner to a running attempt, carried out once for each number."""

    number: int = Field(ge=1)
    action: RequestAction


class Fabric(Message):
    """Network between the nodes of a class, as an administrator set it."""

    interface: str = Field(default="", pattern=r"^[A-Za-z0-9_.-]{0,15}$")
    """Interface of every node that NCCL and gloo use, such as `ib0`. Empty: the one with the
    address that the node reports."""
    adapters: str = Field(default="", max_length=200, pattern=rf"^({ADAPTER}(,{ADAPTER})*)?$")
    """RDMA adapters that NCCL uses, such as `mlx5_0,mlx5_1:1`. Empty: NCCL chooses."""
    programs: Literal["relay", "host"] = "relay"
    """Network of users' programs that run on several nodes: a private one, relayed through the
    first node, or the nodes' own with their RDMA devices."""


class Rendezvous(Message):
    """Meeting point of the ranks of several nodes: on the first of them."""

    address: str
    port: int = Field(ge=1, le=65_535)
    key: str = Field(default="", repr=False)
    """Key of this attempt alone, by which the nodes of a script know each other."""
    fabric: Fabric = Fabric()
    """Network by which they meet, the same on all nodes of the attempt."""


class Gang(Message):
    """Place of this node in an attempt over several nodes."""

    position: int = Field(ge=0)
    rendezvous: Rendezvous
    start: bool
    """True when every node is ready: start the ranks."""


class InputFiles(Message):
    """An input of a program, with its exact files."""

    kind: InputKind
    name: HubName
    """Name by which the program asks for it."""
    files: list[FileRef] = Field(min_length=1)

    @property
    def is_file(self) -> bool:
        """True for a dataset of one file, which is kept by itself; anything else is a folder."""
        return self.kind is InputKind.DATASET and len(self.files) == 1


class StoredBlob(Message):
    """A file of the store."""

    sha256: Sha256
    size: int = Field(ge=0, le=2**53)


class WorkspaceOrder(Message):
    """The workspace of a program's owner, and what the program may do with it here."""

    access: Literal["write", "read", "shared"]
    person: str = Field(pattern=r"^[a-z]+_[0-9a-z]{1,40}$")
    """Id of its owner: the name of the folder in the site's shared folder."""
    number: int = Field(ge=1, le=2**31 - 1)
    """Number of its owner, for a user that is the same on all nodes."""
    tree: StoredBlob | None = None
    """File of the `core.wire.workspace_tree.Tree` that it begins with; None: empty, or shared."""
    max_bytes: int = Field(ge=1)
    max_files: int = Field(ge=1)


class Network(Message):
    """Hosts that an attempt may reach, as `core.spec.hosts` writes them."""

    reach: list[str] | None = Field(max_length=MAX_RULES)
    """Hosts that the job asked for and that are granted now. None: it asked for none."""
    granted: list[str] = Field(max_length=MAX_RULES)
    """All that its node class and lab may reach: packages are installed through the same proxy."""


class PackagesAhead(Message):
    """Packages of a workbench whose lease begins soon."""

    requirements: str = Field(max_length=MAX_REQUIREMENTS)
    """Text of its requirements.txt."""
    network: Network | None
    """Hosts through which they may be downloaded, as in its order."""


class MixedFiles(Message):
    """A dataset that a recipe mixes in, with its exact files."""

    format: DatasetFormat
    files: list[FileRef] = Field(min_length=1)


class Order(Message):
    """Desired state of one attempt on this node."""

    job_id: str
    epoch: Epoch
    spec: TrainSpec | Script | Workbench
    plan: AnyPlan
    launcher: Launcher
    slots: list[int] = []
    """Indices of the GPUs, or CPU slots, for its ranks; empty: those from 0 on."""
    slots_of_node: int | None = Field(default=None, ge=1, exclude_if=lambda told: told is None)
    """Number of slots of the node, if its lease is a part of them: it is confined to the share of
    its own slots. None: its lease is the whole node. Left out of the answer if None: older workers
    do not know the field."""
    gang: Gang | None = None
    """Place among several nodes; None: the attempt has this node alone."""
    threads_per_rank: int | None = None
    """CPU threads of a rank; None: its share of the node's cores."""
    dataset: FileRef | None
    """Uploaded dataset of one file; None for any other."""
    dataset_files: list[FileRef] = Field(default=[], exclude_if=lambda files: not files)
    """Uploaded dataset of several files. Left out of the answer if it has not: older workers do not
    know the field."""
    dataset_format: DatasetFormat = "text"
    mixture: list[MixedFiles] = Field(default=[], exclude_if=lambda parts: not parts)
    """Datasets that a recipe mixes in. Left out of the answer if there are none."""
    model: list[FileRef] = []
    """The files of the uploaded model that training starts from."""
    tokenizer: list[FileRef] = Field(default=[], exclude_if=lambda files: not files)
    """The files of the user's own tokenizer. Left out of the answer if there is none."""
    code: FileRef | None = None
    """Archive with the code of a script."""
    inputs: list[InputFiles] = Field(default=[], exclude_if=lambda named: not named)
    """Inputs of a script. Left out of the answer if empty: older workers do not know the field."""
    workspace: WorkspaceOrder | None = Field(default=None, exclude_if=lambda told: told is None)
    """Workspace of a script. Left out of the answer if None: older workers do not know it."""
    network: Network | None = Field(default=None, exclude_if=lambda told: told is None)
    """Hosts that it may reach. None: no host. Left out of the answer then: older workers do not
    know the field."""
    hold_on_failure_s: int | None = Field(
        default=None, ge=1, exclude_if=lambda seconds: seconds is None
    )
    """Seconds for which the sandbox is held if the program fails. Left out of the answer if None:
    older workers do not know the field."""
    idle_after_s: int | None = Field(default=None, ge=1, exclude_if=lambda seconds: seconds is None)
    """Seconds without use after which a workbench says that it is idle. None: it does not look.
    Left out of the answer then: older workers do not know the field."""
    resume: Resume | None
    deadlines: Deadlines
    stop: StopOrder | None = None
    request: Request | None = None
    traceparent: str | None = None
    """Trace of the job's submission."""


class Unread(Message):
    """An attempt whose spec or plan the answering API can't read, because another version wrote it.

    Its processes on the node go on, by these deadlines.
    """

    job_id: str
    epoch: Epoch
    deadlines: Deadlines
    stop: StopOrder | None = None


class AttemptRef(Message):
    """One attempt."""

    job_id: str
    epoch: Epoch


class Orders(Message):
    """All orders of the API for the node. An attempt that is not listed must not run."""

    attempts: list[Order]
    unread: list[Unread] = []
    """Unreadable attempts. Left out of the answer if empty: older workers do not know the field."""
    forget: list[AttemptRef]
    """Attempts whose exit and files are safe here: their run directories may be wiped."""
    fetch_ahead: list[InputFiles] = Field(default=[], exclude_if=lambda named: not named)
    """Files of jobs whose lease here begins soon, to be in the cache by then. Left out if empty:
    older workers do not know the field."""
    build_ahead: list[PackagesAhead] = Field(default=[], exclude_if=lambda named: not named)
    """Packages of workbenches whose lease here begins soon, whose environments are to be built by
    then. Left out if empty: older workers do not know the field."""


# ------------------------------------------------------------------------ metrics, logs and files


class MetricsBatch(Message):
    """Consecutive lines of `metrics.jsonl`, the first of them numbered `first_line` (from 0).

    A diverged run may have written nan and inf.
    """

    model_config = ConfigDict(allow_inf_nan=True)

    job_id: str
    epoch: Epoch
    rank: int = Field(ge=0, le=100_000)
    first_line: int = Field(ge=0, le=2**53)
    lines: list[dict[str, float | int | str | None]] = Field(max_length=5000)


class MetricsAck(Message):
    """Acknowledgement that every line before `next_line` is stored."""

    next_line: int


class LogBatch(Message):
    """A piece of one rank's output that begins at byte `first_byte` of its file."""

    job_id: str
    epoch: Epoch
    rank: int = Field(ge=-1024, le=100_000)
    """Rank; below 0, the launcher of a node: -1 on the first one, -2 on the second."""
    stream: str = Field(pattern="^(stdout|stderr)$")
    first_byte: int = Field(ge=0, le=2**53)
    size: int = Field(ge=0, le=2**53)
    """Bytes of the file that `content` represents: decoding may have replaced some."""
    content: str = Field(max_length=1_000_000)


class LogAck(Message):
    """Acknowledgement that every byte before `next_byte` is stored."""

    next_byte: int


def own_name(path: str, node: int) -> str:
    """Return the name of a file of a node of which an earlier node has other bytes."""
    return path if node == 0 else f"node-{node}/{path}"


class CheckpointReport(Message):
    """A finished checkpoint whose files are all in the store."""

    job_id: str
    epoch: Epoch
    step: int = Field(ge=0, le=2**53)
    files: list[FileRef] = Field(min_length=1, max_length=10_000)
    of_one_node: bool = Field(default=False, exclude_if=lambda alone: not alone)
    """True for a copy of the first node's output while a script runs on several: it counts if the
    other nodes have none."""


class ArtifactReport(Message):
    """A file that the attempt left behind, now in the store."""

    job_id: str
    epoch: Epoch
    file: FileRef


# ------------------------------------------------------------------------------------- workspaces


class MissingQuery(Message):
    """Question which of these files the store lacks, asked before a snapshot is brought."""

    job_id: str
    epoch: Epoch
    files: list[Sha256] = Field(max_length=10_000)


class MissingFiles(Message):
    """Files that the store lacks."""

    files: list[Sha256]


class SnapshotReport(Message):
    """A look at a workspace, by the attempt that writes to it."""

    job_id: str
    epoch: Epoch
    size: int = Field(ge=0, le=2**53)
    """Bytes of its files."""
    files: int = Field(ge=0, le=2**53)
    """Number of its files, folders and links."""
    tree: StoredBlob | None
    """File of its tree, in the store with all of its contents. None: it is too large to keep."""
    left_out: int = Field(default=0, ge=0, le=2**53)
    """Number of files that could not be kept."""
    final: bool = False
    """True after the last process: another program may write from now on."""


class SharedLook(Message):
    """A look at a workspace in the site's shared folder, by an attempt that uses it."""

    job_id: str
    epoch: Epoch
    use: SharedUse


class SharedLookAck(Message):
    """Answer to a look at a shared workspace."""

    message: str = ""
    """Warning about its quota; a sentence for its owner."""


class SnapshotAck(Message):
    """Answer to a look at a workspace."""

    kept: bool
    message: str = ""
    """Reason why it was not kept, or a warning; a sentence for its owner."""
