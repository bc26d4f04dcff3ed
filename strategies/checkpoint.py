"""Checkpoints: written aside, fsynced, hashed, renamed; read only if every hash is right.

Tensors are stored under their global names by torch.distributed.checkpoint, so that a run may go
on with another number of ranks. What is not a tensor is in progress.json.
"""

import shutil
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from strategies.disks import Disk
from strategies.engine import Engine, State
from strategies.guards import remember
from strategies.image_shapes import image_shape, num_classes
from strategies.init import design_model
from strategies.parallel.mesh import Mesh
from strategies.precision import LossScale
from strategies.run_directory import (
    BadCheckpoint,
    checkpoint_name,
    finished_checkpoints,
    fsync_directory,
    json_bytes,
    newest_checkpoint,
    verify_checkpoint,
    write_atomically,
    write_manifest,
)
from strategies.shapes import vocabulary_size
from strategies.spec import CheckpointSpec, GuardSpec, OptimizerName, TrainSpec

PROGRESS = "progress.json"
ASIDE = ".tmp-"  # step-000200.tmp-<token>: being written, or about to be deleted


class Progress(BaseModel):
    """How far a run has come; with the seed it is also its place in the data."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    step: int = 0
    samples_seen: int = 0
    tokens_seen: int = 0
    loss_scale: LossScale = LossScale()
    recent_losses: tuple[float, ...] = ()
    """What the guard against loss spikes remembers."""

    def after(
        self, *, samples: int, tokens: int, loss: float, skipped: bool, guards: GuardSpec
    ) -> "Progress":
        """One step further."""
        return Progress(
            step=self.step + 1,
            samples_seen=self.samples_seen + samples,
            tokens_seen=self.tokens_seen + tokens,
            loss_scale=self.loss_scale.after(skipped=skipped),
            recent_losses=remember(self.recent_losses, loss, guards),
        )


class StoredProgress(BaseModel):
    """progress.json."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    progress: Progress
    spec: TrainSpec
    eval_loss: float | None = None
    """On the held-out text, where it was evaluated at this step."""


@torch.no_grad()
def copied(state: State) -> State:
    """A copy in the host's memory, which training does not change any more."""
    return {
        part: {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}
        for part, tensors in state.items()
    }


def save_checkpoint(
    checkpoints: Path,
    state: State,
    progress: Progress,
    spec: TrainSpec,
    mesh: Mesh,
    *,
    token: str,
    eval_loss: float | None = None,
    disk: Disk | None = None,
) -> Path:
    """Write `step-N`, all ranks together; its path, once it is safe on the disk of each node.

    `token` is the same on all ranks and no other run's. `disk` is `find_disk`'s, where there are
    several nodes.
    """
    disk = disk or Disk(0, 1, mesh.is_first)
    name = checkpoint_name(progress.step)
    aside, final = checkpoints / f"{name}{ASIDE}{token}", checkpoints / name
    with alone_is_fine():
        save(
            state,
            storage_writer=FileSystemWriter(aside, single_file_per_rank=True, sync_files=True),
            # One copy of what every rank holds, by the first of them, on its node's disk.
            planner=DefaultSavePlanner(dedup_save_to_lowest_rank=True),
            process_group=mesh.saving_group,
            no_dist=mesh.world_size == 1,
        )
    if disk.is_writer:
        stored = StoredProgress(progress=progress, spec=spec, eval_loss=eval_loss)
        if disk.number == 0:
            write_atomically(aside / PROGRESS, json_bytes(stored))
        write_manifest(
            aside,
            step=progress.step,
            layout=mesh.layout,
            node=disk.number,
            num_nodes=disk.count,
        )
        if disk.number != 0:  # for `best_of` here; the first node's is the checkpoint's
            write_atomically(aside / PROGRESS, json_bytes(stored))
        publish(aside, final)
        delete_old(checkpoints, final, spec.checkpoint)
    return final


def publish(aside: Path, final: Path) -> None:
    """Give a complete checkpoint its name."""
    if final.exists():  # it is damaged, or this run would have gone on from it
        discard(final)
    aside.rename(final)
    fsync_directory(final.parent)


def delete_old(checkpoints: Path, newest: Path, keep: CheckpointSpec) -> None:
    """Keep `newest`, those before it, and the best; delete the others, and what a crash left
    half-written.

    Later ones than `newest` are damaged: this run went on from before them.
    """
    finished = finished_checkpoints(checkpoints)
    at = finished.index(newest)
    kept = set(finished[at : at + keep.keep_last])
    if keep.keep_best:
        kept.update(best_of(finished[at:]))
    for path in finished:
        if path not in kept:
            discard(path)
    for path in checkpoints.glob(f"step-*{ASIDE}*"):
        shutil.rmtree(path)


def best_of(checkpoints: Sequence[Path]) -> list[Path]:
    """The one with the lowest loss on the held-out text; none where nothing was evaluated."""
    losses = {path: read_progress(path).eval_loss for path in checkpoints}
    evaluated = {path: loss for path, loss in losses.items() if loss is not None}
    return [min(evaluated, key=evaluated.__getitem__)] if evaluated else []


def discard(checkpoint: Path) -> None:
    """Take the name away first, so that no reader meets a half-deleted checkpoint."""
    doomed = checkpoint.with_name(f"{checkpoint.name}{ASIDE}doomed")
    if doomed.exists():
        shutil.rmtree(doomed)
    checkpoint.rename(doomed)
    shutil.rmtree(doomed)


def find_checkpoint(checkpoints: Path, resume_from: Path | None) -> Path | None:
    """Where to go on from: this run's newest that verifies, else `resume_from`, else nowhere.

    BadCheckpoint where `resume_from` was asked for and nothing in it can be trusted.
    """
    own = newest_checkpoint(checkpoints)
    if own is not None or resume_from is None:
        return own
    if finished_checkpoints(resume_from):
        found = newest_checkpoint(resume_from)
        if found is None:
            raise BadCheckpoint(f"no checkpoint in {resume_from} verifies")
        return found
    verify_checkpoint(resume_from)
    return resume_from


def load_checkpoint(checkpoint: Path, engine: Engine, spec: TrainSpec, mesh: Mesh) -> Progress:
    """Read weights and optimizer into the engine; how far that run had come.

    BadCheckpoint where it belongs to another model. The files must have been verified.
    """
    stored = read_progress(checkpoint)
    require_same_model(stored.spec, spec, checkpoint)
    state = engine.state()
    try:
        with alone_is_fine():
            load(
                state,
                storage_reader=FileSystemReader(checkpoint),
                no_dist=mesh.world_size == 1,
            )
    except (CheckpointException, RuntimeError, OSError) as error:
        raise BadCheckpoint(f"{checkpoint} cannot be read: {error}") from error
    engine.load(state)
    return stored.progress


def read_weights(checkpoint: Path, spec: TrainSpec) -> dict[str, Tensor]:
    """The whole trained weights of a saved run on CPU, by global name; for one rank, without the
    others."""
    weights = {
        name: torch.empty(parameter.shape, dtype=parameter.dtype)
        for name, parameter in design_model(spec).named_weights()
        if parameter.requires_grad
    }
    with alone_is_fine():
        load({"model": weights}, storage_reader=FileSystemReader(checkpoint), no_dist=True)
    return weights


def read_progress(checkpoint: Path) -> StoredProgress:
    """progress.json; BadCheckpoint where it cannot be read."""
    try:
        return StoredProgress.model_validate_json((checkpoint / PROGRESS).read_bytes())
    except (OSError, ValidationError) as error:
        raise BadCheckpoint(f"{checkpoint / PROGRESS} cannot be read: {error}") from error


@contextmanager
def alone_is_fine() -> Iterator[None]:
    """Keep torch from warning that one rank has no process group: it needs none."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        yield


def require_same_model(stored: TrainSpec, spec: TrainSpec, checkpoint: Path) -> None:
    """Steps, batch sizes, learning rate, text and layout may change between runs; the model, what
    its tokens are, and the optimizer's state may not. Neither may the frozen weights, which a
    checkpoint lacks."""
    differences = []
    for part in ("model", "adapter"):
        before, now = fields_of(getattr(stored, part)), fields_of(getattr(spec, part))
        differences += [
            f"{part}.{field} is {now.get(field)} here, {before.get(field)} there"
            for field in before | now
            if now.get(field) != before.get(field)
        ]
    others: dict[str, tuple[object, object]] = {
        "precision": (spec.precision, stored.precision),
        "optimizer": (state_of(spec.training.optimizer), state_of(stored.training.optimizer)),
        "gradient_delay": (spec.parallelism.gradient_delay, stored.parallelism.gradient_delay),
        "tokenizer": (spec.data.tokenizer, stored.data.tokenizer),
        "vocabulary_size": (vocabulary_size(spec.data), vocabulary_size(stored.data)),
        "image_shape": (image_shape(spec.data), image_shape(stored.data)),
        "classes": (num_classes(spec.data), num_classes(stored.data)),
    }
    if spec.adapter is not None and spec.model.checkpoint is None:  # they are drawn again
        others["seed"] = (spec.training.seed, stored.training.seed)
    differences += [
        f"{field} is {here} here, {there} there"
        for field, (here, there) in others.items()
        if here != there
    ]
    if differences:
        raise BadCheckpoint(f"{checkpoint} is of another model: {'; '.join(differences)}")


def state_of(optimizer: OptimizerName) -> OptimizerName:
    """Whose state an optimizer keeps, by names and numbers."""
    return OptimizerName.ADAMW if optimizer is OptimizerName.ADAMW_TRITON else optimizer


def fields_of(part: BaseModel | None) -> dict[str, object]:
    """A part of a spec, in JSON's types; nothing where it is left out."""
    return {} if part is None else part.model_dump(mode="json")
