"""Result of a run, collected while it trains and written to result.json."""

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from strategies.plan.durable_files import json_bytes, write_atomically
from strategies.plan.run_directory import Result, RunDirectory
from strategies.train.checkpoints.saving import SavedCheckpoint
from strategies.train.evaluation import Scores
from strategies.train.mesh import Mesh
from strategies.train.watching.metrics import MetricsLog

FIRST_STEPS, LAST_STEPS = 5, 10  # one step's loss is noise: the result gives means of these many


@dataclass
class Story:
    """Values that result.json will contain."""

    directory: RunDirectory
    started: float = field(default_factory=time.perf_counter)
    first_losses: list[float] = field(default_factory=list)
    last_losses: list[float] = field(default_factory=list)
    tokens: int = 0
    training_s: float = 0.0
    scores: Scores | None = None  # on the held-out data
    checkpoint: Path | None = None  # the newest one on disk, or the one the run started from
    peak_gib: list[float] = field(default_factory=list)  # by rank; 0 if not measured
    missing: list[str] = field(default_factory=list)  # artifacts still to be written

    def tell_saved(self, saved: SavedCheckpoint | None, metrics: MetricsLog) -> None:
        """Record a finished checkpoint and log it; None (no checkpoint was finished) does
        nothing."""
        if saved is None:
            return
        self.checkpoint = saved.path
        metrics.write(
            saved.step,
            event="checkpoint_saved",
            checkpoint=saved.path.name,
            ckpt_stage_s=saved.stage_s,
            ckpt_save_s=saved.save_s,
        )

    def add_step(self, loss: float) -> None:
        """Record one step's loss."""
        if len(self.first_losses) < FIRST_STEPS:
            self.first_losses.append(loss)
        self.last_losses = [*self.last_losses[1 - LAST_STEPS :], loss]

    def add_time(self, tokens: int, step_time_s: float) -> None:
        """Add a step's tokens and duration to the totals."""
        self.tokens += tokens
        self.training_s += step_time_s

    def write_result(
        self, step: int, mesh: Mesh, reason: Literal["finished", "stopped", "diverged"]
    ) -> None:
        """Write result.json, on the first rank of each node."""
        if not mesh.is_first_here:
            return
        saved = self.checkpoint
        if saved is not None and saved.parent != self.directory.checkpoints:
            saved = None  # it was only read from elsewhere
        result = Result(
            finished=reason == "finished",
            step=step,
            loss_first=mean(self.first_losses),
            loss_last=mean(self.last_losses),
            eval_loss=self.scores and self.scores.loss,
            eval_accuracy=self.scores and self.scores.accuracy,
            tokens_per_s=self.tokens / self.training_s if self.training_s else None,
            wall_s=time.perf_counter() - self.started,
            checkpoint=None if saved is None else saved.name,
            sample=None,
            peak_gib=self.peak_gib if all(self.peak_gib) else [],
            reason=reason,
            missing=self.missing,
        )
        write_atomically(self.directory.result, json_bytes(result))


def mean(values: list[float]) -> float | None:
    """Return the mean, or None for an empty list."""
    return sum(values) / len(values) if values else None
