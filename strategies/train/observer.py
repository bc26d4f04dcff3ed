"""One observer of a run: the loop tells it of each step, and it measures, logs and reports.

It changes no number of the training. It also sets the timeout of a rank that waits for others.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from strategies.plan.run_directory import Action, RunDirectory, RunPlan
from strategies.train.checkpoints.checkpoint import Progress
from strategies.train.checkpoints.saving import SavedCheckpoint
from strategies.train.engine import Engine
from strategies.train.evaluation import Scores
from strategies.train.mesh import Mesh
from strategies.train.patience import Patience
from strategies.train.step import Step
from strategies.train.trust.one_rank import Certifier
from strategies.train.watching.allocator import Allocator
from strategies.train.watching.console import tell_step
from strategies.train.watching.memory_snapshot import MemorySnapshots
from strategies.train.watching.metrics import MetricsLog
from strategies.train.watching.probe import Probe
from strategies.train.watching.profiling import StepProfiler
from strategies.train.watching.scales import Scales
from strategies.train.watching.speed import Speed
from strategies.train.watching.story import Story
from strategies.train.watching.use import Use


class Observer:
    """Observer of one rank's run, from its first step to result.json.

    The loop takes each step within `watch_step`, calls `tell` with the steps whose values it then
    knows, and `obey`; it announces work of unequal length by `expect_pause`.
    """

    def __init__(
        self,
        run_plan: RunPlan,
        directory: RunDirectory,
        engine: Engine,
        mesh: Mesh,
        *,
        progress: Progress,
        checkpoint: Path | None,
        scales: Scales,
        certifier: Certifier,
    ) -> None:
        """Begin to observe after `progress`; `checkpoint` is the one that the run starts from."""
        self.mesh, self.num_steps = mesh, run_plan.spec.training.steps
        self.progress, self.scales, self.certifier = progress, scales, certifier
        rank, device = mesh.rank, mesh.device
        self.profiler = StepProfiler(directory.artifacts, rank=rank, device=device)
        self.snapshots = MemorySnapshots(
            directory.artifacts, engine.state, rank=rank, device=device
        )
        self.probe, self.speed = Probe(device, engine.held), Speed(run_plan, mesh)
        self.use, self.allocator = Use(device), Allocator(device, rank)
        self.story = Story(directory, checkpoint=checkpoint)
        self.patience = Patience(mesh, first_s=run_plan.collective_timeout_s)
        self.metrics = MetricsLog(directory.metrics if mesh.is_first else None)
        self.own_metrics = MetricsLog(None if mesh.is_first else directory.rank_metrics(rank))
        self.seen: dict[int, dict[str, float]] = {}
        """Measurements of the few steps that the probe examined, by step."""

    @property
    def checkpoint(self) -> Path | None:
        """Newest checkpoint on disk, or the one that the run started from."""
        return self.story.checkpoint

    @contextmanager
    def watch_step(self, step: int) -> Iterator[None]:
        """Wrap a step: its data, both passes and the update."""
        with self.scales.next_step(), self.probe.next_step() as seen:
            yield
        if seen:
            self.seen[step] = seen

    def tell(self, steps: Sequence[Step]) -> None:
        """Record steps whose values have become known."""
        for taken in steps:
            self.progress = taken.progress
            seen = self.seen.get(taken.progress.step, {})
            self.patience.after_step(taken.time_s)
            self.story.add_step(taken.agreed.loss)
            if not seen:  # the measurement took longer than the step
                self.story.add_time(taken.valid_tokens, taken.time_s)
            self.log(taken, seen)

    def log(self, taken: Step, seen: dict[str, float]) -> None:
        """Write a step's metrics, its part in the certificate, and now and then a line."""
        step, loss = taken.progress.step, taken.agreed.loss
        grad_norm = None if taken.skipped else taken.agreed.grad_norm
        used = self.use.look()
        memory: dict[str, float] = {}
        if self.mesh.is_first or seen or used:
            memory = self.allocator.look(step)
            self.own_metrics.write(step, **memory, **seen, **used)
        self.metrics.write(
            step,
            loss=loss,
            grad_norm=grad_norm,
            lr=taken.learning_rate,
            tokens_seen=taken.progress.tokens_seen,
            data_time_s=taken.data_time_s,
            **memory,
            **taken.progress.loss_scale.metrics(),
            **used,
            **(seen or self.speed.metrics(taken.valid_tokens, taken.time_s)),
        )
        self.certifier.after_step(step, loss, grad_norm, self.metrics)
        if self.mesh.is_first:
            tell_step(
                step,
                self.num_steps,
                loss=loss,
                grad_norm=taken.agreed.grad_norm,
                lr=taken.learning_rate,
                tokens_per_s=taken.valid_tokens / taken.time_s,
            )

    def obey(self, asked: frozenset[Action], step: int, *, last: bool) -> None:
        """End profiles and memory snapshots that are complete after `step`, and begin new ones."""
        if Action.PROFILE in asked:
            self.expect_pause()
            self.profiler.start(step)
        trace = self.profiler.after_step(step, last=last)
        if trace is not None:
            self.metrics.write(step, event="profile_saved", artifact=trace.name)
        table = self.snapshots.after_step(step, self.seen.get(step, {}))
        if table is not None:
            self.metrics.write(step, event="snapshot_saved", artifact=table.name)
        if Action.SNAPSHOT in asked:
            self.expect_pause()
            self.probe.is_asked = True
            self.snapshots.start()

    def expect_pause(self) -> None:
        """Return to the long timeout, before work of unequal length."""
        self.patience.start_over()

    def after_evaluation(self, scores: Scores | None) -> None:
        """Log the scores after the step just taken; None if nothing is held out."""
        self.story.scores = scores
        self.metrics.write(self.progress.step, **(scores.metrics() if scores else {}))

    def after_save(self, saved: SavedCheckpoint | None) -> None:
        """Log a finished checkpoint, if there is one."""
        self.story.tell_saved(saved, self.metrics)

    def write_result(
        self,
        reason: Literal["finished", "stopped", "diverged"],
        *,
        peak_gib: Sequence[float] = (),
        missing: Sequence[str] = (),
    ) -> None:
        """Write result.json; `peak_gib` by rank, if all ranks have ended together.

        `missing` names the artifacts that are still to be written.
        """
        self.story.peak_gib, self.story.missing = list(peak_gib), list(missing)
        self.story.write_result(self.progress.step, self.mesh, reason)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the metrics; result.json may still be written."""
        self.own_metrics.close()
        self.metrics.close()
