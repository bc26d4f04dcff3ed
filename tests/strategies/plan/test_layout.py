"""Ranks and coordinates are one to one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies.plan.layout import Layout

degree = st.integers(1, 4)
layouts = st.builds(
    Layout, pipeline=degree, replicate=degree, shard=degree, context=degree, tensor=degree
)


@given(layouts)
def test_every_rank_has_its_own_coordinate(layout: Layout) -> None:
    places = [layout.coordinate(rank) for rank in range(layout.world_size)]
    assert len(set(places)) == layout.world_size
    assert places == sorted(places)  # outer axes first, tensor neighbours next to each other


@given(layouts)
def test_samples_are_shared_out_over_replicate_and_shard_only(layout: Layout) -> None:
    shares = [layout.batch_rank(rank) for rank in range(layout.world_size)]
    assert set(shares) == set(range(layout.batch_degree))
    same = layout.world_size // layout.batch_degree
    assert all(shares.count(share) == same for share in set(shares))


def test_a_rank_outside_is_refused() -> None:
    with pytest.raises(ValueError, match="rank 4 is outside this layout of 4 ranks"):
        Layout(replicate=4).coordinate(4)
