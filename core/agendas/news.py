"""Unasked news for the owner of an agenda: that it is late, and which jobs were cut. Pure."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from core.agendas.agenda import HANDOVER, LATE_S, Outlook, OutlookLine, Standing
from core.agendas.words import summary
from core.base.words import clock, in_words
from core.notices.notices import NoticeKind
from core.states import TERMINAL_JOB

WHOLE = ""  # `about` of news on the whole agenda, not on one of its jobs


@dataclass(frozen=True)
class AgendaNews:
    """One message, sent once."""

    kind: NoticeKind
    about: str
    """Id of the job, or WHOLE."""
    message: str


Told = Collection[tuple[str, str]]
"""Kind and `about` of the news that its owner has been told."""


def news(
    found: Outlook, *, called: str, last_leases: Sequence[str], job_ids: Sequence[str], told: Told
) -> list[AgendaNews]:
    """Return the news of an agenda that its owner has not been told.

    `called`: its name and id; `last_leases`: those at whose end its jobs are stopped; `job_ids`: of
    its jobs, in their order. An agenda that did not fit as it was planned is not late: its owner
    knew, and wanted it anyway.
    """
    wanted = [
        _cut(line, job_id, called)
        for line, job_id in zip(found.lines, job_ids, strict=True)
        if line.item.standing is Standing.CUT
    ]
    left = [line for line in found.lines if line.item.state not in TERMINAL_JOB]
    left = [line for line in left if line.item.standing is not Standing.PAUSED]
    if left and found.now >= found.usable_end + HANDOVER:
        wanted.append(_over(left, found, called))
    elif found.begins <= found.now < found.usable_end and _has_become_late(found):
        wanted.append(_late(left, found, called, last_leases))
    return [one for one in wanted if (one.kind, one.about) not in told]


def _has_become_late(found: Outlook) -> bool:
    fitted = all(line.planned.end <= found.usable_end for line in found.lines)
    return fitted and not found.fits and -found.spare_s >= LATE_S


def _late(
    left: Sequence[OutlookLine], found: Outlook, called: str, last_leases: Sequence[str]
) -> AgendaNews:
    longer = ", ".join(f"trainyard leases extend {lease_id} 1" for lease_id in last_leases)
    advice = [f"extend the lease ({longer})"]
    waiting = [line.item.name for line in left if line.item.standing is Standing.WAITING]
    if waiting:
        advice.append(
            f"cancel jobs that you can do without among {in_words(waiting)} (trainyard cancel "
            "JOB), or submit them again with less wall time"
        )
    message = (
        f"{called} fitted into its lease and no longer does. {summary(found)} To finish in time: "
    )
    return AgendaNews(NoticeKind.AGENDA_LATE, WHOLE, f"{message}{'; or '.join(advice)}.")


def _cut(line: OutlookLine, job_id: str, called: str) -> AgendaNews:
    item = line.item
    reached = f" with {item.progress:.0%} of its steps done" if item.progress else ""
    message = (
        f"{item.name} ({job_id}) of {called} was cut short: its wall time was used "
        f"up{reached}. Its checkpoints are kept (trainyard checkpoints {job_id}). Submit it "
        "again with a longer resources.wall_time, or with fewer steps."
    )
    return AgendaNews(NoticeKind.AGENDA_CUT, job_id, message)


def _over(left: Sequence[OutlookLine], found: Outlook, called: str) -> AgendaNews:
    stopped = [line.item.name for line in left if line.item.started_at is not None]
    missed = [line.item.name for line in left if line.item.started_at is None]
    parts = [f"{in_words(stopped)} had not ended"] if stopped else []
    parts += [f"{in_words(missed)} had not begun"] if missed else []
    message = (
        f"{called} was cut short: its lease ended at {clock(found.usable_end, found.now)}, "
        f"and {', '.join(parts)}. These jobs are saved and continue in your next lease if it "
        "begins within the hour, otherwise in the queue. Book hours for them, or cancel "
        "them: trainyard agenda cancel."
    )
    return AgendaNews(NoticeKind.AGENDA_CUT, WHOLE, message)
