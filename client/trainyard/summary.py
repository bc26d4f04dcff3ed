"""How a job ended, in a few lines: loss, speed, time, where the checkpoint is, a sample of text."""

from collections.abc import Sequence

from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from trainyard.inert import inert, one_line
from trainyard.views import Job
from trainyard.wording import duration, number, sparkline

SAMPLE_LINES = 12
GOOD, BAD, NEUTRAL = "bold green", "bold red", "bold"


def show_summary(job: Job, console: Console, *, losses: Sequence[float] = ()) -> None:
    """Print the end of `job`; `losses` add a small curve."""
    style = {"succeeded": GOOD, "failed": BAD}.get(job.state, NEUTRAL)
    console.print(Text(one_line(f"{job.name} {job.state}"), style=style))
    if job.reason and job.state != "succeeded":
        console.print(Text(inert(job.reason)), soft_wrap=True)
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts(job, losses):
        table.add_row(name, Text(value))
    console.print(table)
    if job.result is not None and job.result.sample:
        lines = inert(job.result.sample).splitlines()
        shown = "\n".join(lines[:SAMPLE_LINES])
        console.print(Panel(Text(shown), title="sample of generated text", title_align="left"))


def facts(job: Job, losses: Sequence[float] = ()) -> list[tuple[str, str]]:
    """Name and sentence of what there is to tell."""
    found = [("job", one_line(job.id))]
    result = job.result
    if result is None:
        found.append(("steps", f"{job.step:,} of {job.steps:,}"))
        return found
    curve = sparkline(losses)
    change = f"{number(result.loss_first)} → {number(result.loss_last)}"
    held_out = f", {number(result.eval_loss)} on held-out text" if result.eval_loss else ""
    found.append(("loss", f"{change}{held_out}{'  ' + curve if curve else ''}"))
    found.append(("steps", f"{result.step:,} of {job.steps:,}"))
    if result.tokens_per_s is not None:
        found.append(("speed", f"{number(round(result.tokens_per_s))} tokens/s"))
    found.append(("time", times(job)))
    if result.checkpoint is not None:
        found.append(
            ("checkpoint", one_line(f"{result.checkpoint}; list: trainyard checkpoints {job.id}"))
        )
    return found


def times(job: Job) -> str:
    """Training time and time since the job was submitted."""
    assert job.result is not None
    training = f"{duration(job.result.wall_s)} of training"
    if job.finished_at is None:
        return training
    return f"{training}, {duration((job.finished_at - job.created_at).total_seconds())} in all"
