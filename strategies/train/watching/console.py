"""Log lines of a rank, for people. Series of numbers are in metrics.jsonl, not here."""

import os
import platform
import sys

import torch

from strategies.plan.learning_rate import scaling_policy
from strategies.plan.run_directory import RunPlan
from strategies.plan.words import counted
from strategies.train.checkpoints.checkpoint import Progress
from strategies.train.mesh import Mesh

LINES_PER_RUN = 40  # a long run must not fill the node's disk with lines the metrics repeat


def introduce(run_plan: RunPlan, mesh: Mesh, progress: Progress) -> None:
    """Print this rank's place in the layout and the step it starts from."""
    layout = mesh.layout
    where = f"from step {progress.step:,}" if progress.step else "from the start"
    say(
        f"rank {mesh.rank} of {mesh.world_size} on {platform.node()} (pid {os.getpid()}, "
        f"{mesh.device}, {counted(torch.get_num_threads(), 'thread')}, torch {torch.__version__}): "
        f"{run_plan.plan.strategy}, pipeline {layout.pipeline}, replicate {layout.replicate}, "
        f"shard {layout.shard}, context {layout.context}, tensor {layout.tensor}, {where}"
    )
    policy = scaling_policy(run_plan.spec.training)
    if mesh.is_first and policy is not None:
        say(policy)


def tell_step(
    step: int, steps: int, *, loss: float, grad_norm: float, lr: float, tokens_per_s: float
) -> None:
    """Print about LINES_PER_RUN step lines per run: enough to see progress and speed in a log."""
    if step == 1 or step == steps or step % max(1, steps // LINES_PER_RUN) == 0:
        say(
            f"step: {step:,}/{steps:,}  loss: {loss:.4f}  grad_norm: {grad_norm:.4f}  "
            f"lr: {lr:.3e}  tokens_per_s: {tokens_per_s:,.0f}"
        )


def say(line: str) -> None:
    """Print a line and flush, because the log is read while it is written."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
