"""Train: `torchrun --standalone --nproc-per-node 2 -m strategies.train --plan P --run-dir D`.

main() and the loop, from top to bottom. The loop knows no technique: it talks to an Engine.
"""

import argparse
import gc
import importlib
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import torch

from strategies.plan.catalog import MODELS
from strategies.plan.data.windows import TokenWindows
from strategies.plan.run_directory import (
    SAMPLE,
    WEIGHTS,
    BadCheckpoint,
    ExitCode,
    RunDirectory,
    RunPlan,
    json_bytes,
    write_atomically,
)
from strategies.plan.trust.preflight_report import Report
from strategies.train.checkpoints.checkpoint import (
    Progress,
    find_checkpoint,
    load_checkpoint,
    read_weights,
)
from strategies.train.checkpoints.disks import bring_together, find_disk
from strategies.train.checkpoints.saving import CheckpointWriter
from strategies.train.control import ControlWatch
from strategies.train.data.batches import HeldOut, TrainingData, Windows, open_windows
from strategies.train.engine import Engine, engine_for
from strategies.train.evaluation import evaluate
from strategies.train.failures import report
from strategies.train.fine_tuning.export import describe_model
from strategies.train.fine_tuning.hub import with_model
from strategies.train.fine_tuning.peft_files import export_adapter
from strategies.train.fine_tuning.source import source_of
from strategies.train.generate import export_weights, sample_text
from strategies.train.guards import Diverged
from strategies.train.mesh import Mesh, join, leave
from strategies.train.patience import Patience
from strategies.train.precision import first_loss_scale
from strategies.train.step import take_step
from strategies.train.trust.collective_digest import digest
from strategies.train.trust.one_rank import Certifier
from strategies.train.trust.preflight import trust
from strategies.train.watching.console import introduce, say, tell_step
from strategies.train.watching.memory_snapshot import MemorySnapshots
from strategies.train.watching.metrics import MetricsLog, max_active_gib
from strategies.train.watching.probe import Probe
from strategies.train.watching.profiling import StepProfiler
from strategies.train.watching.scales import Scales
from strategies.train.watching.speed import Speed
from strategies.train.watching.story import Story
from strategies.train.watching.use import Use

# Modules that a run would import later; a test fails if this list is incomplete.
IMPORTED_LATE = (
    "strategies.train.engines.local_sgd",
    "strategies.train.engines.pipeline",
    "strategies.train.engines.spmd",
    "strategies.train.engines.zero",
    "numpy.ctypeslib",
    "torch._dynamo",
    "torch.nn.parallel.distributed",
    "torch.profiler._cupti_monitor",  # on CPU too: the optimizer asks it whether it is recording
    "torch.utils.serialization.config",
)

# A DDP object that is freed after its process group can deadlock in torch's gloo thread (seen
# once in 150 runs); engines therefore live until the process leaves through os._exit.
kept_engines: list[Engine] = []


def main(argv: Sequence[str] | None = None) -> int:
    """Read the plan, train, and return the exit code."""
    parser = argparse.ArgumentParser(prog="strategies.train", description=__doc__)
    parser.add_argument("--plan", type=Path, required=True, help="plan.json")
    parser.add_argument("--run-dir", type=Path, required=True, help="where everything is written")
    arguments = parser.parse_args(argv)
    try:
        run_plan = RunPlan.model_validate_json(arguments.plan.read_bytes())
    except (OSError, ValueError) as error:
        return report(error)
    return run(run_plan, arguments.run_dir)


def run(run_plan: RunPlan, run_dir: Path, *, engine: Engine | None = None) -> int:
    """Train as one rank of a run, placed by torchrun's environment variables; return the exit code.

    The caller must then flush and end the process with os._exit. `engine` replaces the technique
    that the plan names.
    """
    directory = RunDirectory(run_dir)
    mesh = None
    try:
        for folder in (directory.path, directory.checkpoints, directory.artifacts):
            folder.mkdir(parents=True, exist_ok=True)
        torch.set_num_threads(num_threads(run_plan))
        run_plan = with_model(run_plan)
        windows = open_windows(run_plan, cache_folder())
        mesh = join(run_plan.plan, timeout_s=run_plan.collective_timeout_s)
        if run_plan.preflight and mesh.world_size > 1:
            prove(run_plan, directory, mesh)
        engine = engine or engine_for(run_plan.plan)
        kept_engines.append(engine)
        control = ControlWatch(directory.control if mesh.is_first else None)
        control.catch_signals()
        train(run_plan, directory, windows, engine=engine, mesh=mesh, control=control)
    except Exception as error:  # the edge of the process: record, then end
        return report(error, None if mesh is None else digest(error, mesh))
    finally:
        if engine is not None:
            engine.close()
        leave()
    return ExitCode.FINISHED


def prove(run_plan: RunPlan, directory: RunDirectory, mesh: Mesh) -> None:
    """Let the ranks test each other. Raises PreflightFailed, which names the rank that fails."""

    def tell(report: Report) -> None:
        if mesh.is_first:
            write_atomically(directory.preflight, json_bytes(report))
        if mesh.is_first and not report.failures:
            with MetricsLog(directory.metrics) as metrics:
                metrics.write(0, event="preflight", preflight_ms=report.seconds * 1e3)

    trust(mesh, timeout_s=run_plan.collective_timeout_s, tell=tell)


def train(
    run_plan: RunPlan,
    directory: RunDirectory,
    windows: Windows,
    *,
    engine: Engine,
    mesh: Mesh,
    control: ControlWatch,
) -> None:
    """Run one rank's whole training, from the initial weights to result.json."""
    spec, training = run_plan.spec, run_plan.spec.training
    data = TrainingData(windows, run_plan, batch_rank=mesh.batch_rank, device=mesh.device)
    held_out = HeldOut(windows, run_plan, batch_rank=mesh.batch_rank, device=mesh.device)
    checkpoint = find_start(run_plan, directory, mesh)
    certifier = Certifier(run_plan, directory, mesh)
    if checkpoint is None:
        certifier.train_alone(windows, control)
    scales = Scales(mesh.device, is_compiled=spec.compile)
    engine.setup(spec, run_plan.plan, mesh, source_of(run_plan))
    scales.after_setup()
    progress = Progress(loss_scale=first_loss_scale(spec.precision))
    if checkpoint is not None:
        progress = load_checkpoint(checkpoint, engine, spec, mesh)
    profiler = StepProfiler(directory.artifacts, rank=mesh.rank, device=mesh.device)
    snapshots = MemorySnapshots(
        directory.artifacts, engine.state, rank=mesh.rank, device=mesh.device
    )
    probe, speed = Probe(mesh.device, engine.held), Speed(spec, mesh)
    use = Use(mesh.device)
    story = Story(directory, checkpoint=checkpoint)
    gc.freeze()  # later collections need not scan objects that live until the end
    patience = Patience(mesh, first_s=run_plan.collective_timeout_s)
    stopping = False
    disk = find_disk(directory.path, mesh)
    introduce(run_plan, mesh, progress)

    with (
        MetricsLog(directory.metrics if mesh.is_first else None) as metrics,
        MetricsLog(None if mesh.is_first else directory.rank_metrics(mesh.rank)) as own_metrics,
        CheckpointWriter(directory.checkpoints, spec, mesh, disk) as writer,
    ):
        while progress.step < training.steps and not stopping:
            step = progress.step + 1
            began = time.perf_counter()
            micro_batches, valid_tokens = data.step(progress.samples_seen)
            data_time_s = time.perf_counter() - began

            try:
                with scales.next_step(), probe.next_step() as seen:
                    agreed, rate, skipped = take_step(
                        engine,
                        micro_batches,
                        valid_tokens,
                        progress,
                        control.look(),
                        spec=spec,
                        mesh=mesh,
                    )
            except Diverged:
                story.tell_saved(writer.finish(), metrics)
                story.write_result(progress.step, mesh, "diverged")
                raise
            progress = progress.after(
                samples=training.global_batch_size,
                tokens=valid_tokens,
                loss=agreed.loss,
                skipped=skipped,
                guards=spec.guards,
            )

            step_time_s = time.perf_counter() - began
            patience.after_step(step_time_s)
            story.add_step(agreed.loss)
            if not seen:  # the measurement took longer than the step
                story.add_time(valid_tokens, step_time_s)
            grad_norm = None if skipped else agreed.grad_norm
            used = use.look()
            if seen or used:
                peak_gib = max_active_gib(mesh.device)
                own_metrics.write(step, max_active_gib=peak_gib, **seen, **used)
            metrics.write(
                step,
                loss=agreed.loss,
                grad_norm=grad_norm,
                lr=rate,
                tokens_seen=progress.tokens_seen,
                data_time_s=data_time_s,
                max_active_gib=max_active_gib(mesh.device),
                **progress.loss_scale.metrics(),
                **used,
                **(seen or speed.metrics(valid_tokens, step_time_s)),
            )
            certifier.after_step(step, agreed.loss, grad_norm, metrics)
            if mesh.is_first:
                tell_step(
                    step,
                    training.steps,
                    loss=agreed.loss,
                    grad_norm=agreed.grad_norm,
                    lr=rate,
                    tokens_per_s=valid_tokens / step_time_s,
                )

            stopping = agreed.stop
            last = stopping or step == training.steps
            if agreed.profile:
                patience.start_over()
                profiler.start(step)
            trace = profiler.after_step(step, last=last)
            if trace is not None:
                metrics.write(step, event="profile_saved", artifact=trace.name)
            table = snapshots.after_step(step, seen)
            if table is not None:
                metrics.write(step, event="snapshot_saved", artifact=table.name)
            if agreed.snapshot:
                patience.start_over()
                probe.is_asked = True
                snapshots.start()
            scores = None
            if step == training.steps or is_due(step, training.eval_every_steps):
                patience.start_over()
                scores = story.scores = evaluate(engine, held_out, mesh, spec.model.name)
                metrics.write(step, **(scores.metrics() if scores else {}))
            if last or agreed.checkpoint or is_due(step, spec.checkpoint.every_steps):
                patience.start_over()
                eval_loss = scores and scores.loss
                story.tell_saved(writer.start(engine, progress, eval_loss), metrics)
            story.tell_saved(writer.finish() if last else writer.finished(), metrics)

    finished = progress.step >= training.steps
    say(f"rank {mesh.rank} {'finished' if finished else 'stopped as asked'} at {progress.step:,}")
    patience.start_over()
    if finished and story.checkpoint is not None:
        bring_together(story.checkpoint, disk, mesh)
    if finished and mesh.is_first and story.checkpoint is not None:
        story.sample = leave_artifacts(run_plan, directory, story.checkpoint, windows)
    story.peak_gib = mesh.gather(scales.peak_gib or 0.0)
    if mesh.num_nodes > 1:
        mesh.barrier()  # no node writes a result before the first one has written its artifacts
    story.write_result(progress.step, mesh, "finished" if finished else "stopped")
    mesh.barrier()  # ranks end together, so a rank that hangs differs from one that waits
    engine.close()


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


def leave_artifacts(
    run_plan: RunPlan, directory: RunDirectory, checkpoint: Path, windows: Windows
) -> str | None:
    """Write the trained weights and, for a text model, a sample; return the sample.

    Called by the first rank alone.
    """
    tokenizer = windows.tokenizer if isinstance(windows, TokenWindows) else None
    weights = read_weights(checkpoint, run_plan.spec)
    if run_plan.spec.adapter is not None:
        export_adapter(directory.artifacts, weights, run_plan.spec)
    else:
        export_weights(directory.artifacts / WEIGHTS, weights, run_plan.spec, tokenizer)
    if tokenizer is None:
        return None
    if run_plan.spec.adapter is None:
        describe_model(directory.artifacts, run_plan, tokenizer)
    if run_plan.sample_bytes == 0:
        return None
    sample = sample_text(
        weights,
        run_plan.spec,
        tokenizer,
        prompt=run_plan.prompt,
        num_tokens=run_plan.sample_bytes,
        source=None if run_plan.spec.adapter is None else source_of(run_plan),
    )
    write_atomically(directory.artifacts / SAMPLE, sample.encode())
    return sample


def is_due(step: int, every: int | None) -> bool:
    """Return True if something done every so many steps is due."""
    return every is not None and step % every == 0


def cache_folder() -> Path:
    """Return the user's folder in which a manual run keeps the built-in dataset."""
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "trainyard"


def num_threads(run_plan: RunPlan) -> int:
    """Return the threads of this rank: as given, else its share of the cores.

    More threads than cores make a step five times slower (measured).
    """
    told = run_plan.threads_per_rank or int(os.environ.get("OMP_NUM_THREADS", "0"))
    local_ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return told or max(1, len(os.sched_getaffinity(0)) // local_ranks)


def preload() -> None:
    """Import all modules that a run needs, so that a process that forks ranks has them ready.

    No tensor operation happens here: a thread pool of the parent would not survive the fork.
    DistributedDataParallel alone would otherwise import torch._dynamo, which takes a second.
    """
    for module in IMPORTED_LATE:
        importlib.import_module(module)
    for model in MODELS.values():
        importlib.import_module(model.partition(":")[0])


def end_process(code: int) -> NoReturn:
    """Exit without tearing torch down, which can hang after a successful run."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    end_process(main())
