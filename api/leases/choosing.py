"""Choice of nodes and start for a request: judged by the policy, as a whole, best first.

Freedom from gaps comes before an early start, an early start before the node's name: a block that
leaves an hour that nobody can book is chosen only if there is no better one. `Prefer.SNUGGEST`
takes the block that cuts free time up least instead of the earliest. A part of a node is leased
where that breaks up the fewest wholly free slot-hours.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from api.leases.block_requests import BlockRequest
from api.leases.schemas import Prefer
from core.base.errors import HourTaken
from core.leases.situation import Judge
from core.policy.gaps import cut_up
from core.policy.grid import HOUR, hold_end, hour_ceiling
from core.policy.slots import Breakage, breakage, free_slots, full_times
from core.policy.verdict import LeaseFact, Verdict
from core.tables.nodes import Node

GAP = "leaves_gap"
TAKEN = "node_taken"
DOWN = "node_down"
MAX_OFFERING = 8  # nodes whose next starts are looked for: each takes some milliseconds
MAX_JUDGED = 3000  # verdicts for one request: some 0.3 s


@dataclass(frozen=True)
class JudgedBlock:
    """A block on one node, with the verdict of the policy."""

    node: Node
    verdict: Verdict

    @property
    def leaves_gap(self) -> bool:
        """True if the block leaves an hour that nobody can book, so that another one is better."""
        return any(warning.code == GAP for warning in self.verdict.warnings)


@dataclass(frozen=True)
class StartChoice:
    """One start, with all blocks that were judged for it; `chosen` is empty if it is refused."""

    start: datetime
    end: datetime
    """End of the hold."""
    chosen: tuple[JudgedBlock, ...]
    refused: tuple[JudgedBlock, ...]
    """Refused blocks, the nearest to acceptance first."""

    @property
    def leaves_gap(self) -> bool:
        """True if one of the chosen blocks leaves a gap."""
        return any(one.leaves_gap for one in self.chosen)


def choose(judge: Judge, request: BlockRequest, *, replaces: Sequence[str] = ()) -> StartChoice:
    """Return the best choice; for a request that cannot be fulfilled, the choice that comes
    nearest."""
    last = request.starts[-1] + request.length
    judge.look_at(request.nodes, request.starts[0], last)
    best: StartChoice | None = None
    nearest: StartChoice | None = None
    judged = 0
    for start in _in_order(judge, request):
        if request.is_flexible and nearest is not None and not _enough_free(judge, request, start):
            continue
        choice = _at(judge, request, start, replaces)
        judged += len(request.nodes)
        if choice.chosen and not choice.leaves_gap:
            return choice
        best = best or (choice if choice.chosen else None)
        if nearest is None or _distance(choice) < _distance(nearest):
            nearest = choice
        if judged > MAX_JUDGED:
            break
    assert nearest is not None, "a request has starts"
    return best or nearest


def _in_order(judge: Judge, request: BlockRequest) -> Sequence[datetime]:
    """Return the starts, best first."""
    if request.prefer is Prefer.EARLIEST or len(request.starts) == 1:
        return request.starts

    def cost(start: datetime) -> tuple[int, timedelta, datetime]:
        best = sorted(_cut_up(judge, request, node, start) for node in request.nodes)[
            : request.count
        ]
        return sum(sides for sides, _ in best), max(left for _, left in best), start

    free = [start for start in request.starts if _enough_free(judge, request, start)]
    taken = [start for start in request.starts if start not in set(free)]
    return [*sorted(free, key=cost), *taken]


def _cut_up(
    judge: Judge, request: BlockRequest, node: Node, start: datetime
) -> tuple[int, timedelta]:
    """Return the cost of taking a node from a start on; a node that is not free costs most."""
    end, anchor = start + request.length, judge.policy_for_node(node).grid.anchor
    if not _is_free(judge, request, node, start):
        return 3, timedelta.max
    holds = judge.holds(node.id)
    first = min([start, *(span.start for span in holds)])
    last = max([end, *(span.end for span in holds)])
    size = _size(request, node)
    of = judge.slots_for(node, request.num_slots)
    held = full_times(holds, of=of, size=size, start=first, end=last)
    return cut_up(start, end, held, first=hour_ceiling(judge.now, anchor))


def next_starts(
    judge: Judge, request: BlockRequest, choice: StartChoice, *, most: int = 3
) -> list[datetime]:
    """Return the nearest starts at which the whole request would be granted."""
    end = choice.start + request.length
    found = {
        start
        for one in choice.refused[:MAX_OFFERING]
        for start in judge.verdict(
            one.node, choice.start, end, num_slots=request.num_slots, offers=most
        ).next_starts
    }
    nearest = sorted(found, key=lambda start: (abs(start - choice.start), start))
    if request.count > 1:
        nearest = [start for start in nearest if _at(judge, request, start, ()).chosen]
    return sorted(nearest[:most])


def with_next_starts(judge: Judge, request: BlockRequest, choice: StartChoice) -> list[JudgedBlock]:
    """Return the refused blocks, the first MAX_OFFERING of them with the next starts on their
    nodes."""
    end = choice.start + request.length
    first = [
        JudgedBlock(
            one.node,
            judge.verdict(one.node, choice.start, end, num_slots=request.num_slots, offers=3),
        )
        for one in choice.refused[:MAX_OFFERING]
    ]
    return [*first, *choice.refused[MAX_OFFERING:]]


def is_taken(choice: StartChoice) -> bool:
    """Return True if only other holders, or the states of the nodes, stand in the way."""
    codes = {reason.code for reason in choice.refused[0].verdict.reasons}
    return codes <= {TAKEN, DOWN}


def taken_error(
    choice: StartChoice, request: BlockRequest, starts: Sequence[datetime]
) -> HourTaken:
    """Return the error for hours that others hold; `starts` are free."""
    hours = round(request.length / HOUR)
    block = "hour" if hours == 1 else f"{hours} hours"
    what = request.what[:1].upper() + request.what[1:]
    told = ", ".join(start.isoformat() for start in starts)
    advice = f"The next free start is {told}." if len(starts) == 1 else f"Free starts: {told}."
    if not starts:
        advice = "No start within a week of it is free. Join the waitlist."
    return HourTaken(
        f"{what} is taken for the {block} from {choice.start.isoformat()}. {advice}",
        param="start",
        choices=starts,
    )


def _at(
    judge: Judge, request: BlockRequest, start: datetime, replaces: Sequence[str]
) -> StartChoice:
    end = start + request.length
    rules = judge.policy_for_node(request.nodes[0]).grid
    hold = hold_end(end, rules.grace_s, rules.anchor)
    judged = [
        JudgedBlock(
            node, judge.verdict(node, start, end, num_slots=request.num_slots, replaces=replaces)
        )
        for node in request.nodes
    ]
    good = [one for one in judged if one.verdict.ok]
    if request.num_slots is not None:
        good.sort(key=lambda one: _breakage(judge, request, one.node, start))
    elif request.prefer is Prefer.SNUGGEST:
        good.sort(key=lambda one: _cut_up(judge, request, one.node, start))
    good.sort(key=lambda one: one.leaves_gap)
    refused = [one for one in judged if not one.verdict.ok]
    chosen: list[JudgedBlock] = []
    also: list[LeaseFact] = []
    for one in good:
        if len(chosen) == request.count:
            break
        # With those chosen before it: several at once may be too much for a quota.
        again = (
            judge.verdict(
                one.node, start, end, num_slots=request.num_slots, replaces=replaces, also=also
            )
            if also
            else None
        )
        if again is not None and not again.ok:
            refused.append(JudgedBlock(one.node, again))
            continue
        chosen.append(JudgedBlock(one.node, again) if again else one)
        also.append(judge.as_fact(one.node, start, hold, num_slots=request.num_slots))
    if len(chosen) < request.count:
        chosen = []
    refused.sort(key=lambda one: (len(one.verdict.reasons), one.node.name))
    return StartChoice(start, hold, tuple(chosen), tuple(refused))


def _enough_free(judge: Judge, request: BlockRequest, start: datetime) -> bool:
    free = sum(_is_free(judge, request, node, start) for node in request.nodes)
    return free >= request.count


def _is_free(judge: Judge, request: BlockRequest, node: Node, start: datetime) -> bool:
    since, end = max(start, judge.now), start + request.length
    of = judge.slots_for(node, request.num_slots)
    free = free_slots(judge.holds(node.id), of=of, start=since, end=end)
    return free >= _size(request, node)


def _breakage(judge: Judge, request: BlockRequest, node: Node, start: datetime) -> Breakage:
    end, size = start + request.length, _size(request, node)
    return breakage(judge.holds(node.id), of=node.slots, size=size, start=start, end=end)


def _size(request: BlockRequest, node: Node) -> int:
    return node.slots if request.num_slots is None else request.num_slots


def _distance(choice: StartChoice) -> int:
    return min((len(one.verdict.reasons) for one in choice.refused), default=0)
