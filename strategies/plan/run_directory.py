"""Folder of an attempt on its node: the names and small formats shared by all. Torch-free.

plan.json and control.json go in; preflight.json, metrics.jsonl, certificate.json, result.json,
checkpoints/, artifacts/, logs/ and exit.json come out. Every replacement is atomic.
"""

import contextlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from pathlib import Path, PurePosixPath
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from strategies.plan.built_in.datasets import DatasetFormat
from strategies.plan.durable_files import json_bytes, sha256_of, write_atomically
from strategies.plan.estimates.memory import MemoryPhase
from strategies.plan.layout import Layout
from strategies.plan.planner import Plan
from strategies.plan.spec import TrainSpec

PLAN = "plan.json"
CONTROL = "control.json"
METRICS = "metrics.jsonl"
PREFLIGHT = "preflight.json"
RESULT = "result.json"
CERTIFICATE = "certificate.json"
EXIT = "exit.json"
CHECKPOINTS = "checkpoints"
ARTIFACTS = "artifacts"
LOGS = "logs"
MANIFEST = "manifest.json"
SAMPLE = "sample.txt"
WEIGHTS = "model.safetensors"
ADAPTER_WEIGHTS = "adapter_model.safetensors"  # both names are peft's
ADAPTER_CONFIG = "adapter_config.json"
MANIFEST_FORMAT = 1

CHECKPOINT_NAME = re.compile(r"^step-(\d{6,})$")
RANK_METRICS_NAME = re.compile(r"^metrics-rank-(\d+)\.jsonl$")
RANK_MEMORY = "memory-rank-*.json"


class ExitCode(IntEnum):
    """End of a rank. Any other code that is not 0 is the user's or a peer's error."""

    FINISHED = 0
    USER_ERROR = 1
    BAD_DATA = 65
    BAD_CHECKPOINT = 66
    DIVERGED = 67
    OUT_OF_MEMORY = 68
    PREFLIGHT_FAILED = 69
    NOT_EQUIPPED = 70
    STALLED = 71


class BadCheckpoint(Exception):
    """Checkpoint that cannot be trusted or does not belong to this run."""


class NotEquipped(Exception):
    """Plan that this node cannot run; the message names what is missing."""


class FilePart(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class MixedDataset(BaseModel):
    """A dataset on this disk that is mixed in, in the order of spec.data.mixture."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str
    format: DatasetFormat


class RunPlan(FilePart):
    """Content of plan.json: everything that a run needs to know."""

    spec: TrainSpec
    plan: Plan
    dataset_path: str | None = None
    """Path of the dataset; None: the built-in one that spec.data.dataset names."""
    dataset_format: DatasetFormat = "text"
    """jsonl: one document per line (`rows.py` has its forms); samples never cross documents.
    npz: images and their labels."""
    mixture: tuple[MixedDataset, ...] = ()
    model_path: str | None = None
    """Folder of the checkpoint that spec.model.checkpoint names."""
    tokenizer_path: str | None = None
    """Folder of the tokenizer that spec.data.tokenizer_name names."""
    whole_tokens_gib: float = Field(default=4.0, ge=0)
    """Size of a dataset's files up to which its documents are turned into tokens before the first
    step. Those of a larger one are when they are read, in the same order."""
    resume_from: str | None = None
    """Directory of a checkpoint, or of several; used if the run directory holds none."""
    prompt: str = "class "
    """Beginning of the sample of generated text."""
    sample_bytes: int = Field(default=220, ge=0, le=100_000)
    """Number of tokens sampled after it; a token is a byte or a character."""
    threads_per_rank: int | None = Field(default=None, ge=1)
    """Number of CPU threads; None: OMP_NUM_THREADS if set, else cores // local ranks."""
    collective_timeout_s: float = Field(default=300.0, gt=0)
    """Time that a rank waits for the others before it gives up."""
    preflight: bool = True
    """True if several ranks test each other before the first step."""
    saves: bool = True
    """False if nobody needs the weights: a run that only measures this node saves no checkpoint."""


class Action(StrEnum):
    """Request that a running attempt understands."""

    CHECKPOINT = "checkpoint"
    STOP = "stop"
    PROFILE = "profile"
    SNAPSHOT = "snapshot"
    """Snapshot of the memory."""


class Control(FilePart):
    """Content of control.json.

    A request is obeyed once: if its sequence is above the last obeyed one.
    """

    sequence: int = Field(ge=1)
    action: Action


class Result(BaseModel):
    """Content of result.json: the end of the run, by rank 0.

    A diverged run's last loss may be nan, written as null.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="null")

    finished: bool
    step: int
    loss_first: float | None
    loss_last: float | None
    eval_loss: float | None
    eval_accuracy: float | None = None
    """Images only: the share of the held-out ones whose label was the likeliest."""
    tokens_per_s: float | None
    wall_s: float
    checkpoint: str | None
    sample: str | None
    reason: Literal["finished", "stopped", "diverged"]
    peak_gib: list[float] = []
    """Peak memory of each rank's training, without Python and its libraries; empty if it was not
    measured."""
    missing: list[str] = []
    """Artifacts of a finished run that are not written yet. Its checkpoints are complete; if ranks
    have ended and some are left, the run was cut off or failed while it wrote them."""


class RankMemory(FilePart):
    """Content of memory-rank-0.json: planned and used memory of a rank, by phase of a step.

    Without Python and its libraries. Written by runs that their plan says do not fit.
    """

    rank: int = Field(ge=0)
    step: int = Field(ge=0)
    """Step in which it was last, of those that were observed; 0: before the first."""
    phase: MemoryPhase
    """Phase in which it was last."""
    planned_gib: dict[MemoryPhase, float]
    used_gib: dict[MemoryPhase, float]
    """Highest use in each phase that it reached; an allocation that failed is not in it."""


class ManifestFile(FilePart):
    """One file of a checkpoint."""

    path: str
    size: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class Manifest(FilePart):
    """Content of manifest.json, the last file written into a checkpoint.

    Nodes that share no folder write one each, of their own files: manifest.json on the first,
    manifest-1.json on the second. A checkpoint is complete if all of them are present.
    """

    format: int
    step: int = Field(ge=0)
    world_size: int = Field(ge=1)
    layout: Layout
    files: list[ManifestFile]
    node: int = Field(default=0, ge=0)
    num_nodes: int = Field(default=1, ge=1)


@dataclass(frozen=True)
class RunDirectory:
    """Paths inside one attempt's folder."""

    path: Path

    def rank_memory(self, rank: int) -> Path:
        return self.path / f"memory-rank-{rank}.json"

    def memory(self) -> list[RankMemory]:
        """Return what the ranks have told of their memory, by rank; those that cannot be read are
        left out."""
        found = []
        for path in self.path.glob(RANK_MEMORY):
            with contextlib.suppress(OSError, ValidationError):
                found.append(RankMemory.model_validate_json(path.read_bytes()))
        return sorted(found, key=lambda one: one.rank)

    @property
    def plan(self) -> Path:
        return self.path / PLAN

    @property
    def control(self) -> Path:
        return self.path / CONTROL

    @property
    def metrics(self) -> Path:
        return self.path / METRICS

    def rank_metrics(self, rank: int) -> Path:
        """Return the metrics file of a rank; metrics.jsonl is rank 0's."""
        return self.path / f"metrics-rank-{rank}.jsonl" if rank else self.metrics

    @property
    def preflight(self) -> Path:
        return self.path / PREFLIGHT

    @property
    def result(self) -> Path:
        return self.path / RESULT

    @property
    def certificate(self) -> Path:
        return self.path / CERTIFICATE

    @property
    def exit(self) -> Path:
        return self.path / EXIT

    @property
    def checkpoints(self) -> Path:
        return self.path / CHECKPOINTS

    @property
    def artifacts(self) -> Path:
        return self.path / ARTIFACTS

    def collectives(self, rank: int) -> Path:
        """Return the file of a rank's last collectives, kept if it waited for another in vain."""
        return self.artifacts / f"collectives-rank-{rank}.json"

    def rank_logs(self, rank: int) -> Path:
        """Return the folder of stdout.log, stderr.log and error.json of one global rank."""
        return self.path / LOGS / f"rank-{rank}"

    def read_plan(self) -> RunPlan:
        """Read plan.json. Raises ValidationError or OSError if it is wrong or missing."""
        return RunPlan.model_validate_json(self.plan.read_bytes())


def read_control(path: Path) -> Control | None:
    """Return the pending request; None if there is none.

    Raises ValueError if the file is not valid.
    """
    try:
        return Control.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None


def write_control(path: Path, action: Action) -> Control:
    """Ask the run for `action`; one writer per run directory."""
    before = read_control(path)
    control = Control(sequence=1 if before is None else before.sequence + 1, action=action)
    write_atomically(path, control.model_dump_json().encode())
    return control


def checkpoint_name(step: int) -> str:
    """Return a name such as `step-000200`."""
    return f"step-{step:06d}"


def finished_checkpoints(checkpoints: Path) -> list[Path]:
    """Return the checkpoints with their final name, newest first; `verify_checkpoint` checks
    them."""
    if not checkpoints.is_dir():
        return []
    found = [
        (int(match[1]), path)
        for path in checkpoints.iterdir()
        if (match := CHECKPOINT_NAME.match(path.name)) and path.is_dir()
    ]
    return [path for _, path in sorted(found, reverse=True)]


def newest_checkpoint(checkpoints: Path) -> Path | None:
    """Return the newest checkpoint of a folder that verifies, or None."""
    for path in finished_checkpoints(checkpoints):
        try:
            verify_checkpoint(path)
        except BadCheckpoint:
            continue
        return path
    return None


def manifest_name(node: int) -> str:
    """Return `manifest.json` for the first node, `manifest-1.json` for the second."""
    return MANIFEST if node == 0 else f"manifest-{node}.json"


def read_manifest(checkpoint: Path, node: int = 0) -> Manifest:
    """Read a node's manifest.

    Raises BadCheckpoint if it is missing, unreadable or of another format.
    """
    path = checkpoint / manifest_name(node)
    try:
        manifest = Manifest.model_validate_json(path.read_bytes())
    except OSError as error:
        raise BadCheckpoint(f"{checkpoint} has no readable {path.name}: {error}") from error
    except ValidationError as error:
        raise BadCheckpoint(f"{path} is damaged: {error}") from error
    if manifest.format != MANIFEST_FORMAT:
        raise BadCheckpoint(
            f"{checkpoint} has format {manifest.format}; this version reads {MANIFEST_FORMAT}"
        )
    for file in manifest.files:
        inside = PurePosixPath(file.path)
        if inside.is_absolute() or ".." in inside.parts:
            raise BadCheckpoint(f"{path} points outside itself: {file.path}")
    return manifest


def verify_checkpoint(checkpoint: Path) -> Manifest:
    """Read back all files of all nodes' manifests, and return the first node's manifest.

    Raises BadCheckpoint if a file is missing or has another size or hash.
    """
    first = verify_part(checkpoint, 0)
    for node in range(1, first.num_nodes):
        verify_part(checkpoint, node)
    return first


def verify_part(checkpoint: Path, node: int) -> Manifest:
    """Read back every file that a node's manifest lists, and return that manifest."""
    manifest = read_manifest(checkpoint, node)
    for file in manifest.files:
        path = checkpoint / file.path
        try:
            size = path.stat().st_size
            if size != file.size:
                raise BadCheckpoint(f"{path} has {size} bytes instead of {file.size}")
            sha256 = sha256_of(path)
        except OSError as error:
            raise BadCheckpoint(f"{path} cannot be read: {error}") from error
        if sha256 != file.sha256:
            raise BadCheckpoint(f"{path} has SHA-256 {sha256} instead of {file.sha256}")
    return manifest


def write_manifest(
    checkpoint: Path,
    *,
    step: int,
    layout: Layout,
    node: int = 0,
    num_nodes: int = 1,
    hashes: Mapping[str, str] | None = None,
) -> Manifest:
    """Hash every file of a checkpoint that is on this node, and write its manifest.

    `hashes` has those that are known, by path in the checkpoint.
    """
    known = hashes or {}
    paths = sorted(path for path in checkpoint.rglob("*") if path.is_file())
    files = [
        ManifestFile(
            path=path.relative_to(checkpoint).as_posix(),
            size=path.stat().st_size,
            sha256=known.get(path.relative_to(checkpoint).as_posix()) or sha256_of(path),
        )
        for path in paths
    ]
    manifest = Manifest(
        format=MANIFEST_FORMAT,
        step=step,
        world_size=layout.world_size,
        layout=layout,
        files=files,
        node=node,
        num_nodes=num_nodes,
    )
    write_atomically(checkpoint / manifest_name(node), json_bytes(manifest))
    return manifest
