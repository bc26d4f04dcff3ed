"""The fewest leases go, the newest first."""

from hypothesis import given
from hypothesis import strategies as st

from core.leases.cleaning import EXACT, fewest


def test_nothing_goes_where_nothing_is_wrong() -> None:
    assert fewest(["c", "b", "a"], lambda removed: True) == []


def test_the_newest_goes_if_any_one_would_do() -> None:
    assert fewest(["c", "b", "a"], lambda removed: len(removed) >= 1) == ["c"]


def test_one_old_one_goes_rather_than_two_new_ones() -> None:
    def is_fine(removed: frozenset[str]) -> bool:
        return "a" in removed or {"b", "c"} <= removed

    assert fewest(["c", "b", "a"], is_fine) == ["a"]


@given(st.sets(st.integers(0, 15), max_size=4))
def test_of_many_only_those_go_that_must(guilty: set[int]) -> None:
    newest_first = [str(number) for number in range(EXACT + 6)]
    wanted = {str(number) for number in guilty}
    assert set(fewest(newest_first, lambda removed: wanted <= removed)) == wanted
