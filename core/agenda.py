"""An agenda: jobs of one lease in their order; whose turn it is, and whether all end in time. Pure.

Each job has its wall time as its budget: when that is used up the job is saved and ended, so that
no job can take the time of those behind it. "At the latest" is what comes if every job uses it up.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

from core.spec import format_duration
from core.states import LIVE_JOB, TERMINAL_JOB, JobState, Outcome
from core.words import in_words

# From the end of one job to the start of the next: its last checkpoint, its processes, clean check.
HANDOVER = timedelta(seconds=60)
LATE_S = 60  # less is not worth a word
MINUTE = 60


class OnFailure(StrEnum):
    """What becomes of the jobs that have not begun when one has failed."""

    GO_ON = "go_on"
    STOP = "stop"


class Standing(StrEnum):
    """How a job of an agenda stands."""

    WAITING = "waiting"
    PAUSED = "paused"
    """By its owner: the others do not wait for it, and it is not counted."""
    RUNNING = "running"
    DONE = "done"
    CUT = "cut"
    """Its budget was used up; it was saved and ended."""
    FAILED = "failed"
    CANCELLED = "cancelled"


STANDINGS = {
    JobState.QUEUED: Standing.WAITING,
    JobState.PAUSED: Standing.PAUSED,
    JobState.STARTING: Standing.RUNNING,
    JobState.RUNNING: Standing.RUNNING,
    JobState.STOPPING: Standing.RUNNING,
    JobState.SUCCEEDED: Standing.DONE,
    JobState.FAILED: Standing.FAILED,
    JobState.CANCELLED: Standing.CANCELLED,
}


@dataclass(frozen=True)
class Item:
    """A job of an agenda and how far it is."""

    name: str
    slots: int
    budget_s: float
    """Its wall time."""
    expected_s: float | None = None
    """By its plan; None where the speed of the hardware is not known."""
    state: JobState = JobState.QUEUED
    reason_code: str = ""
    started_at: datetime | None = None
    """When its first attempt began."""
    ended_at: datetime | None = None
    used_s: float = 0.0
    """Of the budget, until now."""
    progress: float = 0.0
    """The share of its steps that is done, from 0 to 1."""

    @property
    def standing(self) -> Standing:
        """How it stands."""
        return standing_of(self.state, self.reason_code)

    @property
    def left_s(self) -> float:
        """What is left of its budget."""
        return max(0.0, self.budget_s - self.used_s)

    @property
    def likely_left_s(self) -> float | None:
        """How long it goes on at the speed it had so far; by its plan before it has any. None where
        neither is known."""
        if self.progress > 0 and self.used_s > 0:
            likely = self.used_s * (1 - self.progress) / self.progress
        elif self.expected_s is not None:
            likely = max(0.0, self.expected_s - self.used_s)
        else:
            return None
        return min(likely, self.left_s)


class Span(NamedTuple):
    """From when to when a job has, had or will have its slots."""

    start: datetime
    end: datetime


@dataclass(frozen=True)
class Line:
    """A job of an agenda against the lease."""

    item: Item
    planned: Span
    """As it was meant when the lease began: every job before it uses its whole budget."""
    latest: Span | None
    """As things stand, at the latest; None for a job that never ran and will not."""
    likely: Span | None
    """The same at the speed that is expected; None where that is not known."""
    late_s: int
    """Behind what was planned, in seconds; 0 where that is less than a minute."""
    fits: bool
    """It ends before the jobs of the lease are stopped, even at the latest."""


@dataclass(frozen=True)
class Outlook:
    """What is to be said of an agenda at one moment."""

    lines: Sequence[Line]
    begins: datetime
    usable_end: datetime
    spare_s: int
    """From its end, at the latest, to the end of the lease; negative: it is over by so much."""
    likely_spare_s: int | None
    first_cut: int | None
    """Index of the first job that would not end in time; None: all fit."""

    @property
    def fits(self) -> bool:
        """Whether every job ends in time, even if all use up their budgets."""
        return self.first_cut is None


def outlook(
    items: Sequence[Item],
    *,
    begins: datetime,
    usable_end: datetime,
    now: datetime,
    slots: int,
    side_by_side: bool,
) -> Outlook:
    """An agenda against a lease whose `slots` it may use from `begins` to `usable_end`."""
    since = max(now, begins)
    fresh = [Item(item.name, item.slots, item.budget_s) for item in items]
    planned = lay_out(fresh, _left_s, now=begins, slots=slots, side_by_side=side_by_side)
    latest = lay_out(items, _left_s, now=since, slots=slots, side_by_side=side_by_side)
    likely = lay_out(items, _likely_s, now=since, slots=slots, side_by_side=side_by_side)
    guessed = [
        index
        for index, (item, span) in enumerate(zip(items, likely, strict=True))
        if span is not None and item.state not in TERMINAL_JOB and item.likely_left_s is None
    ]
    for index in range(guessed[0] if guessed else len(items), len(items)):
        likely[index] = None  # it depends on what is not known
    lines = [
        _line(*row, usable_end=usable_end)
        for row in zip(items, planned, latest, likely, strict=True)
    ]
    return Outlook(
        lines=lines,
        begins=begins,
        usable_end=usable_end,
        spare_s=_spare_s(latest, usable_end, since),
        likely_spare_s=None if guessed else _spare_s(likely, usable_end, since),
        first_cut=next((index for index, line in enumerate(lines) if not line.fits), None),
    )


def lay_out(
    items: Sequence[Item],
    length_s: Callable[[Item], float],
    *,
    now: datetime,
    slots: int,
    side_by_side: bool,
) -> list[Span | None]:
    """When each job has its slots, if those that run or wait go on for `length_s` from `now` on.

    They start in their order. Side by side, one starts as soon as the one before it has started and
    there are slots; otherwise when all before it have ended. None: it never ran, and is not to run.
    """
    spans = [_known(item, length_s, now) for item in items]
    earliest = now
    for index, item in enumerate(items):
        if item.state is not JobState.QUEUED:
            continue
        taken = [(span, one.slots) for span, one in zip(spans, items, strict=True) if span]
        free_again = [span.end + HANDOVER for span, _ in taken]
        if side_by_side:
            moments = sorted({earliest, *(at for at in free_again if at > earliest)})
            room = slots - item.slots
            earliest = next((at for at in moments if _held(taken, at) <= room), moments[-1])
        else:
            earliest = max([earliest, *free_again])
        spans[index] = Span(earliest, earliest + timedelta(seconds=length_s(item)))
    return spans


def standing_of(state: JobState, reason_code: str) -> Standing:
    """How a job of an agenda stands."""
    if state is JobState.FAILED and reason_code == Outcome.TIME_LIMIT:
        return Standing.CUT
    return STANDINGS[state]


def summary(found: Outlook) -> str:
    """The answer in a few sentences: whether it fits, by how much, what would be cut, what is
    late."""
    open_ones = [line for line in found.lines if line.item.state not in TERMINAL_JOB]
    if not open_ones:
        return _result(found)
    told = [_fit(found) if found.fits else _misfit(found)]
    late = [line for line in open_ones if line.late_s]
    if late:
        most = max(line.late_s for line in late)
        names = in_words([line.item.name for line in late])
        told.append(f"Late: {names}, by {_up(most)}{' at most' if len(late) > 1 else ''}.")
    paused = [line.item.name for line in open_ones if line.item.standing is Standing.PAUSED]
    if paused:
        told.append(f"Paused, and not counted: {in_words(paused)}.")
    return " ".join(told)


def rules(*, side_by_side: bool, on_failure: OnFailure) -> str:
    """How an agenda is run, in a sentence."""
    order = (
        "In this order, beside each other where slots are free"
        if side_by_side
        else "One after the other"
    )
    then = (
        "the others go on"
        if on_failure is OnFailure.GO_ON
        else "those that have not begun are cancelled"
    )
    return f"{order}; if one fails, {then}. A job whose wall time is used up is saved and ended."


# ------------------------------------------------------------------------------------ whose turn


@dataclass(frozen=True)
class Member:
    """A job of an agenda, as the scheduler looks at it."""

    job_id: str
    state: JobState
    reason_code: str
    left_s: float
    """Of its wall time."""


@dataclass(frozen=True)
class Turn:
    """Where a job that waits stands in its agenda."""

    agenda_id: str
    ahead: tuple[str, ...]
    """Jobs that it waits for; none: it is its turn."""
    waiting_ahead_s: float = 0.0
    """How long those of them take that wait too, with the hand-over after each, at the latest."""
    called_off_by: str | None = None
    """The failed job because of which it is not to run at all."""


def turns(
    agenda_id: str, members: Sequence[Member], *, side_by_side: bool, on_failure: OnFailure
) -> dict[str, Turn]:
    """The turn of each job that is queued, by its id.

    One after the other: it waits for those before it that have not ended, and for whatever of those
    behind it runs already, because it was paused or queued again. Side by side: for those before it
    that have not started. A job that its owner has paused is not waited for.
    """
    failed = None
    if on_failure is OnFailure.STOP:
        standings = ((m.job_id, standing_of(m.state, m.reason_code)) for m in members)
        failed = next((job_id for job_id, how in standings if how is Standing.FAILED), None)
    found = {}
    for index, member in enumerate(members):
        if member.state is not JobState.QUEUED:
            continue
        before = [m for m in members[:index] if m.state in (JobState.QUEUED, *LIVE_JOB)]
        waiting = [m for m in before if m.state is JobState.QUEUED]
        behind = [m for m in members[index + 1 :] if m.state in LIVE_JOB]
        is_turn = side_by_side and not waiting
        ahead = [] if is_turn else before if side_by_side else before + behind
        found[member.job_id] = Turn(
            agenda_id=agenda_id,
            ahead=tuple(m.job_id for m in ahead),
            waiting_ahead_s=sum(m.left_s + HANDOVER.total_seconds() for m in waiting),
            called_off_by=failed,
        )
    return found


# ------------------------------------------------------------------------------------------ parts


def _left_s(item: Item) -> float:
    return item.left_s


def _likely_s(item: Item) -> float:
    return item.left_s if item.likely_left_s is None else item.likely_left_s


def _known(item: Item, length_s: Callable[[Item], float], now: datetime) -> Span | None:
    """Of a job that runs or has run; None of one that waits, or never ran."""
    if item.state in LIVE_JOB:
        return Span(item.started_at or now, now + timedelta(seconds=length_s(item)))
    if item.ended_at is not None and item.started_at is not None:
        return Span(item.started_at, item.ended_at)
    return None


def _held(taken: Sequence[tuple[Span, int]], at: datetime) -> int:
    """The slots that are not free at a moment, those that are being handed over included."""
    return sum(slots for span, slots in taken if span.start <= at < span.end + HANDOVER)


def _line(
    item: Item,
    planned: Span | None,
    latest: Span | None,
    likely: Span | None,
    *,
    usable_end: datetime,
) -> Line:
    assert planned is not None, "all jobs are planned"
    late_s = 0 if latest is None else int((latest.end - planned.end).total_seconds())
    return Line(
        item=item,
        planned=planned,
        latest=latest,
        likely=likely,
        late_s=late_s if late_s >= LATE_S else 0,
        fits=latest is None or latest.end <= usable_end,
    )


def _spare_s(spans: Sequence[Span | None], usable_end: datetime, since: datetime) -> int:
    ends = [span.end for span in spans if span is not None]
    return int((usable_end - max(ends, default=since)).total_seconds() // 1)


def _fit(found: Outlook) -> str:
    told = f"Fits with {_down(found.spare_s)} to spare, even if every job uses up its wall time."
    if found.likely_spare_s is not None and found.likely_spare_s - found.spare_s >= MINUTE:
        told += f" As it looks, with {_down(found.likely_spare_s)}."
    return told


def _misfit(found: Outlook) -> str:
    over = _up(-found.spare_s)
    late_ones = [line for line in found.lines if line.latest is not None and not line.fits]
    ends = found.usable_end
    stopped = [one.item.name for one in late_ones if one.latest and one.latest.start < ends]
    missed = [one.item.name for one in late_ones if one.latest and one.latest.start >= ends]
    told = f"Over by {over} if every job uses up its wall time:"
    told += f" {in_words(stopped)} would be stopped," if stopped else ""
    told += f" {in_words(missed)} would not start," if missed else ""
    told = f"{told.rstrip(':,')}. Cut {over} of wall time, or leave jobs out."
    if found.likely_spare_s is not None and found.likely_spare_s >= 0:
        told += f" As it looks, all end with {_down(found.likely_spare_s)} to spare."
    return told


def _result(found: Outlook) -> str:
    standings = [line.item.standing for line in found.lines]
    counts = [(standing, standings.count(standing)) for standing in Standing]
    told = ", ".join(f"{count} {standing}" for standing, count in counts if count)
    return f"Over: {told}."


def _down(seconds: float) -> str:
    """Full minutes, rounded down; seconds where there are few."""
    return _rounded(seconds, 0)


def _up(seconds: float) -> str:
    return _rounded(seconds, MINUTE - 1)


def _rounded(seconds: float, add: int) -> str:
    whole = int(seconds)
    return format_duration(whole if whole < 2 * MINUTE else (whole + add) // MINUTE * MINUTE)
