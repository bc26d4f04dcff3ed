"""An agenda: jobs of one lease in their order, and a check that all end in time. Pure.

Each job has its wall time as its budget: when that is used up the job is saved and ended, so that
no job can take the time of those behind it. "At the latest" assumes that every job uses it up.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

from core.states import LIVE_JOB, TERMINAL_JOB, JobState, Outcome

# From the end of one job to the start of the next: its last checkpoint, its processes, clean check.
HANDOVER = timedelta(seconds=60)
LATE_S = 60  # a smaller delay is not reported
# One person's jobs run first come, first served; a short one as if it had come an hour before.
SHORT_S = 3600
SHORT_LEAD = timedelta(hours=1)
FIRST = datetime.min.replace(tzinfo=UTC)


class Standing(StrEnum):
    """Standing of a job in its agenda."""

    WAITING = "waiting"
    PAUSED = "paused"
    """Paused by its owner: the others do not wait for it, and it is not counted."""
    RUNNING = "running"
    DONE = "done"
    CUT = "cut"
    """Cut: its budget was used up; it was saved and ended."""
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
class AgendaItem:
    """A job of an agenda and its progress."""

    name: str
    slots: int
    """Slots on each of its nodes."""
    budget_s: float
    """Wall time in seconds."""
    expected_s: float | None = None
    """Seconds by its plan; None where the speed of the hardware is not known."""
    state: JobState = JobState.QUEUED
    reason_code: str = ""
    started_at: datetime | None = None
    """Start of its first attempt."""
    ended_at: datetime | None = None
    used_s: float = 0.0
    """Seconds of the budget used until now."""
    progress: float = 0.0
    """Share of its steps that is done, from 0 to 1."""
    place: datetime = FIRST
    """Place in the queue, by `place_of`: the earlier, the sooner it is its turn."""
    num_nodes: int = 1
    nodes: tuple[int, ...] | None = None
    """Indices of the lease's nodes that it has or waits for; None: any that have room."""

    @property
    def standing(self) -> Standing:
        """Standing of the job in its agenda."""
        return standing_of(self.state, self.reason_code)

    @property
    def left_s(self) -> float:
        """Seconds left of its budget."""
        return max(0.0, self.budget_s - self.used_s)

    @property
    def likely_left_s(self) -> float | None:
        """Seconds that it still takes at its speed so far; by its plan before it has any. None
        where neither is known."""
        if self.progress > 0 and self.used_s > 0:
            likely = self.used_s * (1 - self.progress) / self.progress
        elif self.expected_s is not None:
            likely = max(0.0, self.expected_s - self.used_s)
        else:
            return None
        return min(likely, self.left_s)


class JobSpan(NamedTuple):
    """Time in which a job has, had or will have its slots."""

    start: datetime
    end: datetime
    nodes: tuple[int, ...] = (0,)
    """Indices of the lease's nodes, from 0."""


class Capacity(NamedTuple):
    """Nodes and slots that a lease has at any moment."""

    num_nodes: int
    slots: int
    """Slots of each node."""


class AgendaTimes(NamedTuple):
    """Times at which the jobs of an agenda have their slots."""

    spans: list[JobSpan | None]
    """Span of each job; None: it never ran, and is not to run."""
    in_the_way: list[tuple[AgendaItem, JobSpan]]
    """Jobs beside the agenda that have slots for which a job of it waits."""


@dataclass(frozen=True)
class OutlookLine:
    """A job of an agenda compared with the lease."""

    item: AgendaItem
    planned: JobSpan
    """Span as planned when the lease began: every job before it uses its whole budget."""
    latest: JobSpan | None
    """Span at the latest, as things stand; None for a job that never ran and will not."""
    likely: JobSpan | None
    """Span at the expected speed; None where that is not known."""
    late_s: int
    """Seconds behind the plan; 0 where that is less than a minute."""
    fits: bool
    """True if it ends before the jobs of the lease are stopped, even at the latest."""


@dataclass(frozen=True)
class Outlook:
    """Prospects of an agenda at one moment: its jobs, and the time to spare."""

    lines: Sequence[OutlookLine]
    begins: datetime
    usable_end: datetime
    now: datetime
    num_nodes: int
    slots: int
    """Slots of each node."""
    spare_s: int
    """Seconds from its end, at the latest, to the end of the lease; negative: its overrun."""
    likely_spare_s: int | None
    first_cut: int | None
    """Index of the first job that would not end in time; None: all fit."""
    in_the_way: Sequence[tuple[AgendaItem, JobSpan]] = ()
    """Jobs beside the agenda for whose slots one of it waits, at the latest."""

    @property
    def fits(self) -> bool:
        """True if every job ends in time, even if all use up their budgets."""
        return self.first_cut is None


def outlook(
    items: Sequence[AgendaItem],
    *,
    begins: datetime,
    usable_end: datetime,
    now: datetime,
    slots: int,
    side_by_side: bool,
    num_nodes: int = 1,
    beside: Sequence[AgendaItem] = (),
) -> Outlook:
    """Compare an agenda with a lease of `num_nodes` whose `slots` it may use from `begins` to
    `usable_end`.

    `beside`: jobs of its owner that run in the lease, or wait for it, and are not in the agenda.
    """
    since = max(now, begins)
    fresh = [
        AgendaItem(one.name, one.slots, one.budget_s, num_nodes=one.num_nodes, nodes=one.nodes)
        for one in items
    ]
    capacity = Capacity(num_nodes, slots)
    planned = lay_out(fresh, (), capacity, _left_s, now=begins, side_by_side=side_by_side).spans
    sure = lay_out(items, beside, capacity, _left_s, now=since, side_by_side=side_by_side)
    latest = sure.spans
    likely = lay_out(items, beside, capacity, _likely_s, now=since, side_by_side=side_by_side).spans
    guessed = [
        index
        for index, (item, span) in enumerate(zip(items, likely, strict=True))
        if span is not None and item.state not in TERMINAL_JOB and item.likely_left_s is None
    ]
    for index in range(guessed[0] if guessed else len(items), len(items)):
        likely[index] = None  # it depends on a length that is not known
    lines = [
        _line(*row, usable_end=usable_end)
        for row in zip(items, planned, latest, likely, strict=True)
    ]
    return Outlook(
        lines=lines,
        begins=begins,
        usable_end=usable_end,
        now=now,
        num_nodes=num_nodes,
        slots=slots,
        spare_s=_spare_s(latest, usable_end, since),
        likely_spare_s=None if guessed else _spare_s(likely, usable_end, since),
        first_cut=next((index for index, line in enumerate(lines) if not line.fits), None),
        in_the_way=sure.in_the_way,
    )


def lay_out(
    items: Sequence[AgendaItem],
    beside: Sequence[AgendaItem],
    capacity: Capacity,
    length_s: Callable[[AgendaItem], float],
    *,
    now: datetime,
    side_by_side: bool,
) -> AgendaTimes:
    """Lay out when and on which nodes each job has its slots, if each still takes `length_s`.

    Jobs of the agenda start in their order. Side by side, one starts as soon as the one before it
    has started and there are slots; otherwise when all before it have ended. Those beside start
    where slots are free, before a job of the agenda if their place in the queue is before it.
    """
    everyone = [*items, *beside]
    spans = [_known(one, length_s, now) for one in everyone]
    queued = [index for index, one in enumerate(everyone) if one.state is JobState.QUEUED]
    coming = [index for index in queued if index < len(items)]
    others = [index for index in queued if index >= len(items)]
    in_the_way: set[int] = set()
    at = now
    while coming:
        placed, nodes = None, None
        held = [
            (index, span.nodes) for index, span in enumerate(spans) if span and _holds(span, at)
        ]
        for index in sorted([coming[0], *others], key=lambda each: everyone[each].place):
            own = index == coming[0]
            if own and not side_by_side and any(each < len(items) for each, _ in held):
                continue
            nodes = _room_for(everyone[index], everyone, held, capacity)
            if nodes is not None:
                placed = index
                break
            ours = [(each, on) for each, on in held if each < len(items)]
            if own and _room_for(everyone[index], everyone, ours, capacity) is not None:
                in_the_way.update(_beside_on(everyone[index].nodes, held) - set(range(len(items))))
        again = [span.end + HANDOVER for span in spans if span and span.end + HANDOVER > at]
        if placed is None and again:
            at = min(again)
            continue
        if placed is None or nodes is None:
            placed = coming[0]  # wider than the lease: no moment is better than another
            nodes = tuple(range(capacity.num_nodes))
        spans[placed] = JobSpan(at, at + timedelta(seconds=length_s(everyone[placed])), nodes)
        (coming if placed == coming[0] else others).remove(placed)
    held_up_by = [(everyone[k], span) for k in sorted(in_the_way) if (span := spans[k]) is not None]
    return AgendaTimes(spans[: len(items)], held_up_by)


def standing_of(state: JobState, reason_code: str) -> Standing:
    """Return the standing of a job in its agenda."""
    if state is JobState.FAILED and reason_code == Outcome.TIME_LIMIT:
        return Standing.CUT
    return STANDINGS[state]


def place_of(queued_at: datetime, wall_time_s: float) -> datetime:
    """Return the place of a job in one person's queue; the earlier, the sooner it starts."""
    return queued_at - SHORT_LEAD if wall_time_s <= SHORT_S else queued_at


# ------------------------------------------------------------------------------------------ parts


def _left_s(item: AgendaItem) -> float:
    return item.left_s


def _likely_s(item: AgendaItem) -> float:
    return item.left_s if item.likely_left_s is None else item.likely_left_s


def _known(
    item: AgendaItem, length_s: Callable[[AgendaItem], float], now: datetime
) -> JobSpan | None:
    """Return the span of a job that runs or has run; None for one that waits, or never ran."""
    nodes = tuple(range(item.num_nodes)) if item.nodes is None else item.nodes
    if item.state in LIVE_JOB:
        return JobSpan(item.started_at or now, now + timedelta(seconds=length_s(item)), nodes)
    if item.ended_at is not None and item.started_at is not None:
        return JobSpan(item.started_at, item.ended_at, nodes)
    return None


def _holds(span: JobSpan, at: datetime) -> bool:
    """Return True if its slots are taken at a moment, which includes their hand-over."""
    return span.start <= at < span.end + HANDOVER


def _room_for(
    one: AgendaItem,
    everyone: Sequence[AgendaItem],
    held: Sequence[tuple[int, tuple[int, ...]]],
    capacity: Capacity,
) -> tuple[int, ...] | None:
    """Return nodes with free slots for a job beside the holders of some, or None."""
    free = [capacity.slots] * capacity.num_nodes
    for index, nodes in held:
        for node in nodes:
            free[node] -= everyone[index].slots
    wanted = range(capacity.num_nodes) if one.nodes is None else one.nodes
    roomy = tuple(node for node in wanted if free[node] >= one.slots)
    count = one.num_nodes if one.nodes is None else len(one.nodes)
    return roomy[:count] if len(roomy) >= count else None


def _beside_on(
    wanted: tuple[int, ...] | None, held: Sequence[tuple[int, tuple[int, ...]]]
) -> set[int]:
    return {index for index, nodes in held if wanted is None or set(wanted) & set(nodes)}


def _line(
    item: AgendaItem,
    planned: JobSpan | None,
    latest: JobSpan | None,
    likely: JobSpan | None,
    *,
    usable_end: datetime,
) -> OutlookLine:
    assert planned is not None, "all jobs are planned"
    late_s = 0 if latest is None else int((latest.end - planned.end).total_seconds())
    return OutlookLine(
        item=item,
        planned=planned,
        latest=latest,
        likely=likely,
        late_s=late_s if late_s >= LATE_S else 0,
        fits=latest is None or latest.end <= usable_end,
    )


def _spare_s(spans: Sequence[JobSpan | None], usable_end: datetime, since: datetime) -> int:
    ends = [span.end for span in spans if span is not None]
    return int((usable_end - max(ends, default=since)).total_seconds() // 1)
