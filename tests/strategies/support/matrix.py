"""The cells of the equivalence matrix: legal splits, and the variant that each of them takes."""

import itertools

from strategies.plan.spec import PipelineSchedule
from tests.strategies.support.layouts import (
    Split,
    Variant,
    all_splits,
    cover,
    layouts,
    legal_splits,
)

MATRIX = cover(legal_splits(all_splits(layout for ranks in (1, 2, 4) for layout in layouts(ranks))))

# A few of 8 ranks: three axes at once.
LARGE_MATRIX = cover(
    legal_splits(
        split
        for split in all_splits(layout for layout in layouts(8) if max(layout.degrees) == 2)
        if split.schedule in (None, PipelineSchedule.ONE_F_ONE_B)
    )
)


def essential(matrix: dict[Split, Variant]) -> set[Split]:
    """What CI runs: every split of one and two ranks, and of the larger ones as many as it takes
    for any two techniques that can be used together to meet, unless they do so on two ranks.
    """
    chosen = {split for split in matrix if split.ranks <= 2}
    left = {split: _meetings(split) for split in matrix if split.ranks > 2}
    wanted = set().union(*left.values()).difference(*map(_meetings, chosen))
    while wanted:
        best = max(left, key=lambda split: len(left[split] & wanted))
        chosen.add(best)
        wanted -= left[best]
    return chosen


def _meetings(split: Split) -> set[frozenset[str]]:
    """Return its pairs of techniques. Pipeline schedules count as one, and so do both kinds of
    data parallelism beside another axis."""
    schedule = {split.schedule.value} if split.schedule else set()
    techniques = set(split.features) - schedule
    data = techniques & {"replicate", "shard"}
    others = techniques - data | ({"data"} if data else set())
    together = {frozenset(pair) for pair in itertools.combinations(others, 2)}
    return together | ({frozenset(data)} if len(data) > 1 else set())
