"""ZeRO against one rank, its offloads, its checkpoints, its end, and what it refuses."""

from pathlib import Path
from typing import Any

import pytest
import torch

from strategies.plan.planner import Plan, plan
from strategies.plan.run_directory import Action, ExitCode, write_control
from strategies.plan.spec import Precision, TrainSpec
from strategies.train.engines.async_io import missing_packages
from tests.strategies.support.law import BANDS, departure, trained_weights
from tests.strategies.support.pool import Pool
from tests.strategies.support.training_runs import (
    HARDWARE,
    Options,
    Run,
    WarmRanks,
    make_run_plan,
    make_spec,
)

gloo = [pytest.mark.gloo]
LATER = pytest.mark.slow
MODEL = {
    "model__name": "llama",
    "model__layers": 2,
    "model__width": 32,
    "model__kv_heads": 2,
    "data__sequence_length": 32,
    "training__steps": 8,
}
ONE_STEP = MODEL | {"training__steps": 1, "training__warmup_steps": 1}
IN_PARTS = {"training__micro_batch_size": 2}
OPTIMIZER = {"parallelism__offload_optimizer": "cpu"}
PARAMETERS = {"parallelism__offload_parameters": "cpu"}
BAND = BANDS[Precision.FLOAT32]
Ones = dict[TrainSpec, Run]


def zero(stage: int, **changes: Any) -> Options:
    return {"parallelism__strategy": f"zero{stage}", **changes}


def planned(ranks: int = 2, **changes: Any) -> Plan:
    return plan(make_spec(**changes), nodes=1, ranks_per_node=ranks, hardware=HARDWARE)


def stages(quick: int) -> list[Any]:
    """Each of them, the optimizer of stage 2 offloaded; those but one are for `make test-all`."""
    return [
        pytest.param(stage, changes, id=name, marks=() if stage == quick else LATER)
        for stage, changes, name in ((1, {}, "1"), (2, OPTIMIZER, "2-offloaded"), (3, {}, "3"))
    ]


@pytest.fixture(scope="module")
def ones() -> Ones:
    """The runs of one rank."""
    return {}


class TestRanks:
    pytestmark = gloo

    @pytest.mark.parametrize(
        ("stage", "changes"),
        [
            pytest.param(1, IN_PARTS, id="1"),
            pytest.param(2, IN_PARTS, id="2", marks=LATER),
            pytest.param(3, IN_PARTS, id="3", marks=LATER),
            pytest.param(1, IN_PARTS | OPTIMIZER, id="1-optimizer-offloaded", marks=LATER),
            pytest.param(2, OPTIMIZER, id="2-optimizer-offloaded", marks=LATER),
            pytest.param(3, IN_PARTS | OPTIMIZER | PARAMETERS, id="3-both-offloaded"),
            pytest.param(3, PARAMETERS, id="3-parameters-offloaded", marks=LATER),
            pytest.param(2, {"training__optimizer": "sgd"}, id="2-sgd"),
            pytest.param(3, {"tiling__loss_parts": 4}, id="3-loss-in-parts", marks=LATER),
        ],
    )
    def test_every_stage_follows_one_rank(
        self, stage: int, changes: Options, pool: Pool, ragged: Options, ones: Ones, tmp_path: Path
    ) -> None:
        self.compare(2, zero(stage, **changes), pool, ragged, ones, tmp_path)

    @pytest.mark.slow
    @pytest.mark.parametrize("stage", [1, 2, 3])
    def test_four_ranks_follow_it_for_50_steps(
        self, stage: int, pool: Pool, ragged: Options, ones: Ones, tmp_path: Path
    ) -> None:
        changes = zero(stage, training__steps=50, model__tied_embeddings=True)
        self.compare(4, changes, pool, ragged, ones, tmp_path)

    @pytest.mark.slow
    def test_one_rank_alone_may_offload(
        self, pool: Pool, ragged: Options, ones: Ones, tmp_path: Path
    ) -> None:
        self.compare(1, zero(3, **OPTIMIZER), pool, ragged, ones, tmp_path)

    @pytest.mark.parametrize(("stage", "changes"), stages(2))
    def test_it_clips_where_the_spec_says_and_nowhere_else(
        self, stage: int, changes: Options, pool: Pool, ragged: Options, ones: Ones, tmp_path: Path
    ) -> None:
        """DeepSpeed's own clipping, at 1 where nobody says otherwise, must stay out of it."""
        clipped = zero(stage, training__max_grad_norm=3.0, **changes)
        norms = self.compare(2, clipped, pool, ragged, ones, tmp_path).series("grad_norm")
        assert any(norm > 3 for norm in norms)
        assert any(1 < norm < 3 for norm in norms)

    def compare(
        self, ranks: int, changes: Options, pool: Pool, ragged: Options, ones: Ones, path: Path
    ) -> Run:
        """Train the split run and, once, its twin on one rank; the curves must be one."""
        plain = {
            name: value
            for name, value in changes.items()
            if not name.startswith("parallelism") and name not in IN_PARTS
        }
        alone, spec = make_spec(**MODEL | plain), make_spec(**MODEL | changes)
        if alone not in ones:
            ones[alone] = pool.train(make_run_plan(alone, **ragged), path / "one")
        run = pool.train(make_run_plan(spec, ranks=ranks, **ragged), path / "run")
        found = departure(run, ones[alone])
        assert found.within(BAND), str(found)
        return run

    def test_a_run_goes_on_in_another_engine_and_comes_back(
        self, pool: Pool, ragged: Options, tmp_path: Path
    ) -> None:
        legs: list[tuple[int, Options]] = [
            (2, zero(2)),
            (2, {"parallelism__strategy": "ddp"}),
            (1, {}),
            (2, zero(3)),
            (4, zero(1, **OPTIMIZER)),
            (2, {"parallelism__strategy": "fsdp"}),
            (1, zero(3, **OPTIMIZER)),
        ]
        run = Run(tmp_path / "run")
        run.directory.path.mkdir()
        for ranks, changes in legs:
            spec = make_spec(**MODEL | changes | {"training__steps": len(legs)})
            write_control(run.directory.control, Action.STOP)  # is seen in the first step
            pool.train(make_run_plan(spec, ranks=ranks, **ragged), run.directory.path)
        spec = make_spec(**MODEL | {"training__steps": len(legs)})
        one = pool.train(make_run_plan(spec, **ragged), tmp_path / "one")
        found = departure(run, one)
        assert found.within(BAND), str(found)

    @pytest.mark.parametrize(("stage", "changes"), stages(3))
    def test_what_is_saved_has_32_bits_where_the_model_computes_in_16(
        self, stage: int, changes: Options, pool: Pool, ragged: Options, tmp_path: Path
    ) -> None:
        """The first weights, too, which so small a learning rate does not change."""
        still: Options = {"training__learning_rate": 1e-30, "training__steps": 1}
        plain = MODEL | still | {"training__warmup_steps": 0, "training__weight_decay": 0.0}
        one = pool.train(make_run_plan(make_spec(**plain), **ragged), tmp_path / "one")
        spec = make_spec(**plain | zero(stage, precision="bfloat16", **changes))
        run = pool.train(make_run_plan(spec, ranks=2, **ragged), tmp_path / "run")
        found, wanted = trained_weights(run), trained_weights(one)
        assert found.keys() == wanted.keys()
        for name, weight in wanted.items():
            assert torch.equal(found[name], weight), name

    @pytest.mark.slow
    def test_a_run_in_16_bits_goes_on_in_another_engine_and_comes_back(
        self, pool: Pool, ragged: Options, tmp_path: Path
    ) -> None:
        """Each leg takes the same micro-batches, so that all gradients are the same numbers."""
        short: Options = {
            "precision": "bfloat16",
            "training__steps": 4,
            "training__warmup_steps": 1,
            "training__micro_batch_size": 2,
        }
        legs: list[tuple[int, Options]] = [
            (2, zero(3)),
            (2, {"parallelism__strategy": "fsdp"}),
            (2, zero(2, **OPTIMIZER)),
            (2, zero(1)),
        ]
        run = Run(tmp_path / "run")
        run.directory.path.mkdir()
        for ranks, changes in legs:
            spec = make_spec(**MODEL | changes | short)
            write_control(run.directory.control, Action.STOP)  # is seen in the first step
            pool.train(make_run_plan(spec, ranks=ranks, **ragged), run.directory.path)
        spec = make_spec(**MODEL | short)
        one = pool.train(make_run_plan(spec, **ragged), tmp_path / "one")
        found = departure(run, one)
        assert found.within(BAND), str(found)

    def test_each_rank_saves_its_own_part(
        self, pool: Pool, ragged: Options, tmp_path: Path
    ) -> None:
        run = pool.train(
            make_run_plan(make_spec(**ONE_STEP | zero(1)), ranks=2, **ragged), tmp_path / "run"
        )
        sizes = [path.stat().st_size for path in run.directory.checkpoints.rglob("__*_0.distcp")]
        assert len(sizes) == 2
        assert max(sizes) < 1.1 * min(sizes)

    @pytest.mark.parametrize(("stage", "changes"), stages(3))
    def test_a_broken_gradient_stops_the_run_before_the_update(
        self, stage: int, changes: Options, warm: WarmRanks, ragged: Options, tmp_path: Path
    ) -> None:
        spec = make_spec(**MODEL | zero(stage, **changes))
        run_plan = make_run_plan(spec, ranks=2, **ragged)
        run, started = warm.start_training(run_plan, tmp_path / "run", engine="SpoiledZeroEngine")
        assert started.wait() == [ExitCode.DIVERGED] * 2, warm.said()
        for rank in (0, 1):
            message = warm.error(rank)["message"]
            assert message.startswith("step 2: the loss is finite, but the gradient norm is nan")
            assert " on rank 1; the weights of step 1" in message
        assert run.series("step") == [1]

    @pytest.mark.parametrize(("stage", "changes"), stages(1))
    def test_a_step_that_overflows_is_skipped_and_the_next_one_counts(
        self, stage: int, changes: Options, warm: WarmRanks, ragged: Options, tmp_path: Path
    ) -> None:
        spec = make_spec(**MODEL | zero(stage, precision="float16", **changes))
        run_plan = make_run_plan(spec, ranks=2, **ragged)
        run = warm.train(run_plan, tmp_path / "run", engine="OverflowingZeroEngine")
        lines = [line for line in run.lines if "skipped_steps" in line]
        assert lines[2]["skipped_steps"] == lines[1]["skipped_steps"] + 1
        assert lines[2].get("grad_norm") is None
        assert lines[-1]["skipped_steps"] <= 3  # the first scale overflows by itself
        assert lines[-1]["loss"] < lines[2]["loss"]

    @pytest.mark.slow
    @pytest.mark.parametrize("stage", [2, 3])
    def test_it_stops_when_told_to_says_nothing_and_leaves_nothing(
        self,
        stage: int,
        warm: WarmRanks,
        ragged: Options,
        tmp_path: Path,
    ) -> None:
        spec = make_spec(**MODEL | zero(stage, training__steps=20))
        run_plan = make_run_plan(spec, ranks=2, **ragged)
        run = warm.train(run_plan, tmp_path / "run", engine="TerminatedZeroEngine")
        assert (run.result.reason, run.result.step) == ("stopped", 8)
        for log in warm.logs.glob("rank-*/std*.log"):
            assert "DeepSpeed" not in log.read_text()
            assert log.name != "stderr.log" or log.read_text() == ""
        known = {"plan.json", "metrics.jsonl", "result.json", "checkpoints", "artifacts"}
        known.add("metrics-rank-1.jsonl")
        assert {path.name for path in run.directory.path.iterdir()} <= known


FILES = {
    "parallelism__offload_optimizer": "nvme",
    "parallelism__offload_parameters": "nvme",
}
# Clipped by factors that differ in the last bit, some of two million weights would round otherwise.
IN_16_BITS = {"precision": "bfloat16", "training__max_grad_norm": 1e9}
# Parts of 1 MiB and more are swapped, of two ranks those of both matrices of the feed-forward part.
SWAPPED = {**MODEL, "model__name": "gpt", "model__kv_heads": None, "model__width": 512}


@pytest.mark.gloo
@pytest.mark.slow
class TestFiles:
    """Weights and the optimizer's state in files. Slow: the library that reads and writes them is
    compiled where it has not been."""

    @pytest.fixture(autouse=True)
    def equipped(self) -> None:
        if missing := missing_packages():
            pytest.skip(f"DeepSpeed's async_io cannot be compiled here: no {', no '.join(missing)}")

    @pytest.mark.parametrize(
        ("ranks", "changes"),
        [
            (1, FILES),
            (2, {"parallelism__offload_optimizer": "nvme", **IN_PARTS}),
            (2, FILES | IN_PARTS | {"model__tied_embeddings": True}),
            (2, FILES | {"training__optimizer": "sgd"}),
            (2, FILES | IN_16_BITS),
        ],
        ids=["1", "2-optimizer", "2-both", "2-both-sgd", "2-both-16-bits"],
    )
    def test_they_follow_one_rank_and_are_gone_at_the_end(
        self, ranks: int, changes: Options, warm: WarmRanks, ragged: Options, tmp_path: Path
    ) -> None:
        plain = {
            name: value
            for name, value in changes.items()
            if not name.startswith("parallelism") and name not in IN_PARTS
        }
        if "precision" in plain:  # the micro-batches of two ranks, for the same numbers
            plain["training__gradient_accumulation_steps"] = 2
        one = warm.train(make_run_plan(make_spec(**SWAPPED | plain), **ragged), tmp_path / "one")
        run_plan = make_run_plan(make_spec(**SWAPPED | zero(3, **changes)), ranks=ranks, **ragged)
        run = warm.train(run_plan, tmp_path / "run", case="train_in_run_directory")
        found = departure(run, one)
        assert found.within(BAND), str(found)
        assert list(run.directory.path.glob("swap-*")) == []

    def test_a_run_goes_on_from_files_and_to_files(
        self, warm: WarmRanks, ragged: Options, tmp_path: Path
    ) -> None:
        legs: list[tuple[int, Options]] = [(2, zero(3, **FILES)), (1, {}), (1, zero(3, **FILES))]
        short: Options = {"training__steps": len(legs), "training__warmup_steps": 1}
        run = Run(tmp_path / "run")
        run.directory.path.mkdir()
        for ranks, changes in legs:
            spec = make_spec(**SWAPPED | changes | short)
            write_control(run.directory.control, Action.STOP)  # is seen in the first step
            run_plan = make_run_plan(spec, ranks=ranks, **ragged)
            warm.train(run_plan, run.directory.path, case="train_in_run_directory")
        spec = make_spec(**SWAPPED | short)
        one = warm.train(make_run_plan(spec, **ragged), tmp_path / "one")
        found = departure(run, one)
        assert found.within(BAND), str(found)

    def test_a_broken_gradient_stops_the_run_before_the_update(
        self, warm: WarmRanks, ragged: Options, tmp_path: Path
    ) -> None:
        run_plan = make_run_plan(make_spec(**SWAPPED | zero(3, **FILES)), ranks=2, **ragged)
        run, started = warm.start_training(
            run_plan, tmp_path / "run", case="train_in_run_directory", engine="SpoiledZeroEngine"
        )
        assert started.wait() == [ExitCode.DIVERGED] * 2, warm.said()
        assert "the gradient norm is nan" in warm.error(0)["message"]
        assert run.series("step") == [1]

    def test_a_step_that_overflows_is_skipped_and_the_next_one_counts(
        self, warm: WarmRanks, ragged: Options, tmp_path: Path
    ) -> None:
        spec = make_spec(**SWAPPED | zero(3, precision="float16", **FILES))
        run = warm.train(
            make_run_plan(spec, ranks=2, **ragged),
            tmp_path / "run",
            case="train_in_run_directory",
            engine="OverflowingZeroEngine",
        )
        lines = [line for line in run.lines if "skipped_steps" in line]
        assert lines[2]["skipped_steps"] == lines[1]["skipped_steps"] + 1
        assert lines[-1]["loss"] < lines[2]["loss"]


@pytest.mark.parametrize(
    ("changes", "code", "said"),
    [
        (
            zero(2, parallelism__tensor_parallel_degree=2),
            "zero_shards_alone",
            "zero2 only shards, and cannot run with tensor_parallel_degree 2; take strategy fsdp",
        ),
        (
            zero(1, parallelism__data_parallel_replicate_degree=2),
            "zero_shards_alone",
            "cannot run with data_parallel_replicate_degree 2; take strategy hsdp",
        ),
        (
            {"parallelism__strategy": "ddp", **OPTIMIZER},
            "offload_needs_shards",
            "offload_optimizer cpu needs strategy zero1, zero2 or zero3, or for cpu fsdp or hsdp, "
            "not ddp",
        ),
        (
            zero(2, **PARAMETERS),
            "offload_needs_shards",
            "offload_parameters cpu needs strategy zero3, or for cpu fsdp or hsdp, not zero2",
        ),
        (
            zero(2, parallelism__offload_optimizer="nvme"),
            "offload_needs_shards",
            "offload_optimizer nvme needs strategy zero3, not zero2",
        ),
        (
            zero(3, parallelism__offload_parameters="nvme", **OPTIMIZER),
            "not_supported_together",
            "offload_parameters nvme needs offload_optimizer nvme",
        ),
        (
            zero(3, precision="pure_bfloat16"),
            "not_supported_together",
            "zero3 keeps weights in float32",
        ),
        (
            zero(1, training__optimizer="adamw_8bit"),
            "not_supported_together",
            "adamw_8bit cannot update the flat rows of zero1; take adamw or sgd",
        ),
    ],
)
def test_it_says_what_it_cannot_be_combined_with(changes: Options, code: str, said: str) -> None:
    found = planned(ranks=4, **changes)
    assert any(problem.code == code and said in problem.message for problem in found.problems)
    assert not found.runnable


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_it_takes_all_ranks_and_promises_float32(stage: int) -> None:
    found = planned(ranks=4, **zero(stage), precision="float64")
    assert found.runnable, found.problems
    assert found.layout.shard == 4
    assert found.result_class == "exact"
    assert any("only as closely as float32 does" in warning for warning in found.warnings)
