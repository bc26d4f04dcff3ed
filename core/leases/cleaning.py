"""Choice of the leases that a user over their limits loses: the fewest, newest first. Pure."""

from collections.abc import Callable, Sequence
from itertools import combinations

EXACT = 10  # leases up to which every combination is tried: 2^10 verdicts at most

Removed = frozenset[str]


def fewest(newest_first: Sequence[str], is_fine: Callable[[Removed], bool]) -> list[str]:
    """Return the ids to remove so that `is_fine` of them, in the given order; empty if all is fine.

    As few as possible; of equally few, the newest. With more than EXACT leases the newest go one by
    one until it is fine, then those that were not needed come back, the oldest of them first.
    `is_fine` of all of them must be true.
    """
    if len(newest_first) <= EXACT:
        for count in range(len(newest_first) + 1):
            for chosen in combinations(newest_first, count):
                if is_fine(frozenset(chosen)):
                    return list(chosen)
        raise AssertionError("with nothing left there is nothing wrong")
    removed: list[str] = []
    for lease_id in newest_first:
        if is_fine(frozenset(removed)):
            break
        removed.append(lease_id)
    for lease_id in reversed(removed):
        kept = [other for other in removed if other != lease_id]
        if is_fine(frozenset(kept)):
            removed = kept
    return removed
