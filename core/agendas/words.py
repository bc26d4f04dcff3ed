"""Sentences about an agenda, in plain words. Pure."""

from core.agendas.agenda import (
    AgendaItem,
    JobSpan,
    Outlook,
    Standing,
)
from core.base.words import clock, in_words
from core.spec.spec import format_duration
from core.states import LIVE_JOB, TERMINAL_JOB
from core.tables.kinds import OnFailure

MINUTE = 60


def summary(found: Outlook) -> str:
    """Summarize it in a few sentences: its fit, its slack, jobs that would be cut or are late."""
    open_ones = [line for line in found.lines if line.item.state not in TERMINAL_JOB]
    if not open_ones:
        return _result(found)
    told = [_fit(found) if found.fits else _misfit(found)]
    late = [line for line in open_ones if line.late_s]
    if late:
        most = max(line.late_s for line in late)
        names = in_words([line.item.name for line in late])
        told.append(f"Late: {names}, by {_up(most)}{' at most' if len(late) > 1 else ''}.")
    if late or not found.fits:
        told += [_in_the_way(found, item, span) for item, span in found.in_the_way]
    paused = [line.item.name for line in open_ones if line.item.standing is Standing.PAUSED]
    if paused:
        told.append(f"Paused, and not counted: {in_words(paused)}.")
    return " ".join(told)


def rules(*, side_by_side: bool, on_failure: OnFailure) -> str:
    """Describe the order in which an agenda is run, in a sentence."""
    order = (
        "In this order, side by side where slots are free"
        if side_by_side
        else "One after the other"
    )
    then = (
        "the others continue"
        if on_failure is OnFailure.GO_ON
        else "the jobs that have not begun are cancelled"
    )
    return f"{order}; if one fails, {then}. A job that uses up its wall time is saved and ended."


def _fit(found: Outlook) -> str:
    told = f"It fits with {_down(found.spare_s)} to spare, even if every job uses up its wall time."
    if found.likely_spare_s is not None and found.likely_spare_s - found.spare_s >= MINUTE:
        told += f" At the present speed, with {_down(found.likely_spare_s)} to spare."
    return told


def _misfit(found: Outlook) -> str:
    over = _up(-found.spare_s)
    late_ones = [line for line in found.lines if line.latest is not None and not line.fits]
    ends = found.usable_end
    stopped = [one.item.name for one in late_ones if one.latest and one.latest.start < ends]
    missed = [one.item.name for one in late_ones if one.latest and one.latest.start >= ends]
    told = f"It is too long by {over} if every job uses up its wall time:"
    told += f" {in_words(stopped)} would be stopped," if stopped else ""
    told += f" {in_words(missed)} would not start," if missed else ""
    told = f"{told.rstrip(':,')}. Reduce the wall time by {over}, or leave jobs out."
    if found.likely_spare_s is not None and found.likely_spare_s >= 0:
        told += f" At the present speed, all jobs end with {_down(found.likely_spare_s)} to spare."
    return told


def _in_the_way(found: Outlook, item: AgendaItem, span: JobSpan) -> str:
    until = clock(min(span.end, found.usable_end), found.now)
    since = "" if item.state in LIVE_JOB else f" from {clock(span.start, found.now)}"
    on = f" on {len(span.nodes)} of the {found.num_nodes} nodes" if found.num_nodes > 1 else ""
    return (
        f"{item.name} holds {item.slots} of the {found.slots} slots{on}{since} until {until} "
        "at the latest."
    )


def _result(found: Outlook) -> str:
    standings = [line.item.standing for line in found.lines]
    counts = [(standing, standings.count(standing)) for standing in Standing]
    told = ", ".join(f"{count} {standing}" for standing, count in counts if count)
    return f"Over: {told}."


def _down(seconds: float) -> str:
    """Format full minutes, rounded down; seconds where there are few."""
    return _rounded(seconds, 0)


def _up(seconds: float) -> str:
    return _rounded(seconds, MINUTE - 1)


def _rounded(seconds: float, add: int) -> str:
    whole = int(seconds)
    return format_duration(whole if whole < 2 * MINUTE else (whole + add) // MINUTE * MINUTE)
