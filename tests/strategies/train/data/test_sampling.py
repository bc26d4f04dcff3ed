"""Which sample comes when: decided by seed, pass and number, and, where asked for, by the rank."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies.plan.planner import plan
from strategies.plan.spec import Sampling
from strategies.train.data.sampling import Order, permuted, round_keys, windows_of
from tests.strategies.support.pool import Pool
from tests.strategies.support.training_runs import HARDWARE, make_run_plan, make_spec


@given(st.integers(1, 5000), st.integers(0, 2**63 - 1), st.integers(0, 10))
def test_the_order_of_a_pass_is_a_permutation(count: int, seed: int, pass_number: int) -> None:
    places = np.arange(count)
    order = permuted(places, count=count, keys=round_keys(str(seed), pass_number))
    assert sorted(order.tolist()) == places.tolist()


def test_orders_of_seeds_ranks_and_passes_look_unrelated() -> None:
    count = 20_000
    streams = (("1", 0), ("1", 1), ("2", 0), ("1:rank 0", 0), ("1:rank 1", 0))
    orders = [
        permuted(np.arange(count), count=count, keys=round_keys(stream, number))
        for stream, number in streams
    ]
    orders.append(np.arange(count))
    for i, first in enumerate(orders):
        for second in orders[:i]:
            # 20,000 independent draws: a correlation beyond 5 / sqrt(n) is no accident.
            assert abs(np.corrcoef(first, second)[0, 1]) < 5 / np.sqrt(count)
    hits = np.histogram(orders[0][:2000], bins=20, range=(0, count))[0]
    assert hits.min() > 50  # of 100 expected


def test_a_place_far_away_costs_no_shuffle() -> None:
    count = 10**12
    found = windows_of(np.array([3 * count + 5, 3 * count + 6]), count, "9")
    assert len(set(found.tolist())) == 2
    assert all(0 <= window < count for window in found.tolist())


@given(st.integers(1, 50), st.integers(0, 400), st.integers(1, 120))
def test_each_pass_visits_every_window_once_wherever_steps_begin(
    num_windows: int, start: int, length: int
) -> None:
    numbers = np.arange(start, start + length)
    windows = windows_of(numbers, num_windows, "4")
    everything = windows_of(np.arange(start + length), num_windows, "4")
    assert windows.tolist() == everything[start:].tolist()
    for number in range((start + length) // num_windows):
        whole = everything[number * num_windows : (number + 1) * num_windows]
        assert sorted(whole.tolist()) == list(range(num_windows))


def order(sampling: str, *, ranks: int = 2, micro: int = 3, num_windows: int = 60) -> Order:
    return Order(
        Sampling(sampling), num_windows, seed=7, batch_degree=ranks, micro_batch_size=micro
    )


def seen_by(found: Order, rank: int, *, steps: int, step_size: int) -> list[int]:
    """The windows of one rank, in its own order, taken step by step."""
    windows = []
    for step in range(steps):
        of_step = found.windows(step * step_size, step_size)
        shares = of_step.reshape(-1, found.batch_degree, found.micro_batch_size)
        windows += shares[:, rank].flatten().tolist()
    return windows


def test_partitioned_ranks_permute_their_own_parts_and_see_no_other() -> None:
    found = order("partitioned")
    parts = [seen_by(found, rank, steps=5, step_size=12) for rank in (0, 1)]
    assert sorted(parts[0]) == list(range(30))
    assert sorted(parts[1]) == list(range(30, 60))
    assert parts[0] != sorted(parts[0])
    assert [window - 30 for window in parts[1]] != parts[0]
    twice = seen_by(found, 0, steps=10, step_size=12)
    assert twice[:30] == parts[0]
    assert sorted(twice[30:]) == sorted(parts[0])
    assert twice[30:] != parts[0]


def test_parts_differ_by_one_window_at_most() -> None:
    found = order("partitioned", ranks=4, num_windows=62)
    parts = [found.windows_seen_by(rank) for rank in range(4)]
    assert [first for first, _ in parts] == [0, 15, 31, 46]
    assert sum(size for _, size in parts) == 62


def test_independent_ranks_meet_the_same_windows() -> None:
    """Two ranks draw 60 of 60 windows each in 120 samples: every window twice, none shared out."""
    found = order("independent")
    seen = [seen_by(found, rank, steps=10, step_size=12) for rank in (0, 1)]
    assert sorted(seen[0]) == sorted(seen[1]) == list(range(60))
    assert seen[0] != seen[1]
    half = {*seen[0][:30], *seen[1][:30]}  # one pass over the data, had they shared it
    assert len(half) < 60
    assert len(half) == pytest.approx(60 * (1 - 1 / 4), abs=8)


@pytest.mark.parametrize("sampling", list(Sampling))
@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.integers(0, 60))
def test_a_run_that_goes_on_keeps_its_place(
    sampling: Sampling, ranks: int, micro: int, accumulation: int, steps: int
) -> None:
    found = order(sampling, ranks=ranks, micro=micro)
    step_size = ranks * micro * accumulation
    whole = found.windows(0, (steps + 3) * step_size)
    after = found.windows(steps * step_size, 3 * step_size)
    assert after.tolist() == whole[steps * step_size :].tolist()


def test_too_few_windows_for_as_many_parts() -> None:
    found = order("partitioned", ranks=4, num_windows=3)
    assert [found.windows_seen_by(rank)[1] for rank in range(4)] == [0, 1, 1, 1]


def small(sampling: str, **changes: Any) -> Any:
    return make_spec(
        data__sampling=sampling,
        precision="float64",
        training__schedule="constant",
        training__warmup_steps=2,
        model__layers=1,
        model__width=32,
        **{"training__steps": 6, **changes},
    )


@pytest.mark.parametrize("sampling", ["partitioned", "independent"])
def test_the_plan_does_not_promise_one_ranks_curve(sampling: str) -> None:
    found = plan(small(sampling), nodes=1, ranks_per_node=1, hardware=HARDWARE)
    assert found.runnable
    assert found.result_class == "exempt"


@pytest.mark.gloo
@pytest.mark.parametrize(
    "sampling", ["partitioned", pytest.param("independent", marks=pytest.mark.slow)]
)
def test_curves_differ_from_the_global_order_and_resume_continues_them(
    sampling: str, pool: Pool, ragged: dict[str, Any], tmp_path: Path
) -> None:
    def train(name: str, sampling: str, steps: int) -> list[float]:
        spec = small(sampling, training__steps=steps, parallelism={"strategy": "ddp"})
        run_plan = make_run_plan(spec, ranks=2, **ragged)
        return pool.train(run_plan, tmp_path / name).series("loss")

    law, whole = train("law", "global", 6), train("whole", sampling, 6)
    train("stopped", sampling, 3)
    assert train("stopped", sampling, 6) == pytest.approx(whole, rel=1e-13)
    assert max(abs(a - b) for a, b in zip(whole, law, strict=True)) > 1e-3
