"""Summary of a job's end in a few lines: loss, speed, time, checkpoint, a sample of text."""

from collections.abc import Sequence

from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from trainyard.inert import inert, one_line
from trainyard.views import Job
from trainyard.wording import duration, number, sparkline, steps_text

SAMPLE_LINES, SAMPLE_WIDTH = 12, 100
NAME_WIDTH = 12
GOOD, BAD, NEUTRAL = "bold green", "bold red", "bold"


def show_summary(job: Job, console: Console, *, losses: Sequence[float] = ()) -> None:
    """Print the summary of `job`; `losses` add a small curve."""
    style = {"succeeded": GOOD, "failed": BAD}.get(job.state, NEUTRAL)
    console.print(Text(one_line(f"{job.name} {job.state}"), style=style))
    if job.reason and job.state != "succeeded":
        console.print(Text(inert(job.reason)), soft_wrap=True)
    for name, value in facts(job, losses):
        console.print(Text(f"{name:<{NAME_WIDTH}}", style="dim") + Text(value), soft_wrap=True)
    if job.result is not None and job.result.sample:
        _show_sample(job.result.sample, console)


def _show_sample(sample: str, console: Console) -> None:
    lines = inert(sample).splitlines()[:SAMPLE_LINES]
    if console.is_terminal:
        title, width = "sample of generated text", min(console.width, SAMPLE_WIDTH)
        text = Text("\n".join(lines))
        console.print(Panel(text, title=title, title_align="left", width=width))
    else:
        console.print(Text("\n  ".join(["sample of generated text:", *lines])), soft_wrap=True)


def facts(job: Job, losses: Sequence[float] = ()) -> list[tuple[str, str]]:
    """Return name and sentence of each available fact."""
    found = [("job", one_line(job.id))]
    result = job.result
    if result is None:
        found.append(("steps", steps_text(job.step, job.steps)))
        return found
    curve = sparkline(losses)
    change = f"{number(result.loss_first)} → {number(result.loss_last)}"
    held_out = f", {number(result.eval_loss)} on held-out data" if result.eval_loss else ""
    if result.loss_first is not None or result.loss_last is not None:
        found.append(("loss", f"{change}{held_out}{'  ' + curve if curve else ''}"))
    if result.eval_accuracy is not None:
        found.append(("accuracy", f"{result.eval_accuracy:.1%} of the held-out images"))
    found.append(("steps", steps_text(result.step, job.steps)))
    if result.tokens_per_s is not None:
        found.append(("speed", f"{number(round(result.tokens_per_s))} {job.plan.unit}/s"))
    found.append(("time", times(job)))
    if result.checkpoint is not None:
        found.append(
            (
                "checkpoint",
                one_line(f"{result.checkpoint}; trainyard download {job.id} {result.checkpoint}"),
            )
        )
    return found


def times(job: Job) -> str:
    """Return the training time and the time since the job was submitted."""
    assert job.result is not None
    training = f"{duration(job.result.wall_s)} of training"
    if job.finished_at is None:
        return training
    return f"{training}, {duration((job.finished_at - job.created_at).total_seconds())} in all"
