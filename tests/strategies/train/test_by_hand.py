"""`torchrun -m strategies.train` works by hand, with nothing else of the repository."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from strategies.plan.built_in.datasets import prepare
from strategies.plan.durable_files import json_bytes
from strategies.plan.run_directory import RunPlan, newest_checkpoint
from tests.strategies.support.training_runs import (
    REPOSITORY,
    Run,
    WarmRanks,
    make_run_plan,
    make_spec,
)

pytestmark = pytest.mark.gloo

OTHERS = [
    "core",
    "api",
    "scheduler",
    "simulation",
    "worker",
    "dashboard",
    "standalone",
    "trainyard",
]


@pytest.fixture
def alone(tmp_path: Path) -> dict[str, str]:
    """An environment that finds a copy of strategies, and breaks on any other part of ours."""
    copy = tmp_path / "copy"
    shutil.copytree(REPOSITORY / "strategies", copy / "strategies")  # with what is compiled
    for name in OTHERS:
        (copy / name).mkdir()
        (copy / name / "__init__.py").write_text(f"raise ImportError('{name} must not be needed')")
    return {**os.environ, "PYTHONPATH": str(copy), "XDG_CACHE_HOME": str(tmp_path / "cache")}


def torchrun(run: Run, ranks: int, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(ranks), "-m", "strategies.train"]
    command += ["--plan", str(run.directory.plan), "--run-dir", str(run.directory.path)]
    environment = {**environment, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        command,
        env=environment,
        cwd=run.directory.path,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )


def built_in_plan(**fields: Any) -> RunPlan:
    spec = make_spec(
        data={"dataset": "python-stdlib", "sequence_length": 64},
        training__steps=30,
        training__eval_every_steps=10,
        training__max_grad_norm=1.0,
        parallelism__strategy="ddp",
    )
    return make_run_plan(spec, ranks=2, sample_bytes=40, **fields)


@pytest.mark.slow
def test_two_ranks_of_torchrun_train_on_the_built_in_text_to_the_end(
    alone: dict[str, str], tmp_path: Path
) -> None:
    run = Run(tmp_path / "run")
    run.directory.path.mkdir()
    run.directory.plan.write_bytes(json_bytes(built_in_plan()))
    done = torchrun(run, 2, alone)
    assert done.returncode == 0, done.stderr
    assert_trained_to_the_end(run)


def test_two_forked_ranks_train_on_the_built_in_text_to_the_end(
    warm: WarmRanks, tmp_path: Path
) -> None:
    text = prepare("python-stdlib", tmp_path / "cache")
    assert_trained_to_the_end(warm.train(built_in_plan(dataset_path=str(text)), tmp_path / "run"))


def assert_trained_to_the_end(run: Run) -> None:
    assert run.series("step")[-1] == 30
    expected = (
        "step time loss grad_norm lr tokens_seen tps tokens_per_s step_time_s data_time_s tflops"
    )
    first = run.lines[0]
    once_a_second = {"cpu_pct"}  # so in the first line only of a slow step
    assert set(first) - once_a_second == {*expected.split(), "max_active_gib"}
    assert first["tokens_seen"] == 8 * 64
    assert first["tps"] == pytest.approx(first["tokens_per_s"] / 2)
    assert first["tokens_per_s"] == pytest.approx(8 * 64 / first["step_time_s"])
    assert [line["step"] for line in run.lines if "eval_loss" in line] == [10, 20, 30]
    result = run.result
    assert (result.finished, result.reason, result.step) == (True, "finished", 30)
    assert result.loss_first == pytest.approx(sum(run.series("loss")[:5]) / 5)
    assert result.loss_last == pytest.approx(sum(run.series("loss")[-10:]) / 10)
    assert result.loss_last < result.loss_first - 1
    assert result.eval_loss == run.series("eval_loss")[-1]
    assert result.checkpoint == "step-000030"
    newest = newest_checkpoint(run.directory.checkpoints)
    assert newest is not None
    assert newest.name == "step-000030"
    assert result.sample is not None
    assert result.sample.startswith("class ")
    assert (run.directory.artifacts / "sample.txt").read_text() == result.sample
    assert (run.directory.artifacts / "model.safetensors").stat().st_size > 4 * 200_000
    assert sorted(path.name for path in run.directory.path.iterdir()) == [
        "artifacts",
        "checkpoints",
        "metrics-rank-1.jsonl",
        "metrics.jsonl",
        "plan.json",
        "result.json",
    ]


@pytest.mark.slow  # of a rank alone: test_control.py
def test_bad_data_is_told_to_torchrun_by_code_and_error_file(
    alone: dict[str, str], tmp_path: Path
) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    run = Run(tmp_path / "run")
    run.directory.path.mkdir()
    run_plan = make_run_plan(make_spec(), dataset_path=str(empty))
    run.directory.plan.write_bytes(json_bytes(run_plan))
    told = tmp_path / "error.json"
    done = torchrun(run, 1, {**alone, "TORCHELASTIC_ERROR_FILE": str(told)})
    assert done.returncode == 1  # torchrun's own code is always 1
    assert "exitcode  : 65" in done.stderr
    record: dict[str, Any] = json.loads(told.read_text())
    assert "is empty (0 bytes)" in record["message"]
    assert record["type"] == "BadData"
    assert "exitcode  : 65" in done.stderr


@pytest.mark.slow
def test_a_plan_that_is_not_one_is_told(alone: dict[str, str], tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text('{"spec": 1}')
    command = [sys.executable, "-m", "strategies.train", "--plan", str(plan)]
    done = subprocess.run(
        [*command, "--run-dir", str(tmp_path / "run")],
        env=alone,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "spec" in done.stderr
    assert "dataset_path" not in done.stderr
