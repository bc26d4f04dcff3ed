"""The law: the loss curve does not depend on the layout.

Every legal layout over 1, 2 and 4 ranks, clipped, on documents of many lengths, against one rank
that takes the whole batch at once. Each takes one variant (model, tied embeddings, packing,
accumulation, activation checkpointing); together they meet every pair of choices that can be met.
CI takes the essential ones that no other test of CI takes, `make test-all` the rest. The long form
makes the table of docs/strategies/equivalence.md.
"""

import itertools
import math
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from strategies.plan.catalog import TECHNIQUES
from strategies.plan.spec import ModelName, Precision
from tests.strategies.support.law import Bench, Departure, band_of, departure
from tests.strategies.support.layouts import VARIANTS, Split, Variant, all_splits, layouts, pairs
from tests.strategies.support.matrix import LARGE_MATRIX, MATRIX, essential
from tests.strategies.support.training_runs import make_run_plan

RANKS = pytest.mark.gloo
PRECISIONS = Precision.FLOAT32, Precision.FLOAT64


def cells(matrix: dict[Split, Variant], *, quick: Collection[Split] = ()) -> list[Any]:
    """A case for each; those that are not `quick` belong to `make test-all`."""
    return [
        pytest.param(
            split,
            variant,
            id=f"{split.ranks}-{split}-{variant}",
            marks=[RANKS] if split in quick else [RANKS, pytest.mark.slow],
        )
        for split, variant in matrix.items()
    ]


# Essential too, but left to `make test-all`: test_zero.py and test_pretrained.py have ZeRO and
# tensor parallelism, test_pipeline.py most other schedules, and of four ranks a few are enough.
LATER = {
    *("zero1", "zero2", "zero3", "zero1-shard2", "zero2-shard2", "zero3-shard2", "naive"),
    *("pipeline2-1F1B", "pipeline2-Interleaved1F1B"),
    *("tensor2", "tensor2-sequence"),
    *("pipeline2-InterleavedZeroBubble", "pipeline2-ZBVZeroBubble"),
    "context2-tensor2-sequence-ulysses2",
    "shard2-context2-ulysses2",
    "pipeline2-tensor2-GPipe-sequence",
}
QUICK = {split for split in essential(MATRIX) if str(split) not in LATER}
Row = tuple[str, ...]


@pytest.fixture(scope="module")
def table() -> Iterator[list[Row]]:
    """Rows of a Markdown table, printed once all are there."""
    rows: list[Row] = []
    yield rows
    head = ("ranks", "layout", "variant", "precision", "loss", "norm", "weights", "evaluation")
    for row in (head, ("---",) * len(head), *rows):
        print("| " + " | ".join(row) + " |")  # noqa: T201


def row_of(split: Split, variant: Variant, precision: Precision, found: Departure) -> Row:
    numbers = (f"{number:.1e}" for number in found)
    return (str(split.ranks), str(split), str(variant), precision.value, *numbers)


@pytest.mark.parametrize(("split", "variant"), cells(MATRIX, quick=QUICK))
def test_every_layout_follows_the_curve_of_one_rank(
    split: Split, variant: Variant, bench: Bench, table: list[Row]
) -> None:
    found = bench.departure(split, variant)
    table.append(row_of(split, variant, Precision.FLOAT64, found))
    assert found.within(band_of(split, Precision.FLOAT64)), str(found)


@RANKS
@pytest.mark.parametrize("name", ["tensor2-sequence", "context2-ulysses2"])
def test_heads_may_have_a_width_of_their_own(name: str, bench: Bench) -> None:
    split = next(split for split in MATRIX if str(split) == name)
    variant = Variant(ModelName.LLAMA)
    found = bench.departure(split, variant, model__head_width=24)
    assert found.within(band_of(split, Precision.FLOAT64)), str(found)


def test_the_matrix_meets_every_pair_of_choices() -> None:
    met = {pair for split, variant in MATRIX.items() for pair in pairs(split, variant)}
    can_be_met = {pair for s in MATRIX for v in s.legal_variants for pair in pairs(s, v)}
    assert sorted(map(sorted, can_be_met - met)) == []


def test_every_technique_is_in_the_matrix() -> None:
    follow = {name for name, technique in TECHNIQUES.items() if technique.result_class != "exempt"}
    assert {split.strategy for split in MATRIX} == follow


@pytest.mark.gloo
@pytest.mark.parametrize("variant", sorted({v.twin for v in MATRIX.values()}), ids=str)
def test_the_curve_to_follow_is_ragged_clipped_and_learns(variant: Variant, bench: Bench) -> None:
    split = next(iter(MATRIX))
    one = bench.twin(split, variant, precision=Precision.FLOAT64, steps=8)
    seen = one.series("tokens_seen")
    steps = {after - before for before, after in itertools.pairwise([0.0, *seen])}
    assert len(steps) >= 4
    assert sum(norm > 0.3 for norm in one.series("grad_norm")) == 8
    losses = one.series("loss")
    assert losses[0] == pytest.approx(math.log(256), rel=0.2)
    assert losses[-1] < losses[0] - 0.3


@pytest.mark.gloo
@pytest.mark.parametrize(
    "name",
    [
        "pipeline2-1F1B",
        # Of the others two runs are compared in test_step.py and test_certificate.py.
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("replicate2", "shard2", "shard2-tensor2")
        ),
    ],
)
def test_the_same_run_twice_is_bit_equal(name: str, bench: Bench, tmp_path: Path) -> None:
    split, variant = next(cell for cell in MATRIX.items() if str(cell[0]) == name)
    run_plan = make_run_plan(split.spec(variant, steps=4), ranks=split.ranks, **bench.dataset)
    first, second = (bench.pool.train(run_plan, tmp_path / name) for name in ("first", "second"))
    assert departure(first, second) == (0, 0, 0, 0)


# What the planner calls legal runs and follows; what it does not, it refuses with a field and a
# number. Beside the matrix, whose models are made to fit, models that may not.

some_splits = st.sampled_from([1, 2, 4]).flatmap(
    lambda ranks: st.sampled_from(list(all_splits(layouts(ranks))))
)
some_changes = st.fixed_dictionaries(
    {},
    optional={
        "model__layers": st.integers(1, 6),
        "model__heads": st.sampled_from([1, 2, 3, 4, 6]),
        "model__ffn_width": st.integers(20, 80),
        "data__sequence_length": st.integers(5, 40),
        "training__global_batch_size": st.integers(1, 12),
        "training__gradient_accumulation_steps": st.integers(1, 6),
        "training__micro_batch_size": st.integers(1, 3),
        "data__held_out": st.sampled_from([0, 0.1]),
    },
)


any_spec = given(split=some_splits, variant=st.sampled_from(VARIANTS), changes=some_changes)


@any_spec
@settings(max_examples=50, derandomize=True)
def test_a_problem_names_a_field_and_a_number(
    split: Split, variant: Variant, changes: dict[str, Any]
) -> None:
    require_names(split, variant, changes)


@pytest.mark.slow
@any_spec
@settings(max_examples=300, derandomize=True)
def test_each_of_many_more_names_them(
    split: Split, variant: Variant, changes: dict[str, Any]
) -> None:
    require_names(split, variant, changes)


def require_names(split: Split, variant: Variant, changes: dict[str, Any]) -> None:
    for problem in split.plan(variant, **changes).problems:
        field: Any = split.spec(variant, **changes)
        for name in problem.param.split("."):
            assert name in type(field).model_fields, f"{problem.param} is no field of a spec"
            field = getattr(field, name)
        assert re.search(r"\d", problem.message) or str(field) in problem.message, problem.message


@pytest.mark.slow  # the matrix is legal, too
@pytest.mark.gloo
@given(data=st.data())
@settings(
    max_examples=2,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],  # a smaller example costs as much as a larger one
    suppress_health_check=[HealthCheck.too_slow],
)
def test_what_the_planner_calls_legal_runs_and_follows(bench: Bench, data: st.DataObject) -> None:
    follow_a_legal_spec(bench, data)


@pytest.mark.slow
@pytest.mark.gloo
@pytest.mark.timeout(3600)
@given(data=st.data())
@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
def test_so_do_many_more(bench: Bench, data: st.DataObject) -> None:
    follow_a_legal_spec(bench, data)


def follow_a_legal_spec(bench: Bench, data: st.DataObject) -> None:
    """Draw until the planner has nothing against it: a share of 1 in 10."""
    split, variant, changes = data.draw(
        st.tuples(st.sampled_from(list(MATRIX)), st.sampled_from(VARIANTS), some_changes).filter(
            lambda drawn: drawn[0].plan(drawn[1], **drawn[2]).runnable
        )
    )
    found = bench.departure(split, variant, steps=3, **changes)
    assert found.within(band_of(split, Precision.FLOAT64)), str(found)


# The long form


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(("split", "variant"), cells(MATRIX | LARGE_MATRIX))
def test_every_layout_follows_it_for_50_steps(
    split: Split, variant: Variant, precision: Precision, bench: Bench, table: list[Row]
) -> None:
    found = bench.departure(split, variant, precision=precision, steps=50, deadline_s=600)
    table.append(row_of(split, variant, precision, found))
    assert found.within(band_of(split, precision)), str(found)
