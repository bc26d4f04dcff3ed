"""A pipeline's curve is that of one rank, its checkpoints are anyone's, and what it cannot order is
refused. The matrix takes every schedule through every layout; here is what it leaves out.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from strategies.plan.planner import plan
from strategies.plan.rules.problem import Problem
from strategies.plan.spec import Precision, TrainSpec
from tests.strategies.support.law import BANDS, departure, distance
from tests.strategies.support.pool import Pool
from tests.strategies.support.training_runs import HARDWARE, Run, make_run_plan, make_spec

Options = dict[str, Any]
BAND = BANDS[Precision.FLOAT64]
LAYERS = 7  # no number of stages divides it


def pipeline(schedule: str, **fields: Any) -> Options:
    return {"strategy": "pipeline", "pipeline_schedule": schedule, **fields}


def spec_of(parallelism: Options, *, steps: int = 8, **changes: Any) -> TrainSpec:
    return make_spec(
        model={"name": "llama", "layers": LAYERS, "width": 32, "heads": 4, "kv_heads": 2},
        training__steps=steps,
        training__warmup_steps=3,
        training__schedule="constant",
        precision="float64",
        parallelism=parallelism,
        **{
            "training__eval_every_steps": 3,
            "training__gradient_accumulation_steps": 4,
            **changes,
        },
    )


@pytest.fixture(scope="module")
def one_rank(pool: Pool, ragged: Options, tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    """The runs that all others must follow: untied and tied, each of the whole batch at once."""
    return [
        pool.train(
            make_run_plan(
                spec_of(
                    {"strategy": "single"},
                    model__tied_embeddings=tied,
                    training__gradient_accumulation_steps=1,
                ),
                **ragged,
            ),
            tmp_path_factory.mktemp("one-rank"),
        )
        for tied in (False, True)
    ]


SEVERAL = {"pipeline_parallel_degree": 2}
CASES: list[Any] = [
    pytest.param(2, pipeline("GPipe"), False, id="GPipe", marks=pytest.mark.slow),
    pytest.param(2, pipeline("1F1B"), True, id="1F1B-tied"),
    pytest.param(
        2,
        pipeline("Interleaved1F1B", pipeline_stages_per_rank=3),
        False,
        id="six",
        marks=pytest.mark.slow,
    ),
    pytest.param(
        2,
        pipeline("InterleavedZeroBubble", pipeline_stages_per_rank=1),
        True,
        id="one-zero-tied",
        marks=pytest.mark.slow,
    ),
    pytest.param(2, pipeline("ZBVZeroBubble"), True, id="V-tied"),
    pytest.param(2, {"strategy": "naive"}, True, id="naive-tied", marks=pytest.mark.slow),
    pytest.param(4, pipeline("1F1B"), True, id="four-ranks-tied", marks=pytest.mark.slow),
    pytest.param(
        4,
        pipeline("ZBVZeroBubble", data_parallel_shard_degree=2, **SEVERAL),
        True,
        id="V-fsdp-tied",
        marks=pytest.mark.slow,
    ),
    pytest.param(
        8,
        pipeline("1F1B", data_parallel_shard_degree=2, tensor_parallel_degree=2, **SEVERAL),
        True,
        id="3D-tied",
        marks=pytest.mark.slow,
    ),
    pytest.param(
        8,
        pipeline(
            "InterleavedZeroBubble",
            data_parallel_replicate_degree=2,
            tensor_parallel_degree=2,
            sequence_parallel=True,
            **SEVERAL,
        ),
        False,
        id="3D-zero-sequence",
        marks=pytest.mark.slow,
    ),
]


@pytest.mark.gloo
@pytest.mark.parametrize(("ranks", "parallelism", "tied"), CASES)
def test_uneven_stages_follow_one_rank(
    ranks: int,
    parallelism: Options,
    tied: bool,
    pool: Pool,
    one_rank: list[Run],
    ragged: Options,
    tmp_path: Path,
) -> None:
    run_plan = make_run_plan(
        spec_of(parallelism, model__tied_embeddings=tied), ranks=ranks, **ragged
    )
    found = departure(pool.train(run_plan, tmp_path), one_rank[tied])
    assert found.within(BAND), str(found)


@pytest.mark.gloo
def test_every_rank_tells_what_it_waited_for_in_the_step_that_is_looked_into(
    pool: Pool, ragged: Options, tmp_path: Path
) -> None:
    """With as many stages as micro-batches a third of a GPipe step is its bubble; a rank also waits
    for what is sent and for a machine that is busy, so only the ends of the scale are sure."""
    spec = spec_of(
        pipeline("GPipe"),
        steps=20,
        model__layers=2,
        data__held_out=0,
        training__eval_every_steps=None,
    )
    run = pool.train(make_run_plan(spec, ranks=2, **ragged), tmp_path)
    text = run.directory.rank_metrics(1).read_text()
    others = [json.loads(line) for line in text.splitlines()]
    for lines in (run.lines, others):
        (look,) = (line for line in lines if "look_time_s" in line)
        assert look["step"] == 20
        assert look["max_active_gib"] > 0
        assert 0 < look["exposed_comm_time_s"] < look["look_time_s"]
    assert not any("loss" in line for line in others)


@pytest.mark.slow
@pytest.mark.gloo
def test_a_run_goes_on_in_other_layouts_as_if_uninterrupted(
    pool: Pool, ragged: Options, tmp_path: Path
) -> None:
    """The tied matrix is on one rank twice, once, on two ranks in halves, and on two whole."""
    legs: list[tuple[int, Options]] = [
        (2, pipeline("ZBVZeroBubble")),
        (1, {"strategy": "single"}),
        (4, pipeline("1F1B", data_parallel_shard_degree=2, **SEVERAL)),
        (2, pipeline("ZBVZeroBubble")),
        (2, {"strategy": "ddp"}),
    ]

    def run(ranks: int, parallelism: Options, steps: int, **fields: Any) -> Run:
        spec = spec_of(parallelism, steps=steps, model__tied_embeddings=True)
        path = tmp_path / f"{steps}-steps-on-{ranks}"
        return pool.train(make_run_plan(spec, ranks=ranks, **ragged, **fields), path)

    whole = run(1, {"strategy": "single"}, 3 * len(legs))
    curve: list[float] = []
    before: Options = {}
    for number, (ranks, parallelism) in enumerate(legs, start=1):
        leg = run(ranks, parallelism, 3 * number, **before)
        curve += leg.series("loss")
        before = {"resume_from": str(leg.directory.checkpoints)}
    assert curve == pytest.approx(whole.series("loss"), rel=BAND.loss)
    assert distance(leg, whole) <= BAND.weights


def problems(ranks: int, parallelism: Options, **changes: Any) -> list[Problem]:
    spec = make_spec(parallelism=parallelism, **{"model__layers": 8, **changes})
    return plan(spec, nodes=1, ranks_per_node=ranks, hardware=HARDWARE).problems


MICRO_BATCHES = "training__gradient_accumulation_steps"


@pytest.mark.parametrize(
    ("ranks", "parallelism", "changes", "param", "words"),
    [
        pytest.param(
            4, pipeline("1F1B"), {MICRO_BATCHES: 2}, MICRO_BATCHES,
            "at least 4, .*, not 2; the nearest gradient_accumulation_steps is 4", id="too-few",
        ),
        pytest.param(
            4, pipeline("1F1B"), {MICRO_BATCHES: 1}, MICRO_BATCHES,
            "not 1; the nearest .* is 4", id="only-one",
        ),
        pytest.param(
            2, pipeline("Interleaved1F1B"),
            {MICRO_BATCHES: 5, "training__global_batch_size": 10}, MICRO_BATCHES,
            "equal rounds of at least 2 .*, not 5; the nearest .* is 6", id="uneven-rounds",
        ),
        pytest.param(
            4, pipeline("InterleavedZeroBubble"),
            {MICRO_BATCHES: 9, "training__global_batch_size": 18}, MICRO_BATCHES,
            "not 9; the nearest .* is 10", id="uneven-rounds-zero",
        ),
        pytest.param(
            4, pipeline("GPipe"), {"model__layers": 3}, "pipeline_parallel_degree",
            "3 layers cannot fill 4 pipeline ranks x 1 .* take 4 layers or more, or .* degree of 2",
            id="too-few-layers",
        ),
        pytest.param(
            4, pipeline("ZBVZeroBubble"), {"model__layers": 7}, "pipeline_parallel_degree",
            r"7 layers .* 4 pipeline ranks x 2 .* 8 stages .* take 8 layers .* degree of 2",
            id="too-few-layers-for-two-each",
        ),
        pytest.param(
            2, pipeline("ZBVZeroBubble", pipeline_stages_per_rank=3), {},
            "pipeline_stages_per_rank", "ZBVZeroBubble has 2 .* not 3; take 2", id="V-of-three",
        ),
        pytest.param(
            2, pipeline("1F1B", pipeline_stages_per_rank=2), {MICRO_BATCHES: 2},
            "pipeline_stages_per_rank", "1F1B has 1 .* not 2; take 1, or Interleaved1F1B",
            id="two-of-1F1B",
        ),
        pytest.param(
            2, {"strategy": "naive", "pipeline_stages_per_rank": 2}, {},
            "pipeline_stages_per_rank", "naive has 1 .* not 2; take 1", id="two-of-naive",
        ),
        pytest.param(
            2, {"strategy": "ddp", "pipeline_stages_per_rank": 2}, {},
            "pipeline_stages_per_rank", "the pipeline degree is 1; take .* 2 or more", id="no-pipe",
        ),
        pytest.param(
            2, pipeline("ZBVZeroBubble"), {"compile": True}, "compile",
            "ZBVZeroBubble runs the backward .* two parts.*; take Interleaved1F1B", id="compiled",
        ),
        pytest.param(
            2, pipeline("InterleavedZeroBubble"), {"activation_checkpointing": "selective"},
            "activation_checkpointing", "take full or none", id="selective",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_ordered_is_refused_with_the_nearest_that_can(
    ranks: int, parallelism: Options, changes: Options, param: str, words: str
) -> None:
    found = problems(ranks, parallelism, **changes)
    field = param.rpartition("__")[2]
    assert any(p.param.endswith(field) and re.search(words, p.message) for p in found), found


def test_gpipe_and_naive_take_any_number_of_micro_batches() -> None:
    for micro_batches in (1, 2, 4, 8):
        for parallelism in (pipeline("GPipe"), {"strategy": "naive"}):
            assert not problems(4, parallelism, **{MICRO_BATCHES: micro_batches})
