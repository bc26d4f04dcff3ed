"""A user's submission: the training (`strategies.plan.spec`), its resources and wall time. Pure."""

import re
from collections.abc import Mapping
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from core.spec.inputs import MAX_INPUTS, Input, require_apart
from core.spec.network import AskedHosts
from core.spec.script import Script, ScriptPlan
from core.spec.workbench import Workbench
from strategies.plan.planner import DOES_NOT_FIT, Plan
from strategies.plan.spec import SpecPart, TrainSpec

# Starts with a letter or digit; no markup, no control characters, nothing a shell would read.
NAME = r"^[A-Za-z0-9][A-Za-z0-9._ -]{0,62}$"
UNIT_S = {"s": 1, "min": 60, "h": 3600}
MAX_TAGS = 20
MAX_WALL_TIME_S = 14 * 24 * 3600
MAX_HOLD_ON_FAILURE_S = 12 * 3600
MAX_OUT_OF_MEMORY_S = 30 * 60  # a few steps are enough to see it fail or to prove the plan wrong


class Launcher(StrEnum):
    """Starter of the ranks. All keep one contract: environment, logs, run directory, exit."""

    AUTO = "auto"
    TORCHRUN = "torchrun"
    WARM = "warm"
    ACCELERATE = "accelerate"
    MPIRUN = "mpirun"
    PYTHON = "python"


def parse_duration_s(value: object) -> object:
    """Parse `90`, `"90s"`, `"20min"`, `"1.5h"` or `"2h 30min"` as seconds; else return `value`."""
    if isinstance(value, timedelta):
        return int(value.total_seconds())
    if not isinstance(value, str):
        return value
    parts = re.findall(r"(\d+(?:\.\d+)?)\s*(s|min|h)", value)
    if not parts or re.sub(r"(\d+(?:\.\d+)?)\s*(s|min|h)", "", value).strip():
        raise ValueError(f"{value!r} is not a valid duration; write it like 90s, 20min or 1h 30min")
    return int(sum(float(number) * UNIT_S[unit] for number, unit in parts))


def format_duration(seconds: int) -> str:
    """Format seconds, `5400` -> `1h 30min`: the inverse of `parse_duration_s`."""
    hours, rest = divmod(seconds, 3600)
    minutes, rest = divmod(rest, 60)
    parts = [f"{hours}h" if hours else "", f"{minutes}min" if minutes else ""]
    return " ".join([p for p in parts if p] + ([f"{rest}s"] if rest else [])) or "0s"


Duration = Annotated[
    int,
    BeforeValidator(parse_duration_s),
    PlainSerializer(format_duration, return_type=str),
    Field(strict=True, json_schema_extra={"type": "string", "examples": ["20min", "1h 30min"]}),
]


FORMER_ALLOW_OOM = "may_run_out_of_memory"
RanksPerNode = Annotated[int, Field(ge=1, le=64)]


class Resources(BaseModel):
    """Nodes, ranks and wall time of a job."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    nodes: int = Field(default=1, ge=1, le=1024)
    """Number of nodes that the job runs on at the same time."""
    ranks_per_node: RanksPerNode | Literal["auto"] = 1
    """Number of ranks, or auto: one for each slot of the node class (at most 8 CPU slots), or the
    most with which the job can run. It is decided at submission and stands in the plan."""
    device: Literal["cpu"] | None = None
    """cpu: the ranks compute on the CPU, and on a node with GPUs see none. None: on the node's GPUs
    if it has some."""
    threads_per_rank: int | None = Field(default=None, ge=1, le=1024)
    """CPU threads that a rank computes with. None: its share of the node's cores."""
    node_class: str | None = Field(default=None, max_length=63)
    """Node class; None takes the first class on which the plan fits."""
    wall_time: Annotated[Duration, Field(ge=60, le=MAX_WALL_TIME_S)]
    """Mandatory. The job is stopped with a checkpoint after it, and fails with `time_limit`."""
    checkpointable: bool | None = None
    """True if it may be stopped with a checkpoint and go on later. Then it may start in a gap in
    front of a lease that is shorter than its wall time. None: recipes are, scripts are not."""
    allow_oom: bool = False
    """Run it although its plan says that it does not fit: one attempt, with at most 30 minutes of
    wall time. Its report compares planned and used memory, phase by phase."""

    @model_validator(mode="before")
    @classmethod
    def _read_former_name(cls, fields: object) -> object:
        """Read `allow_oom` by the name that it has in rows and files of earlier versions, too."""
        if not isinstance(fields, Mapping) or FORMER_ALLOW_OOM not in fields:
            return fields
        kept = {name: value for name, value in fields.items() if name != FORMER_ALLOW_OOM}
        return {"allow_oom": fields[FORMER_ALLOW_OOM], **kept}

    @field_validator("allow_oom")
    @classmethod
    def _is_short(cls, allowed: bool, info: ValidationInfo) -> bool:
        wall_time_s = info.data.get("wall_time", 0)
        if allowed and wall_time_s > MAX_OUT_OF_MEMORY_S:
            raise ValueError(
                "a job with allow_oom may have a wall_time of at most "
                f"{format_duration(MAX_OUT_OF_MEMORY_S)}, not {format_duration(wall_time_s)}"
            )
        return allowed


LeaseId = Annotated[str, Field(pattern=r"^lease_[0-9a-z]{26}$")]


# Lowercase, because SQLite and PostgreSQL differ in how they compare the case of letters.
Tag = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,31}$")]


def require_distinct(tags: tuple[str, ...]) -> tuple[str, ...]:
    """Return tags unchanged. Raises ValueError if one is there twice."""
    for position, tag in enumerate(tags):
        if tag in tags[:position]:
            raise ValueError(f"{tag!r} is there twice; name each tag once")
    return tags


Tags = Annotated[tuple[Tag, ...], AfterValidator(require_distinct), Field(max_length=MAX_TAGS)]


class JobTerms(SpecPart):
    """Fields that every job has: its name, its tags, its resources, the lease to run in."""

    name: str = Field(pattern=NAME)
    """Name of the job, to find it by."""
    tags: Annotated[Tags, Field(exclude_if=lambda tags: not tags)] = ()
    """Words to find the job by, such as lab-1: lowercase letters, digits, `.`, `_` and `-`. They
    can be changed later."""
    report_when_ended: bool = Field(default=False, exclude_if=lambda wanted: not wanted)
    """Write a report when the job has ended, however it ends. It can be changed until then."""
    resources: Resources
    lease: LeaseId | None = None
    """Booked lease to run in. None: the job starts when a node is free."""
    leases: tuple[LeaseId, ...] = Field(default=(), max_length=1024)
    """Leases to run in on several nodes, one for each; set instead of `lease`."""

    @property
    def named_leases(self) -> tuple[str, ...]:
        """Leases to run in, one for each node; empty if it names none."""
        return self.leases if self.lease is None else (self.lease,)


class Fork(SpecPart):
    """Checkpoint of a job that another one starts from: of yours, or shared with you."""

    job: str = Field(pattern=r"^job_[0-9a-z]{26}$")
    """Job whose checkpoint the training starts from."""
    step: int = Field(ge=0, le=2**53)
    """Step of that checkpoint."""


class JobSpec(TrainSpec, JobTerms):
    """A job that trains by a recipe."""

    launcher: Literal[Launcher.AUTO, Launcher.TORCHRUN, Launcher.WARM] = Launcher.AUTO
    """Program that starts the ranks: torchrun, or a warm process that has torch loaded already
    and starts them within a second. auto: the warm one where it can."""
    start_from: Fork | None = Field(default=None, exclude_if=lambda fork: fork is None)
    """Checkpoint of another job, yours or shared with you, to go on from: weights, state of the
    optimizer, step and place in the data. Model, precision and tokenizer are those of that job;
    steps, batch, learning rate, text and layout may be others."""


class ProgramTerms(JobTerms):
    """Fields of every job that runs a program in a sandbox: a script or a workbench."""

    inputs: Annotated[
        tuple[Input, ...],
        AfterValidator(require_apart),
        Field(max_length=MAX_INPUTS, exclude_if=lambda named: not named),
    ] = ()
    """Datasets, models and checkpoints that the program reads: each is a read-only folder
    inside."""
    workspace: bool = Field(default=False, exclude_if=lambda wanted: not wanted)
    """Bring your workspace, the folder that outlives leases and follows you from node to node:
    `$TRAINYARD_WORKSPACE` inside. One program at a time writes to it."""
    network: AskedHosts = ()
    """Hosts that the program may reach by https, of those that an administrator has listed:
    pypi.org, *.hf.co, registry.example:5000, or a group: pypi, huggingface. Default: none."""


class ScriptJobSpec(ProgramTerms):
    """A job that runs a script of its owner's."""

    script: Script
    hold_on_failure: Annotated[Duration, Field(ge=60, le=MAX_HOLD_ON_FAILURE_S)] | None = Field(
        default=None, exclude_if=lambda held: held is None
    )
    """Hold the sandbox of an attempt that fails for so long, or to the end of its lease: `trainyard
    workbench open JOB` opens a shell in it. Its lease goes on meanwhile. Default: not at all."""

    @field_validator("hold_on_failure")
    @classmethod
    def _is_on_one_node(cls, held: int | None, info: ValidationInfo) -> int | None:
        resources = info.data.get("resources")
        if held is not None and isinstance(resources, Resources) and resources.nodes > 1:
            raise ValueError(
                f"the sandbox of a job on one node can be held, not those of {resources.nodes}; "
                "leave it out, or use 1 node"
            )
        return held


class WorkbenchJobSpec(ProgramTerms):
    """A job that its owner sits in front of: an interactive program in a lease."""

    workbench: Workbench
    workspace: bool = True
    """Bring your workspace, the folder that outlives leases and follows you from node to node: it
    is the workbench's home. Without it the home is empty, and gone at the end."""


ProgramJobSpec = ScriptJobSpec | WorkbenchJobSpec
AnyJobSpec = JobSpec | ScriptJobSpec | WorkbenchJobSpec
AnyPlan = Plan | ScriptPlan


class UnreadPlan(BaseModel):
    """Placeholder for a plan that this version of the platform can't read."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    strategy: Literal["unknown"] = "unknown"
    device: Literal["unknown"] = "unknown"
    world_size: int = 0
    nodes: int = 0
    ranks_per_node: int = 0
    problems: list[str] = []
    warnings: list[str] = []


def read_job_spec(document: Mapping[str, object]) -> AnyJobSpec:
    """Read the spec in a job's row, or in a request. ValidationError names the fields that are
    wrong."""
    if "workbench" in document:
        return WorkbenchJobSpec.model_validate(document)
    return (ScriptJobSpec if "script" in document else JobSpec).model_validate(document)


def may_start(spec: AnyJobSpec, plan: AnyPlan) -> bool:
    """Return True if nothing prevents the start, or only memory and the job is to show that."""
    if plan.runnable:
        return True
    only_memory = all(problem.code == DOES_NOT_FIT for problem in plan.problems)
    return only_memory and spec.resources.allow_oom


def read_plan(document: Mapping[str, object]) -> AnyPlan:
    """Read the plan in a job's row."""
    kind = ScriptPlan if document.get("strategy") == "script" else Plan
    return kind.model_validate(document)


def stored_spec(document: object) -> AnyJobSpec | None:
    """Return the spec in a job's row; None if another version wrote it and this can't read it."""
    try:
        return read_job_spec(document) if isinstance(document, Mapping) else None
    except ValidationError:
        return None


def stored_plan(document: object) -> AnyPlan | None:
    """Return the plan in a job's row; None where this version can't read it."""
    try:
        return read_plan(document) if isinstance(document, Mapping) else None
    except ValidationError:
        return None
