"""Training loop: data, step, log, evaluate, save, stop. It knows no technique: it talks to an
Engine, and tells an Observer of each step.
"""

import gc
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from strategies.plan.run_directory import Action, BadCheckpoint, RunDirectory, RunPlan
from strategies.train.checkpoints.checkpoint import (
    Progress,
    find_checkpoint,
    load_checkpoint,
)
from strategies.train.checkpoints.disks import bring_together, find_disk
from strategies.train.checkpoints.saving import CheckpointWriter
from strategies.train.control import ControlWatch
from strategies.train.data.batches import HeldOut, TrainingData, Windows
from strategies.train.data.sampling import Mark
from strategies.train.engine import Engine
from strategies.train.evaluation import evaluate
from strategies.train.farewell import artifacts_of
from strategies.train.fine_tuning.source import source_of, with_frozen_dtype
from strategies.train.guards import Diverged
from strategies.train.mesh import Mesh
from strategies.train.observer import Observer
from strategies.train.precision import choose_kernels, first_loss_scale
from strategies.train.step import Step, Steps
from strategies.train.trust.one_rank import Certifier
from strategies.train.watching.console import introduce, say
from strategies.train.watching.phase_peaks import PhasePeaks
from strategies.train.watching.scales import Scales

SAVING = frozenset({Action.CHECKPOINT, Action.STOP})  # requests that end in a checkpoint


def train(
    run_plan: RunPlan,
    directory: RunDirectory,
    windows: Windows,
    *,
    engine: Engine,
    mesh: Mesh,
    control: ControlWatch,
) -> Path | None:
    """Run one rank's whole training, from the initial weights to result.json.

    Returns the checkpoint from which this rank alone must still write the artifacts, if any.
    """
    compiles = {"compile": run_plan.plan.compiles}  # instead of auto
    run_plan = run_plan.model_copy(update={"spec": run_plan.spec.model_copy(update=compiles)})
    run_plan = with_frozen_dtype(run_plan)
    spec, training = run_plan.spec, run_plan.spec.training
    choose_kernels(spec)
    data = TrainingData(windows, run_plan, batch_rank=mesh.batch_rank, device=mesh.device)
    held_out = HeldOut(windows, run_plan, batch_rank=mesh.batch_rank, device=mesh.device)
    checkpoint = find_start(run_plan, directory, mesh)
    certifier = Certifier(run_plan, directory, mesh)
    if checkpoint is None:
        certifier.train_alone(windows, control)
    scales = Scales(mesh.device, is_compiled=run_plan.plan.compiles)
    peaks = PhasePeaks(directory.rank_memory(mesh.rank), run_plan.plan, mesh)
    with peaks.watching():
        engine.setup(spec, run_plan.plan, mesh, source_of(run_plan))
    scales.after_setup()
    progress = Progress(loss_scale=first_loss_scale(spec.precision))
    if checkpoint is not None:
        progress = load_checkpoint(checkpoint, engine, spec, mesh)
        data.begin_at(progress.mark or Mark(first_sample=progress.samples_seen))
    observer = Observer(
        run_plan,
        directory,
        engine,
        mesh,
        progress=progress,
        checkpoint=checkpoint,
        scales=scales,
        certifier=certifier,
    )
    gc.freeze()  # later collections need not scan objects that live until the end
    disk = find_disk(directory.path, mesh)
    introduce(run_plan, mesh, progress)

    stopping = False
    with observer, CheckpointWriter(directory.checkpoints, spec, mesh, disk) as writer:
        steps = Steps(
            engine, data, progress, spec=spec, mesh=mesh, before_update=writer.copy.before_update
        )
        while steps.progress.step < training.steps and not stopping:
            step = steps.progress.step + 1
            is_evaluated = step == training.steps or is_due(step, training.eval_every_steps)
            is_saved = is_due(step, spec.checkpoint.every_steps)
            try:
                with observer.watch_step(step), peaks.watching():
                    known = steps.take(control.look())
                observer.tell(known)
                asked = requests(known)
                if is_evaluated or is_saved or step in observer.seen or asked & SAVING:
                    known = steps.read()
                    observer.tell(known)
                    asked |= requests(known)
            except Diverged:
                observer.after_save(writer.finish())
                observer.write_result("diverged")
                raise
            stopping = Action.STOP in asked
            last = stopping or step == training.steps
            observer.obey(asked, step, last=last)

            scores = None
            if is_evaluated:
                observer.expect_pause()
                scores = evaluate(engine, held_out, mesh, spec.model.name)
                observer.after_evaluation(scores)

            if run_plan.saves and (is_saved or last or asked & SAVING):
                observer.expect_pause()
                mark = data.mark(steps.progress.samples_seen)
                progress = steps.progress.model_copy(update={"mark": mark})
                observer.after_save(writer.start(engine, progress, scores and scores.loss))
            observer.after_save(writer.finish() if last else writer.finished())

    progress = steps.progress
    finished = progress.step >= training.steps
    say(f"rank {mesh.rank} {'finished' if finished else 'stopped as asked'} at {progress.step:,}")
    observer.expect_pause()
    saved = observer.checkpoint if finished else None
    missing = [] if saved is None else artifacts_of(run_plan, windows)
    peak_gib = mesh.gather(
        max(scales.peak_gib or 0.0, peaks.before_reset_gib)
    )  # each rank's last save has ended before
    reason: Literal["finished", "stopped"] = "finished" if finished else "stopped"
    observer.write_result(reason, peak_gib=peak_gib, missing=missing)
    mesh.barrier()  # ranks end together, so a rank that hangs differs from one that waits
    if saved is not None:
        bring_together(saved, disk, mesh)
        if disk.is_writer and not mesh.is_first:
            observer.write_result(reason, peak_gib=peak_gib)  # the rest is the first node's
    engine.close()
    return saved if mesh.is_first else None


def requests(steps: Iterable[Step]) -> frozenset[Action]:
    """Return the requests that the ranks agreed on in some steps."""
    return frozenset(action for step in steps for action in step.agreed.asked)


def find_start(run_plan: RunPlan, directory: RunDirectory, mesh: Mesh) -> Path | None:
    """Return the checkpoint to continue from: the one that the first rank found, on all ranks.

    Each rank gets its path in the folders of its own node. Raises BadCheckpoint.
    """
    asked = None if run_plan.resume_from is None else Path(run_plan.resume_from)
    found = refused = ""
    if mesh.is_first:
        try:
            path = find_checkpoint(directory.checkpoints, asked)
            if path is not None:
                is_own = path.parent == directory.checkpoints
                found = f"own {path.name}" if is_own else f"asked {path.name}"
        except BadCheckpoint as error:
            refused = str(error)
    refused = mesh.broadcast_text(refused)
    if refused:
        raise BadCheckpoint(refused)
    whose, _, name = mesh.broadcast_text(found).partition(" ")
    if whose == "own":
        return directory.checkpoints / name
    if asked is None or not whose:
        return None
    return asked if asked.name == name else asked / name


def is_due(step: int, every: int | None) -> bool:
    """Return True if something done every so many steps is due."""
    return every is not None and step % every == 0
