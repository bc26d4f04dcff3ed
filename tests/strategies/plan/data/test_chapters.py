"""A corpus is divided into chapters by the sizes of its files."""

from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies.plan.data.chapters import PIECE_BYTES, PIECES, Division, Spans
from strategies.plan.data.reading import ShardSpan

GB = 10**9


def chapters_of(found: Division) -> list[Spans]:
    return [found.chapter(number) for number in range(found.num_chapters)]


def bytes_of(spans: Spans, sizes: list[int]) -> list[tuple[int, int]]:
    """The spans as bytes of all files laid end to end, those that touch joined."""
    begins, found = [0, *accumulate(sizes)], list[tuple[int, int]]()
    for shard, begin, end in spans:
        first, last = begins[shard] + begin, begins[shard] + (sizes[shard] if end is None else end)
        if found and found[-1][1] == first:
            first = found.pop()[0]
        found.append((first, last))
    return found


@given(st.lists(st.integers(0, 5000), min_size=1, max_size=20), st.sampled_from([0, 0.02, 0.5]))
def test_every_byte_is_trained_on_once_or_held_out(sizes: list[int], held_out: float) -> None:
    found = Division(sizes, can_seek=True, held_out=held_out)
    seen = sorted(one for chapter in chapters_of(found) for one in bytes_of(chapter, sizes))
    assert all(before[1] == after[0] for before, after in pairwise(seen))
    trained_on = seen[-1][1] if seen else 0
    assert not seen or seen[0][0] == 0
    assert trained_on <= sum(sizes) * (1 - held_out) + sum(sizes) / 2048 + 1
    assert trained_on == sum(sizes) or held_out
    assert all(begin >= trained_on for begin, _ in bytes_of(found.evaluated, sizes))


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=20))
def test_files_laid_end_to_end_are_divided_as_one_file(sizes: list[int]) -> None:
    many = Division(sizes, can_seek=True, held_out=0.02)
    one = Division([sum(sizes)], can_seek=True, held_out=0.02)
    assert [bytes_of(chapter, sizes) for chapter in chapters_of(many)] == [
        bytes_of(chapter, [sum(sizes)]) for chapter in chapters_of(one)
    ]
    assert bytes_of(many.evaluated, sizes) == bytes_of(one.evaluated, [sum(sizes)])


@pytest.mark.parametrize("gigabytes", [5, 30, 100, 1000])
def test_the_first_chapter_is_as_large_whatever_the_corpus(gigabytes: int) -> None:
    sizes = [300_000_000] * (gigabytes * GB // 300_000_000)
    found = Division(sizes, can_seek=True, held_out=0.02)
    for chapter in (found.chapter(0), found.chapter(found.num_chapters - 1), found.evaluated):
        size = sum(end - begin for begin, end in bytes_of(chapter, sizes))
        assert size <= PIECES * PIECE_BYTES
    places = [begin / sum(sizes) for begin, _ in bytes_of(found.chapter(0), sizes)]
    assert all(0.005 < after - before < 0.01 for before, after in pairwise(places))  # 1 / 128


def test_files_that_are_read_from_their_beginning_are_not_cut() -> None:
    found = Division([400_000_000] * 50, can_seek=False, held_out=0.02)
    assert chapters_of(found) == [(ShardSpan(number),) for number in range(49)]
    assert found.evaluated == (ShardSpan(49),)
    small = Division([1_000_000] * 100, can_seek=False, held_out=0)
    assert [len(chapter) for chapter in chapters_of(small)] == [17, 17, 17, 17, 16, 16]
    assert small.evaluated == ()
    assert Division([400_000_000], can_seek=False, held_out=0.02).num_chapters == 0
