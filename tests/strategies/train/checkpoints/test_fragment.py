"""A run of a flattened tensor, cut into boxes."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.checkpoint.metadata import MetadataIndex

from strategies.train.checkpoints.fragment import Fragment, boxes_of


@st.composite
def runs(draw: st.DrawFn) -> tuple[range, list[int]]:
    """A shape, and a run of its flattened numbers."""
    shape = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    start = draw(st.integers(0, math.prod(shape)))
    return range(start, draw(st.integers(start, math.prod(shape)))), shape


@given(runs())
def test_boxes_hold_the_numbers_of_the_run_in_its_order(case: tuple[range, list[int]]) -> None:
    run, shape = case
    whole = torch.arange(math.prod(shape)).view(shape)
    fragment = Fragment(whole.flatten()[run.start : run.stop].clone(), start=run.start, shape=shape)
    found = []
    for offsets, sizes in fragment.boxes:
        box = whole[tuple(slice(o, o + n) for o, n in zip(offsets, sizes, strict=True))]
        assert torch.equal(
            fragment.__get_tensor_shard__(MetadataIndex("w", torch.Size(offsets))), box
        )
        found += box.flatten().tolist()
    assert found == list(run)
    assert len(fragment.boxes) <= 2 * len(shape) - 1


def test_half_a_matrix_is_half_a_row_and_whole_rows() -> None:
    assert [tuple(box) for box in boxes_of(range(6), (3, 4))] == [
        ((0, 0), (1, 4)),
        ((1, 0), (1, 2)),
    ]


def test_a_fragment_is_as_large_as_its_whole_and_can_be_copied() -> None:
    numbers = torch.arange(5.0)
    fragment = Fragment(numbers, start=3, shape=(3, 4))
    assert fragment.shape == (3, 4)
    copy = fragment.detach().clone()
    numbers.zero_()
    assert copy.numbers.tolist() == [0, 1, 2, 3, 4]
    assert (copy.start, copy.shape) == (3, (3, 4))
    fragment.copy_(copy)
    assert numbers.tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(NotImplementedError, match=r"a fragment does not implement aten\.sum"):
        fragment.sum()
