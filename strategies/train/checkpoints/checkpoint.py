"""Checkpoints: written aside, fsynced, hashed, renamed; read only if every hash is right.

Tensors are stored under their global names by torch.distributed.checkpoint, so that a run may
continue with another number of ranks. Everything else is in progress.json.
"""

import shutil
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from strategies.plan.durable_files import fsync_directory, json_bytes, sha256_of, write_atomically
from strategies.plan.image_shapes import image_shape, num_classes
from strategies.plan.run_directory import (
    BadCheckpoint,
    checkpoint_name,
    finished_checkpoints,
    newest_checkpoint,
    verify_checkpoint,
    write_manifest,
)
from strategies.plan.shapes import vocabulary_size
from strategies.plan.spec import CheckpointSpec, GuardSpec, OptimizerName, TrainSpec
from strategies.train.checkpoints.disks import Disk
from strategies.train.data.sampling import Mark
from strategies.train.engine import Engine, State
from strategies.train.guards import remember
from strategies.train.init import design_model
from strategies.train.mesh import Mesh
from strategies.train.precision import LossScale

PROGRESS = "progress.json"
ASIDE = ".tmp-"  # step-000200.tmp-<token>: being written, or about to be deleted


class Progress(BaseModel):
    """Progress of a run; together with the seed it is also its position in the data."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    step: int = 0
    samples_seen: int = 0
    tokens_seen: int = 0
    loss_scale: LossScale = LossScale()
    recent_losses: tuple[float, ...] = ()
    """Losses that the guard against spikes compares with."""
    mark: Mark | None = Field(default=None, exclude_if=lambda mark: mark is None)
    """Chapter of the next sample, if the data are streamed."""

    def after(self, *, samples: int, tokens: int) -> "Progress":
        """Return the progress after one more step, which has not been judged yet."""
        counts = {
            "step": self.step + 1,
            "samples_seen": self.samples_seen + samples,
            "tokens_seen": self.tokens_seen + tokens,
        }
        return self.model_copy(update=counts)

    def judged(self, *, loss: float, skipped: bool, guards: GuardSpec) -> "Progress":
        """Return the progress with what the last step's loss and gradient change for later ones."""
        changes = {
            "loss_scale": self.loss_scale.after(skipped=skipped),
            "recent_losses": remember(self.recent_losses, loss, guards),
        }
        return self.model_copy(update=changes)


class StoredProgress(BaseModel):
    """Content of progress.json."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    progress: Progress
    spec: TrainSpec
    eval_loss: float | None = None
    """Loss on the held-out data, if it was evaluated at this step."""


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
    """Write `step-N`, all ranks together; return its path once it is safe on every node's disk.

    `token` is the same on all ranks and unique to this run. `disk` is `find_disk`'s result, needed
    with several nodes.
    """
    disk = disk or Disk(0, 1, mesh.is_first)
    name = checkpoint_name(progress.step)
    aside, final = checkpoints / f"{name}{ASIDE}{token}", checkpoints / name
    with alone_is_fine():
        save(
            state,
            storage_writer=FileSystemWriter(aside, single_file_per_rank=True, sync_files=True),
            # Tensors that several ranks hold are written once, by the first of them.
            planner=DefaultSavePlanner(dedup_save_to_lowest_rank=True),
            process_group=mesh.saving_group,
            no_dist=mesh.world_size == 1,
        )
    hashes = hashes_of_all(aside, mesh)
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
            hashes=hashes,
        )
        if disk.number != 0:  # for `best_of` on this node; the manifest lists the first node's
            write_atomically(aside / PROGRESS, json_bytes(stored))
        publish(aside, final)
    if mesh.saving_group is not None:
        dist.barrier(group=mesh.saving_group)
    if disk.is_writer:
        delete_old(checkpoints, final, spec.checkpoint)
    return final


def hashes_of_all(checkpoint: Path, mesh: Mesh) -> dict[str, str]:
    """Return the SHA-256 of the file of every rank, by its name; each rank hashes its own."""
    own = {path.name: sha256_of(path) for path in checkpoint.glob(f"__{mesh.rank}_*.distcp")}
    found = [own] * mesh.world_size
    if mesh.saving_group is not None:
        dist.all_gather_object(found, own, group=mesh.saving_group)
    return {name: sha256 for one in found for name, sha256 in one.items()}


def publish(aside: Path, final: Path) -> None:
    """Give a complete checkpoint its final name."""
    if final.exists():  # it is damaged, or this run would have continued from it
        discard(final)
    aside.rename(final)
    fsync_directory(final.parent)


def delete_old(checkpoints: Path, newest: Path, keep: CheckpointSpec) -> None:
    """Keep `newest`, the ones before it as asked, and the best; delete all others.

    Half-written ones that a crash left are deleted too. Later ones than `newest` are damaged: this
    run continued from before them.
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
    """Return the one with the lowest loss on the held-out data; none if nothing was evaluated."""
    losses = {path: read_progress(path).eval_loss for path in checkpoints}
    evaluated = {path: loss for path, loss in losses.items() if loss is not None}
    return [min(evaluated, key=evaluated.__getitem__)] if evaluated else []


def discard(checkpoint: Path) -> None:
    """Delete a checkpoint; it is renamed first, so that no reader finds it half-deleted."""
    doomed = checkpoint.with_name(f"{checkpoint.name}{ASIDE}doomed")
    if doomed.exists():
        shutil.rmtree(doomed)
    checkpoint.rename(doomed)
    shutil.rmtree(doomed)


def find_checkpoint(checkpoints: Path, resume_from: Path | None) -> Path | None:
    """Return the checkpoint to continue from: this run's newest valid one, else `resume_from`.

    None if there is neither. Raises BadCheckpoint if `resume_from` is given and nothing in it
    verifies.
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
    """Read weights and optimizer into the engine; return the progress of the run that wrote them.

    A run on other data begins them anew, so it gets no mark in their stream.
    The files must have been verified. Raises BadCheckpoint if it belongs to another model.
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
    before = stored.spec
    if before.data == spec.data and before.training.seed == spec.training.seed:
        return stored.progress
    return stored.progress.model_copy(update={"mark": None})


def read_weights(checkpoint: Path, spec: TrainSpec) -> dict[str, Tensor]:
    """Return the whole trained weights of a saved run on CPU, by global name.

    Called by one rank, without the others.
    """
    weights = {
        name: torch.empty(parameter.shape, dtype=parameter.dtype)
        for name, parameter in design_model(spec).named_weights()
        if parameter.requires_grad
    }
    with alone_is_fine():
        load({"model": weights}, storage_reader=FileSystemReader(checkpoint), no_dist=True)
    return weights


def read_progress(checkpoint: Path) -> StoredProgress:
    """Read progress.json. Raises BadCheckpoint if it cannot be read."""
    try:
        return StoredProgress.model_validate_json((checkpoint / PROGRESS).read_bytes())
    except (OSError, ValidationError) as error:
        raise BadCheckpoint(f"{checkpoint / PROGRESS} cannot be read: {error}") from error


@contextmanager
def alone_is_fine() -> Iterator[None]:
    """Suppress torch's warning that a single rank has no process group: it needs none."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        yield


def require_same_model(stored: TrainSpec, spec: TrainSpec, checkpoint: Path) -> None:
    """Raise BadCheckpoint if the checkpoint belongs to another model.

    Steps, batch sizes, learning rate, text and layout may change between runs; the model, its
    tokens and the optimizer's state may not. Neither may the frozen weights, which a checkpoint
    lacks.
    """
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
        "tokenizer_name": (spec.data.tokenizer_name, stored.data.tokenizer_name),
        "vocabulary_size": (vocabulary_size(spec.data), vocabulary_size(stored.data)),
        "image_shape": (image_shape(spec.data), image_shape(stored.data)),
        "classes": (num_classes(spec.data), num_classes(stored.data)),
    }
    if spec.adapter is not None and spec.model.checkpoint is None:  # frozen weights are drawn again
        others["seed"] = (spec.training.seed, stored.training.seed)
    differences += [
        f"{field} is {here} here, {there} there"
        for field, (here, there) in others.items()
        if here != there
    ]
    if differences:
        raise BadCheckpoint(f"{checkpoint} belongs to another model: {'; '.join(differences)}")


def state_of(optimizer: OptimizerName) -> OptimizerName:
    """Return the optimizer whose state has the same names and shapes."""
    return OptimizerName.ADAMW if optimizer is OptimizerName.ADAMW_TRITON else optimizer


def fields_of(part: BaseModel | None) -> dict[str, object]:
    """Return a part of a spec in JSON's types; empty if it is left out."""
    return {} if part is None else part.model_dump(mode="json")
