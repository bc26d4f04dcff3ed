"""Choice of nodes and start for a wish: judged by the policy, as a whole, best first.

Freedom from gaps comes before an early start, an early start before the node's name: a block that
leaves an hour that nobody can book is chosen only if there is no better one. `Prefer.SNUGGEST`
takes the block that cuts free time up least instead of the earliest.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from api.leases.schemas import Prefer
from api.leases.wishes import Wish
from core.base.errors import HourTaken
from core.leases.situation import Judge
from core.policy.gaps import cut_up
from core.policy.grid import HOUR, hold_end, hour_ceiling
from core.policy.verdict import LeaseFact, Verdict
from core.tables.nodes import Node

GAP = "leaves_gap"
TAKEN = "node_taken"
DOWN = "node_down"
MAX_OFFERING = 8  # nodes whose next starts are looked for: each takes some milliseconds
MAX_JUDGED = 3000  # verdicts for one wish: some 0.3 s


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


def choose(judge: Judge, wish: Wish, *, replaces: Sequence[str] = ()) -> StartChoice:
    """Return the best choice; for a wish that cannot be fulfilled, the choice that comes
    nearest."""
    last = wish.starts[-1] + wish.length
    judge.look_at(wish.nodes, wish.starts[0], last)
    best: StartChoice | None = None
    nearest: StartChoice | None = None
    judged = 0
    for start in _in_order(judge, wish):
        if wish.is_flexible and nearest is not None and not _enough_free(judge, wish, start):
            continue
        choice = _at(judge, wish, start, replaces)
        judged += len(wish.nodes)
        if choice.chosen and not choice.leaves_gap:
            return choice
        best = best or (choice if choice.chosen else None)
        if nearest is None or _distance(choice) < _distance(nearest):
            nearest = choice
        if judged > MAX_JUDGED:
            break
    assert nearest is not None, "a wish has starts"
    return best or nearest


def _in_order(judge: Judge, wish: Wish) -> Sequence[datetime]:
    """Return the starts, best first."""
    if wish.prefer is Prefer.EARLIEST or len(wish.starts) == 1:
        return wish.starts

    def cost(start: datetime) -> tuple[int, timedelta, datetime]:
        best = sorted(_cut_up(judge, wish, node, start) for node in wish.nodes)[: wish.count]
        return sum(sides for sides, _ in best), max(left for _, left in best), start

    free = [start for start in wish.starts if _enough_free(judge, wish, start)]
    taken = [start for start in wish.starts if start not in set(free)]
    return [*sorted(free, key=cost), *taken]


def _cut_up(judge: Judge, wish: Wish, node: Node, start: datetime) -> tuple[int, timedelta]:
    """Return the cost of taking a node from a start on; a node that is not free costs most."""
    end, anchor = start + wish.length, judge.policy_for_node(node).grid.anchor
    held = [(span.start, span.end) for span in judge.holds(node.id)]
    if any(a < end and b > max(start, judge.now) for a, b in held):
        return 3, timedelta.max
    return cut_up(start, end, held, first=hour_ceiling(judge.now, anchor))


def next_starts(judge: Judge, wish: Wish, choice: StartChoice, *, most: int = 3) -> list[datetime]:
    """Return the nearest starts at which the whole wish would be granted."""
    end = choice.start + wish.length
    found = {
        start
        for one in choice.refused[:MAX_OFFERING]
        for start in judge.verdict(one.node, choice.start, end, offers=most).next_starts
    }
    nearest = sorted(found, key=lambda start: (abs(start - choice.start), start))
    if wish.count > 1:
        nearest = [start for start in nearest if _at(judge, wish, start, ()).chosen]
    return sorted(nearest[:most])


def with_next_starts(judge: Judge, wish: Wish, choice: StartChoice) -> list[JudgedBlock]:
    """Return the refused blocks, the first MAX_OFFERING of them with the next starts on their
    nodes."""
    end = choice.start + wish.length
    first = [
        JudgedBlock(one.node, judge.verdict(one.node, choice.start, end, offers=3))
        for one in choice.refused[:MAX_OFFERING]
    ]
    return [*first, *choice.refused[MAX_OFFERING:]]


def is_taken(choice: StartChoice) -> bool:
    """Return True if only other holders, or the states of the nodes, stand in the way."""
    codes = {reason.code for reason in choice.refused[0].verdict.reasons}
    return codes <= {TAKEN, DOWN}


def taken_error(choice: StartChoice, wish: Wish, starts: Sequence[datetime]) -> HourTaken:
    """Return the error for hours that others hold; `starts` are free."""
    hours = round(wish.length / HOUR)
    block = "hour" if hours == 1 else f"{hours} hours"
    what = wish.what[:1].upper() + wish.what[1:]
    told = ", ".join(start.isoformat() for start in starts)
    advice = f"The next free start is {told}." if len(starts) == 1 else f"Free starts: {told}."
    if not starts:
        advice = "No start within a week of it is free. Join the waitlist."
    return HourTaken(
        f"{what} is taken for the {block} from {choice.start.isoformat()}. {advice}",
        param="start",
        choices=starts,
    )


def _at(judge: Judge, wish: Wish, start: datetime, replaces: Sequence[str]) -> StartChoice:
    end = start + wish.length
    rules = judge.policy_for_node(wish.nodes[0]).grid
    hold = hold_end(end, rules.grace_s, rules.anchor)
    judged = [
        JudgedBlock(node, judge.verdict(node, start, end, replaces=replaces)) for node in wish.nodes
    ]
    good = [one for one in judged if one.verdict.ok]
    if wish.prefer is Prefer.SNUGGEST:
        good.sort(key=lambda one: _cut_up(judge, wish, one.node, start))
    good.sort(key=lambda one: one.leaves_gap)
    refused = [one for one in judged if not one.verdict.ok]
    chosen: list[JudgedBlock] = []
    also: list[LeaseFact] = []
    for one in good:
        if len(chosen) == wish.count:
            break
        # With those chosen before it: several at once may be too much for a quota.
        again = judge.verdict(one.node, start, end, replaces=replaces, also=also) if also else None
        if again is not None and not again.ok:
            refused.append(JudgedBlock(one.node, again))
            continue
        chosen.append(JudgedBlock(one.node, again) if again else one)
        also.append(judge.as_fact(one.node, start, hold))
    if len(chosen) < wish.count:
        chosen = []
    refused.sort(key=lambda one: (len(one.verdict.reasons), one.node.name))
    return StartChoice(start, hold, tuple(chosen), tuple(refused))


def _enough_free(judge: Judge, wish: Wish, start: datetime) -> bool:
    end = start + wish.length
    free = sum(
        not any(
            span.start < end and span.end > max(start, judge.now) for span in judge.holds(node.id)
        )
        for node in wish.nodes
    )
    return free >= wish.count


def _distance(choice: StartChoice) -> int:
    return min((len(one.verdict.reasons) for one in choice.refused), default=0)
