"""What the planner says of runs that others have published: that they fit, how fast they are."""

from collections import Counter

import pytest

from strategies.plan.planner import Plan
from tests.strategies.support.published_runs import SOURCES, published_runs, speed_of

RUNS = published_runs()
# What our engine keeps, and theirs does not, in the only run that fits there and not here.
NEED_MORE_HERE = {
    "torchtitan-a100 llama-2-70b 64 x a100-80gb 1x4096 fsdp bfloat16 selective": (
        "every product is kept; torchtitan computes every second one again"
    ),
}
AS_WIDE_AS = 1.8  # a range's end over its start, where traffic is hidden or none


@pytest.fixture(scope="module")
def plans() -> dict[str, Plan]:
    return {run.name: run.planned() for run in RUNS}


def test_every_run_has_a_source_and_a_name_of_its_own() -> None:
    assert {run.source for run in RUNS} == set(SOURCES)
    assert all(address.startswith("https://") for address in SOURCES.values())
    assert max(Counter((run.name, run.accumulation) for run in RUNS).values()) == 1
    assert len(RUNS) > 200


def test_what_ran_is_said_to_fit(plans: dict[str, Plan]) -> None:
    refused = {
        run.name: f"{plans[run.name].needed_gib:.1f} of {plans[run.name].capacity_gib:.1f}"
        for run in RUNS
        if run.ran and not plans[run.name].fits
    }
    assert refused.keys() == NEED_MORE_HERE.keys(), refused


def test_nine_of_ten_speeds_are_in_their_range_which_is_narrow(plans: dict[str, Plan]) -> None:
    inside, outside = [], []
    for run in RUNS:
        said = speed_of(run, plans[run.name])
        if run.tokens_per_s is None or said is None:
            continue
        least, _, most = said
        if run.gpus == 1:
            assert most / least < AS_WIDE_AS
        (inside if least <= run.tokens_per_s <= most else outside).append(run.name)
    assert len(inside) > 200
    assert len(outside) <= 0.1 * (len(inside) + len(outside)), outside
