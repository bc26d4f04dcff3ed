"""Commands that watch: follow, logs, metrics."""

from collections.abc import Iterator
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from trainyard.cli.exit_codes import ExitCode
from trainyard.cli.finding import JOBS, JobKey
from trainyard.cli.output import (
    AsJson,
    console,
    note,
    print_json,
    print_json_line,
    print_table,
    say,
)
from trainyard.cli.session import connect
from trainyard.client import Trainyard
from trainyard.inert import inert
from trainyard.progress import follow
from trainyard.summary import show_summary
from trainyard.views import Job, LogLine
from trainyard.wording import number, sparkline

POLL_S = 1.0
LAST_LINES = 10
CLOCK = "time"  # time of each line: not a metric for people
QUIET_POLLS = 2


def follow_command(named: JobKey, as_json: AsJson = False) -> None:
    """Watch a job to its end; Ctrl-C stops only the watching. Exit code 1: it did not succeed."""
    with connect() as client:
        job_id = JOBS.id_of(client, named)
        follow_job(client, job_id, as_json=as_json)


def follow_job(client: Trainyard, job_id: str, *, as_json: bool) -> None:
    """Follow a job, show the summary, and exit with the code of its end."""
    try:
        if as_json:
            _stream_json(client, job_id)
            job = client.jobs.get(job_id)
        else:
            out = console()
            final = follow(client, job_id, out)
            job = final.job
            show_summary(job, out, losses=final.losses)
            _show_way_on(client, job)
    except KeyboardInterrupt as error:
        note(f"Stopped watching; the job continues. Watch again: trainyard follow {job_id}")
        raise typer.Exit(ExitCode.INTERRUPTED) from error
    if job.state != "succeeded":
        raise typer.Exit(ExitCode.JOB_FAILED)


def _show_way_on(client: Trainyard, job: Job) -> None:
    """Print the last words of the rank that is to blame, and where to look further."""
    if job.state == "failed":
        attempts = client.jobs.attempts(job.id)
        for line in attempts[-1].last_lines[-LAST_LINES:] if attempts else ():
            say(f"  | {line}")
        say(f"All of its output: trainyard logs {job.id}")
    say(f"Its page: {client.url}/jobs/{job.id}")


def logs(
    named: JobKey,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print new lines until the job has ended.")
    ] = False,
    rank: Annotated[
        int | None, typer.Option(min=-1, help="Only this rank; -1 is the launcher.")
    ] = None,
    search: Annotated[str | None, typer.Option(help="Only lines with this text.")] = None,
    as_json: AsJson = False,
) -> None:
    """Print the output of every rank. With --json one object per line."""
    out = console()
    is_empty = True
    with connect() as client:
        job_id = JOBS.id_of(client, named)
        try:
            for line in _log_lines(client, job_id, rank=rank, search=search, follow=follow):
                is_empty = False
                if as_json:
                    print_json_line(line.raw)
                else:
                    _print_log_line(out, line)
        except KeyboardInterrupt as error:
            note("Stopped watching; the job continues.")
            raise typer.Exit(ExitCode.INTERRUPTED) from error
    if is_empty and not as_json:
        note("No such lines." if search or rank is not None else "The job has printed nothing.")


def metrics(
    named: JobKey,
    keys: Annotated[
        str | None, typer.Option(help="Only these, with commas, such as loss,tokens_per_s.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show every metric: first, last, lowest and highest value, and its shape."""
    wanted = [key.strip() for key in keys.split(",") if key.strip()] if keys else None
    with connect() as client:
        job_id = JOBS.id_of(client, named)
        measured = client.jobs.metrics(job_id, wanted, resolution=1000)
    if as_json:
        print_json(measured.raw)
        return
    rows = []
    for series in measured.series:
        known = [value for value in series.values if value is not None]
        if not known or (series.key == CLOCK and wanted is None):
            continue
        low = min([*known, *(value for value in series.min if value is not None)])
        high = max([*known, *(value for value in series.max if value is not None)])
        last_step = f"{series.steps[-1]:,}"
        ends = [number(value) for value in (known[0], known[-1], low, high)]
        rows.append((series.key, series.rank, *ends, last_step, sparkline(known)))
    print_table(
        ["metric", "rank", "first", "last", "lowest", "highest", "last step", "shape"],
        rows,
        empty="No metrics yet.",
        right=["rank", "first", "last", "lowest", "highest", "last step"],
    )


def _stream_json(client: Trainyard, job_id: str) -> None:
    for event in client.jobs.stream(job_id):
        print_json_line({"event": event.kind, "data": event.data})


def _log_lines(
    client: Trainyard, job_id: str, *, rank: int | None, search: str | None, follow: bool
) -> Iterator[LogLine]:
    """Yield every line once; with `follow` until the job has ended and its last line was seen."""
    cursor: str | None = None
    quiet_polls = 0  # since the job ended: its last lines may arrive after its end
    while True:
        is_over = follow and client.jobs.get(job_id).is_final  # asked before the lines
        page = client.jobs.logs(job_id, rank=rank, search=search, cursor=cursor)
        yield from page.lines
        cursor = page.cursor or cursor
        if page.has_more:
            continue
        quiet_polls = quiet_polls + 1 if is_over and not page.lines else 0
        if not follow or quiet_polls > QUIET_POLLS:
            return
        client.connection.sleep(POLL_S)


def _print_log_line(out: Console, line: LogLine) -> None:
    who = "launcher" if line.rank < 0 else f"rank {line.rank}"
    style = "yellow" if line.stream == "stderr" else ""
    prefix = Text(f"{line.epoch} {who:>8} ", style="dim")
    out.print(prefix + Text(inert(line.text).replace("\n", " "), style=style), soft_wrap=True)
