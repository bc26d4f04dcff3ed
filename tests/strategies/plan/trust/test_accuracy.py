"""What a site learns from how much memory its runs have needed."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies.plan.hardware import Hardware
from strategies.plan.planner import KindOfRun, Plan, plan
from strategies.plan.spec import ModelName, Strategy
from strategies.plan.trust.accuracy import (
    FEWEST_RUNS,
    MOST,
    MeasuredRun,
    factor,
    learned,
    table,
    weighed,
)
from tests.strategies.support.training_runs import HARDWARE, make_spec

KIND = KindOfRun("cpu", ModelName.GPT, Strategy.DDP)
gib = st.floats(0.01, 500)
runs = st.builds(MeasuredRun, kind=st.just(KIND), exact=gib, estimated=gib, measured=gib)


def run_with(measured: float) -> MeasuredRun:
    return MeasuredRun(KIND, exact=2.0, estimated=4.0, measured=measured)


def planned(learnt: dict[KindOfRun, float], hardware: Hardware = HARDWARE) -> Plan:
    spec = make_spec(parallelism={"strategy": "ddp"})
    return plan(spec, nodes=1, ranks_per_node=2, hardware=hardware, learned=learnt)


def test_the_factor_is_what_estimated_terms_lacked() -> None:
    """2 GiB were exact and 4 estimated; 7 were needed, so the estimate lacked a quarter."""
    assert factor([run_with(7.0)] * FEWEST_RUNS) == 1.25
    assert run_with(7.0).error == pytest.approx(-1 / 7)


def test_the_shipped_formulas_are_the_floor() -> None:
    assert factor([run_with(5.0)] * FEWEST_RUNS) == 1.0


def test_a_few_runs_teach_nothing_and_one_odd_run_among_many_neither() -> None:
    assert factor([run_with(9.0)] * (FEWEST_RUNS - 1)) == 1.0
    assert factor([run_with(6.0)] * FEWEST_RUNS + [run_with(60.0)]) == 1.0


@given(st.lists(runs, max_size=12))
def test_a_factor_stays_between_1_and_its_cap(found: list[MeasuredRun]) -> None:
    assert 1.0 <= factor(found) <= MOST


def test_only_estimated_terms_grow_and_the_plan_says_why() -> None:
    before, after = planned({}), planned({KIND: 1.5})
    for old, new in zip(before.memory, after.memory, strict=True):
        grows = not old.exact and old.name != "process"
        assert math.isclose(new.gib, old.gib * (1.5 if grows else 1.0))
        assert ("x 1.5" in new.source) is grows
    assert after.needed_gib == pytest.approx(sum(term.gib for term in after.memory))
    assert after.learned_factor == 1.5
    assert planned({KindOfRun("cpu", ModelName.LLAMA, Strategy.DDP): 1.5}) == before


def test_what_a_site_has_learnt_is_not_learnt_twice() -> None:
    """A run that was planned with a factor counts as if it had been planned without."""
    first = weighed(planned({}), ModelName.GPT, [1.0, 1.2])
    again = weighed(planned({KIND: 1.5}), ModelName.GPT, [1.0, 1.2])
    assert first is not None
    assert again is not None
    assert first.measured == again.measured == 1.2
    assert math.isclose(first.estimated, again.estimated)
    assert first.exact == again.exact


def test_a_run_that_was_not_weighed_tells_nothing() -> None:
    assert weighed(planned({}), ModelName.GPT, []) is None


def test_the_table_has_a_row_for_each_kind() -> None:
    other = KindOfRun("cpu", ModelName.LLAMA, Strategy.FSDP)
    rows = table([run_with(7.0)] * 6 + [MeasuredRun(other, 1.0, 1.0, 2.0)])
    assert [(row.model, row.runs, row.factor) for row in rows] == [
        ("gpt", 6, 1.25),
        ("llama", 1, 1.0),
    ]
    assert rows[0].error_median == rows[0].error_least == pytest.approx(-1 / 7)
    assert learned(rows) == {KIND: 1.25}
