"""A finished run stays finished, whatever becomes of the files that it leaves."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from strategies.plan.data.stored_tokenizer import tokenizer_from
from strategies.plan.data.tokens import Characters
from strategies.plan.run_directory import Result, RunPlan, newest_checkpoint
from strategies.plan.spec import TrainSpec
from strategies.train.farewell import export_weights
from strategies.train.init import build_model
from tests.strategies.support.training_runs import Run, WarmRanks, make_run_plan, make_spec

BOTH = ["model.safetensors", "sample.txt"]


def short_run(ragged: dict[str, Any], **fields: Any) -> RunPlan:
    spec = make_spec(
        training__steps=3,
        training__global_batch_size=2,
        training__warmup_steps=1,
        model__layers=1,
        model__width=16,
        parallelism__strategy="ddp",
    )
    return make_run_plan(spec, ranks=2, **{"sample_bytes": 5, **ragged, **fields})


def assert_is_finished(run: Run, missing: list[str]) -> None:
    result = run.result
    assert (result.finished, result.step, result.reason) == (True, 3, "finished")
    assert result.missing == missing
    newest = newest_checkpoint(run.directory.checkpoints)
    assert newest is not None
    assert newest.name == result.checkpoint == "step-000003"


@pytest.mark.gloo
def test_no_rank_waits_for_a_slow_sample(
    warm: WarmRanks, ragged: dict[str, Any], tmp_path: Path
) -> None:
    """The first rank's sample takes until the other one has left, however long that is."""
    run = warm.train(
        short_run(ragged, collective_timeout_s=2.0), tmp_path / "run", case="train_with_slow_sample"
    )
    assert_is_finished(run, missing=[])
    assert run.result.sample == (run.directory.artifacts / "sample.txt").read_text()
    before = Result.model_validate_json((tmp_path / "run/rank-1-left").read_bytes())
    assert before.finished
    assert before.sample is None


@pytest.mark.gloo
@pytest.mark.slow
def test_a_run_that_is_killed_while_it_samples_is_finished_and_names_what_is_missing(
    warm: WarmRanks, ragged: dict[str, Any], tmp_path: Path
) -> None:
    """SIGTERM ends it at once: there is nothing left to save. Started again, it only samples."""
    plan = short_run(ragged)
    run, started = warm.start_training(plan, tmp_path / "run", case="train_with_endless_sample")
    while not (run.directory.path / "sampling").exists():
        time.sleep(0.01)
    assert_is_finished(run, missing=["sample.txt"])
    os.kill(started.pids[0], signal.SIGTERM)
    assert started.wait() == [-signal.SIGTERM, 0]
    assert_is_finished(run, missing=["sample.txt"])

    steps = run.series("loss")
    again = warm.train(plan, tmp_path / "run")
    assert again.series("loss") == steps
    assert_is_finished(again, missing=[])
    assert again.result.sample


@pytest.mark.gloo
def test_a_run_whose_weights_cannot_be_exported_is_finished_and_says_why(
    warm: WarmRanks, ragged: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "run/artifacts/model.safetensors").mkdir(parents=True)
    run, started = warm.start_training(short_run(ragged), tmp_path / "run")
    assert started.wait() == [1, 0]
    assert_is_finished(run, missing=BOTH)
    assert warm.error(0)["type"] == "IsADirectoryError"


def test_weights_are_exported_by_name_with_their_spec(tmp_path: Path) -> None:
    spec = make_spec()
    weights = dict(build_model(spec, device=torch.device("cpu")).named_parameters())
    path = tmp_path / "model.safetensors"
    detached = {name: tensor.detach() for name, tensor in weights.items()}
    export_weights(path, detached, spec, Characters("to be, or not"))
    with safe_open(path, framework="pt") as file:  # type: ignore[no-untyped-call]
        assert TrainSpec.model_validate_json(file.metadata()["spec"]) == spec
        assert tokenizer_from(file.metadata()["tokenizer"]).decode([1, 4, 5]) == ",no"
        assert set(file.keys()) == set(weights)
        for name, tensor in weights.items():
            assert torch.equal(file.get_tensor(name), tensor)
    assert [file.name for file in tmp_path.iterdir()] == ["model.safetensors"]
