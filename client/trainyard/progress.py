"""Display of a job until its end: live on a terminal, as plain lines elsewhere."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from trainyard.client import Trainyard
from trainyard.errors import ApiError
from trainyard.inert import one_line
from trainyard.transport.decoding import decode
from trainyard.transport.stream import DISCONNECTED, END, RECONNECTED, StreamEvent
from trainyard.views import Event, Job, LogLine
from trainyard.wording import clock_time, counted, duration, moment, number, sparkline, steps_text

PLAIN_EVERY_S = 5.0
REFRESH_PER_S = 8
MAX_LOSSES = 4096  # twice the widest plausible sparkline; older points are thinned

Clock = Callable[[], datetime]


@dataclass(frozen=True)
class FinalJob:
    """A job that has ended, and the losses seen on the way."""

    job: Job
    losses: tuple[float, ...]

    @property
    def succeeded(self) -> bool:
        """True if the job trained to the end."""
        return self.job.state == "succeeded"


@dataclass
class JobProgress:
    """Knowledge of the job while it is followed."""

    job: Job
    losses: list[float] = field(default_factory=list)
    last_loss_step: int = -1
    last_event_id: int = -1
    last_event_line: str = ""
    lost: bool = False

    def take(self, event: StreamEvent) -> list[str]:
        """Apply one event of the stream; return the lines to print above the display."""
        if event.kind == DISCONNECTED:
            self.lost = True
            return ["Connection to the server lost; reconnecting. The job continues."]
        if event.kind == RECONNECTED:
            self.lost = False
            return ["Connected again."]
        if event.kind in ("job", END):
            self._take_job(event.data)
        elif event.kind == "metrics":
            self._take_metrics(event.data)
        elif event.kind == "event":
            return self._take_event(event.data)
        elif event.kind == "log" and self.is_program:
            return [output_line(decode(LogLine, line), self.job) for line in event.data["lines"]]
        return []

    @property
    def is_program(self) -> bool:
        """True if the job runs a program of its owner, whose output is what they wait for."""
        return "script" in self.job.spec

    def add_loss(self, step: int, loss: float | None) -> None:
        """Add the loss of a step that is newer than all others."""
        if step <= self.last_loss_step or loss is None:
            return
        self.last_loss_step = step
        self.losses.append(loss)
        if len(self.losses) > MAX_LOSSES:
            self.losses = self.losses[::2]

    def eta_s(self) -> float | None:
        """Return the seconds of training left at the present speed."""
        job = self.job
        if not job.tokens_per_s or job.state != "running":
            return None
        return (job.steps - job.step) * job.plan.tokens_per_step / job.tokens_per_s

    def _take_job(self, document: Any) -> None:
        if isinstance(document, dict) and document.get("id", self.job.id) == self.job.id:
            self.job = decode(Job, {**self.job.raw, **document})
            self.add_loss(self.job.step, self.job.loss)

    def _take_metrics(self, document: Any) -> None:
        for step, loss in losses_of(document):
            self.add_loss(step, loss)

    def _take_event(self, document: Any) -> list[str]:
        happened = decode(Event, document)
        if happened.id <= self.last_event_id:
            return []
        self.last_event_id = happened.id
        line = f"{clock_time(happened.at)}  {one_line(happened.message)}"
        if line == self.last_event_line:
            return []  # the changes of the job's and its attempt's state share one sentence
        self.last_event_line = line
        return [line]


def follow(
    client: Trainyard, job_id: str, console: Console, *, clock: Clock | None = None
) -> FinalJob:
    """Show the job until it has ended, and return it.

    Ctrl-C raises KeyboardInterrupt and leaves the job running. Raises ConnectionFailed if the
    server stays unreachable for 5 minutes.
    """
    now = clock or _utc_now
    watched = JobProgress(client.jobs.get(job_id))
    _catch_up(client, watched)
    events = client.jobs.stream(job_id)
    if console.is_terminal:
        _show_live(watched, events, console, now)
    else:
        _show_lines(watched, events, console, now)
    watched.job = client.jobs.get(job_id)
    return FinalJob(watched.job, tuple(watched.losses))


def output_line(line: LogLine, job: Job) -> str:
    """Return a line of output, with its rank if the job has several."""
    if job.plan.world_size == 1 and line.rank == 0:
        return one_line(line.text)
    return one_line(f"[{'launcher' if line.rank < 0 else line.rank}] {line.text}")


def losses_of(document: Any) -> Iterator[tuple[int, float]]:
    """Yield (step, loss) of every line of a `metrics` event that has both."""
    lines = document.get("lines") if isinstance(document, dict) else None
    for line in lines if isinstance(lines, list) else []:
        if not isinstance(line, dict):
            continue
        step, loss = line.get("step"), line.get("loss")
        if isinstance(step, int) and isinstance(loss, int | float):
            yield step, float(loss)


def _catch_up(client: Trainyard, watched: JobProgress) -> None:
    """Load the losses so far, if the job began before it was followed."""
    if watched.job.step == 0:
        return
    try:
        metrics = client.jobs.metrics(watched.job.id, ["loss"], resolution=200)
    except ApiError:
        return  # the curve then begins here; this must not stop the display
    for series in metrics.series:
        if series.key == "loss" and series.rank == 0:
            for step, loss in zip(series.steps, series.values, strict=True):
                watched.add_loss(step, loss)


# -------------------------------------------------------------------------------------- terminal


@contextmanager
def _live(console: Console, watched: JobProgress, now: Clock) -> Iterator[Live]:
    with Live(
        console=console,
        get_renderable=lambda: render(watched, now(), width=console.width),
        refresh_per_second=REFRESH_PER_S,
        transient=True,
    ) as live:
        yield live


def _show_live(
    watched: JobProgress, events: Iterator[StreamEvent], console: Console, now: Clock
) -> None:
    console.print(Text(headline(watched.job), style="bold"))
    with _live(console, watched, now):
        for event in events:
            for line in watched.take(event):
                console.print(Text(line))


def render(watched: JobProgress, now: datetime, *, width: int) -> RenderableType:
    """Return the display at one moment, at most `width` columns wide."""
    job = watched.job
    lines: list[RenderableType] = []
    if job.is_final:
        return _line(f"{job.state}; its files are being saved", width, style="cyan")
    if job.state in ("running", "stopping") and job.step:
        lines += [_bar_line(job, width), _numbers_line(watched, now, width)]
    else:
        waited = duration((now - job.created_at).total_seconds())
        lines.append(_line(f"{job.state}, {waited} since it was submitted", width, style="cyan"))
    if job.state != "running" and job.reason:
        lines.append(_line(job.reason, width * 2))
    if job.predicted_start is not None and job.state == "queued":
        lines.append(_line(f"Predicted start: {moment(job.predicted_start, now=now)}", width))
    if watched.lost:
        lines.append(_line("The server does not answer; trying again.", width, style="yellow"))
    return Group(*lines)


def _bar_line(job: Job, width: int) -> RenderableType:
    grid = Table.grid(padding=(0, 1))
    share = job.step / job.steps if job.steps else 0.0
    grid.add_row(
        Text(one_line(job.state), style="cyan" if job.state == "running" else "yellow"),
        ProgressBar(
            total=max(1, job.steps), completed=job.step, width=max(10, min(48, width - 40))
        ),
        Text(f"step {steps_text(job.step, job.steps, separator='/')}"),
        Text(f"{share:.0%}" if job.steps else ""),
    )
    return grid


def _numbers_line(watched: JobProgress, now: datetime, width: int) -> Text:
    job = watched.job
    parts = [
        f"loss {number(job.loss)} {sparkline(watched.losses, width=min(24, width // 4))}".rstrip(),
        f"{number(job.tokens_per_s and round(job.tokens_per_s))} {job.plan.unit}/s",
        f"ETA {duration(watched.eta_s())}",
    ]
    if job.started_at is not None:
        parts.append(f"elapsed {duration((now - job.started_at).total_seconds())}")
    return _line("  ".join(parts), width)


def _line(text: str, width: int, *, style: str = "") -> Text:
    line = Text(one_line(text), style=style)
    line.truncate(max(20, width), overflow="ellipsis")
    return line


# ----------------------------------------------------------------------------------- plain lines


def _show_lines(
    watched: JobProgress, events: Iterator[StreamEvent], console: Console, now: Clock
) -> None:
    console.print(Text(headline(watched.job)), soft_wrap=True)
    said = ""
    said_at = -PLAIN_EVERY_S
    for event in events:
        for line in watched.take(event):
            console.print(Text(line), soft_wrap=True)
        if event.kind != "job":
            continue
        line = plain_line(watched)
        is_due = time.monotonic() - said_at >= PLAIN_EVERY_S
        was_told = watched.last_event_line.endswith(one_line(watched.job.reason or "-"))
        if line != said and is_due and not watched.job.is_final and not was_told:
            console.print(Text(f"{clock_time(now())}  {line}"), soft_wrap=True)
            said, said_at = line, time.monotonic()


def plain_line(watched: JobProgress) -> str:
    """Return the display as one line."""
    job = watched.job
    if not job.step or job.state not in ("running", "stopping"):
        return one_line(f"{job.state}: {job.reason}" if job.reason else job.state)
    if not job.steps:
        return one_line(f"{job.state}  step {job.step}  loss {number(job.loss)}")
    share = job.step / job.steps
    return one_line(
        f"{job.state}  step {job.step}/{job.steps}  {share:.0%}  loss {number(job.loss)}  "
        f"{number(job.tokens_per_s and round(job.tokens_per_s))} {job.plan.unit}/s  "
        f"ETA {duration(watched.eta_s())}"
    )


def headline(job: Job) -> str:
    """Return the line that names the job, its layout and the zone of all times shown."""
    zone = datetime.now().astimezone().strftime("%z")
    layout = f"{job.plan.strategy} on {counted(job.plan.world_size, 'rank')}"
    steps = f", {job.steps:,} steps" if job.steps else ""
    return one_line(f"{job.name}  {job.id}  {layout}{steps}; times are UTC{zone}")


def _utc_now() -> datetime:
    return datetime.now(UTC)
