"""Agenda for people: the answer, its jobs, and a bar for each against the lease."""

from datetime import datetime

from rich.table import Table
from rich.text import Text

from trainyard.cli.output import print_table, say, state_text
from trainyard.inert import one_line
from trainyard.views import Agenda, AgendaJob, AgendaPlan
from trainyard.wording import duration, moment

BAR = 30  # columns from the first start to the end of the lease, or of the last job
WITHIN, AFTER, ELSEWHERE = "█", "▒", "·"
SHOWN = {"done": "succeeded", "waiting": "queued", "cut": "failed"}  # words with a shape and colour


def show_agenda(agenda: AgendaPlan | Agenda) -> None:
    """Print the answer first, then the jobs."""
    say(agenda.summary)
    say(agenda.rules)
    say(
        f"On {_nodes(agenda)}{f' in {agenda.lease}' if agenda.lease else ''}: from "
        f"{moment(agenda.begins)} to {moment(agenda.usable_end)}, when jobs in it are stopped."
    )
    say("")
    print_table(
        ["", "job", "state", "wall time", "start", "end", "late", f"{WITHIN} in the lease"],
        (
            (
                str(job.position),
                job.name,
                standing(job),
                duration(job.wall_time_s),
                _clock(job.start),
                _clock(job.end),
                _late(job),
                bar(job, agenda),
            )
            for job in agenda.jobs
        ),
        empty="",
        right=["", "wall time"],
    )


def jobs_table(agenda: AgendaPlan | Agenda) -> Table:
    """Return the same in short, for a display that is redrawn."""
    table = Table(box=None, pad_edge=False, show_header=False)
    for job in agenda.jobs:
        progress = f"{job.step:,}/{job.steps:,}" if job.steps else f"{job.step:,}"
        table.add_row(one_line(job.name), standing(job), progress, _late(job), bar(job, agenda))
    return table


def standing(job: AgendaJob) -> Text:
    """Return the job's state with shape and colour, in red if it would not end in time."""
    shown = state_text(SHOWN.get(job.standing, job.standing))
    shape = shown.plain.split(" ", 1)[0]
    style = shown.style if job.fits else "red"
    return Text(f"{shape} {one_line(job.standing)}", style=style, no_wrap=True)


def bar(job: AgendaJob, agenda: AgendaPlan | Agenda) -> str:
    """Return a bar of the job's time, from the lease's start to its end or that of the last job."""
    ends = [agenda.usable_end, *(one.end for one in agenda.jobs if one.end is not None)]
    whole_s = max(1.0, (max(ends) - agenda.begins).total_seconds())
    if job.start is None or job.end is None:
        return ELSEWHERE * BAR

    def column(at: datetime) -> int:
        return min(BAR, max(0, round(BAR * (at - agenda.begins).total_seconds() / whole_s)))

    first, stop = column(job.start), column(agenda.usable_end)
    first = min(first, BAR - 1)
    last = max(first + 1, column(job.end))
    return "".join(
        (WITHIN if place < stop else AFTER) if first <= place < last else ELSEWHERE
        for place in range(BAR)
    )


def _nodes(agenda: AgendaPlan | Agenda) -> str:
    many = agenda.nodes > 1
    return f"{agenda.nodes} nodes of {agenda.node_class}" if many else f"a {agenda.node_class}"


def _clock(at: datetime | None) -> str | None:
    return None if at is None else at.astimezone().strftime("%H:%M")


def _late(job: AgendaJob) -> str | None:
    if not job.fits:
        return "does not end in time" if not job.late_s else f"{job.late_s // 60} min, too late"
    return f"{job.late_s // 60} min" if job.late_s else None
