"""Checkpoints survive crashes, damage and a change of layout."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from strategies.plan.durable_files import sha256_of
from strategies.plan.run_directory import (
    BadCheckpoint,
    ExitCode,
    newest_checkpoint,
    read_manifest,
    verify_checkpoint,
)
from strategies.train.checkpoints.checkpoint import require_same_model
from tests.strategies.support.training_runs import Run, WarmRanks, make_run_plan, make_spec

pytestmark = pytest.mark.gloo

DDP = {"parallelism__strategy": "ddp"}
SHORT = {"training__steps": 12, "checkpoint__every_steps": 4}


@pytest.fixture(scope="module")
def trained(
    warm_process: WarmRanks, ragged: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Run, str]:
    """The run of `finished`, which nothing changes, and what its rank wrote to stderr."""
    folder = tmp_path_factory.mktemp("finished")
    warm_process.logs = folder / "rank-logs"
    run_plan = make_run_plan(make_spec(**SHORT), **ragged)
    return warm_process.train(run_plan, folder / "run"), warm_process.said()


@pytest.fixture
def finished(trained: tuple[Run, str], tmp_path: Path) -> Run:
    """A finished run of 12 steps on one rank, with checkpoints of steps 8 and 12."""
    run, _ = trained
    return Run(shutil.copytree(run.directory.path, tmp_path / "run"))


def names(run: Run) -> list[str]:
    return sorted(path.name for path in run.directory.checkpoints.iterdir())


def test_only_the_last_checkpoints_are_kept_and_each_verifies(finished: Run) -> None:
    assert names(finished) == ["step-000008", "step-000012"]
    assert [line["checkpoint"] for line in finished.lines if "checkpoint" in line] == [
        "step-000004",
        "step-000008",
        "step-000012",
    ]
    for name in names(finished):
        path = finished.directory.checkpoints / name
        manifest = verify_checkpoint(path)
        assert manifest.world_size == 1
        listed = {file.path for file in manifest.files}
        assert listed | {"manifest.json"} == {file.name for file in path.iterdir()}
    assert finished.result.checkpoint == "step-000012"


def test_each_rank_hashes_the_file_that_it_wrote(
    warm: WarmRanks, ragged: dict[str, Any], tmp_path: Path
) -> None:
    spec = make_spec(training__steps=1, training__warmup_steps=1, parallelism__strategy="fsdp")
    run = warm.train(
        make_run_plan(spec, ranks=2, **ragged), tmp_path / "run", case="train_noting_reads"
    )
    for rank in (0, 1):
        read = (run.directory.path / f"read-by-{rank}").read_text().split()
        assert read == [f"__{rank}_0.distcp"]
    manifest = verify_checkpoint(run.directory.checkpoints / "step-000001")
    assert {"__0_0.distcp", "__1_0.distcp"} < {file.path for file in manifest.files}


def test_a_run_that_goes_well_says_nothing(trained: tuple[Run, str]) -> None:
    _, said = trained
    assert said.splitlines()[1:] == []


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove", "manifest", "escape"])
def test_a_damaged_checkpoint_is_passed_over(finished: Run, damage: str) -> None:
    newest = finished.directory.checkpoints / "step-000012"
    manifest = read_manifest(newest)
    largest = newest / max(manifest.files, key=lambda file: file.size).path
    if damage == "flip":
        content = bytearray(largest.read_bytes())
        content[len(content) // 2] ^= 1
        largest.write_bytes(content)
    elif damage == "truncate":
        os.truncate(largest, largest.stat().st_size - 1)
    elif damage == "remove":
        largest.unlink()
    elif damage == "manifest":
        os.truncate(newest / "manifest.json", 40)
    else:
        record = json.loads((newest / "manifest.json").read_text())
        record["files"][0]["path"] = "../step-000008/progress.json"
        (newest / "manifest.json").write_text(json.dumps(record))
    with pytest.raises(BadCheckpoint, match="step-000012"):
        verify_checkpoint(newest)
    assert newest_checkpoint(finished.directory.checkpoints) == newest.with_name("step-000008")


def test_a_run_goes_on_before_the_damage_to_the_same_end(
    finished: Run, warm: WarmRanks, tmp_path: Path
) -> None:
    weights = load_file(finished.directory.artifacts / "model.safetensors")
    losses = finished.series("loss")
    os.truncate(finished.directory.checkpoints / "step-000012" / ".metadata", 10)
    finished.directory.metrics.unlink()
    again = warm.train(finished.directory.read_plan(), finished.directory.path)
    assert again.series("step")[0] == 9
    assert again.series("loss") == losses[8:]
    verify_checkpoint(finished.directory.checkpoints / "step-000012")
    repeated = load_file(finished.directory.artifacts / "model.safetensors")
    assert all(bool((weights[name] == repeated[name]).all()) for name in weights)


def test_a_finished_run_started_again_has_nothing_to_do(finished: Run, warm: WarmRanks) -> None:
    before = finished.series("loss")
    again = warm.train(finished.directory.read_plan(), finished.directory.path)
    assert again.series("loss") == before
    assert again.result.finished
    assert again.result.checkpoint == "step-000012"


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (2, 1),
        *(pytest.param(*ranks, marks=pytest.mark.slow) for ranks in ((2, 2), (1, 2), (4, 2))),
    ],
    ids=lambda ranks: f"{ranks}",
)
def test_a_run_resumes_on_any_number_of_ranks_as_if_uninterrupted(
    first: int, then: int, warm: WarmRanks, ragged: dict[str, Any], tmp_path: Path
) -> None:
    def run_plan(ranks: int, **fields: Any) -> Any:
        changes = DDP if ranks > 1 else {}
        spec = make_spec(precision="float64", training__steps=10, **changes)
        return make_run_plan(spec, ranks=ranks, **ragged, **fields)

    whole = warm.train(run_plan(1), tmp_path / "whole")
    stopped = warm.train(run_plan(first), tmp_path / "stopped", engine="TerminatedEngine")
    result = stopped.result
    assert (result.finished, result.reason, result.step) == (False, "stopped", 8)

    checkpoints = tmp_path / "elsewhere"  # as the worker fetches it onto another node
    shutil.copytree(stopped.directory.checkpoints, checkpoints)
    shutil.rmtree(stopped.directory.checkpoints)
    at = checkpoints / str(result.checkpoint)
    rest = warm.train(run_plan(then, resume_from=str(at)), tmp_path / "rest")
    assert rest.series("step")[0] == result.step + 1
    curve = stopped.series("loss") + rest.series("loss")
    assert curve == pytest.approx(whole.series("loss"), rel=1e-13)
    assert stopped.series("tokens_seen") + rest.series("tokens_seen") == whole.series("tokens_seen")
    assert rest.result.eval_loss == pytest.approx(whole.result.eval_loss, rel=1e-12)


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_a_kill_at_any_moment_of_a_save_leaves_a_checkpoint_that_verifies(
    every: int, warm: WarmRanks, ragged: dict[str, Any], tmp_path: Path
) -> None:
    spec = make_spec(model__layers=1, model__width=8, model__heads=2, checkpoint__keep_last=1)
    run_plan = make_run_plan(spec, **ragged)
    found = []
    for die_at in range(1, 100, every):
        path = tmp_path / f"die-{die_at}"
        path.mkdir()
        run = Run(path)
        run.directory.plan.write_text(run_plan.model_dump_json())
        (code,) = warm.start("save_and_die", ranks=1, run_dir=str(path), die_at=die_at).wait()
        newest = newest_checkpoint(run.directory.checkpoints)
        assert newest is not None, f"nothing left after a kill at change {die_at}"
        stored = json.loads((newest / "progress.json").read_text())["progress"]["step"]
        assert newest.name == f"step-{stored:06d}"
        found.append(stored)
        if code == 0:
            break
        assert code == -9, warm.said()
    assert len(found) > 10 / every, "the save changed the disk in suspiciously few places"
    assert found == sorted(found), "once the new checkpoint is whole it must stay the newest"
    assert set(found) == {1, 2}
    assert [path.name for path in run.directory.checkpoints.iterdir()] == ["step-000002"]


def test_leftovers_of_a_crash_are_swept_by_the_next_save(
    finished: Run, warm: WarmRanks, ragged: dict[str, Any]
) -> None:
    leftover = finished.directory.checkpoints / "step-000010.tmp-123"
    leftover.mkdir()
    (leftover / "__0_0.distcp").write_bytes(b"half")
    shutil.rmtree(finished.directory.checkpoints / "step-000012")
    warm.train(finished.directory.read_plan(), finished.directory.path)
    assert names(finished) == ["step-000008", "step-000012"]


OTHERS: list[tuple[dict[str, Any], str]] = [
    ({"model__width": 128}, "model.width is 128 here, 64 there"),
    ({"model__layers": 2}, "model.layers is 2 here, 4 there"),
    ({"precision": "float64"}, "precision is float64 here, float32 there"),
    ({"training__optimizer": "lamb"}, "optimizer is lamb here, adamw there"),
]


def test_another_model_is_told_by_name_and_value() -> None:
    for changes, said in OTHERS:
        with pytest.raises(BadCheckpoint, match=said):
            require_same_model(make_spec(), make_spec(**changes), Path("step-1"))


@pytest.mark.parametrize(
    ("changes", "said"),
    [OTHERS[0], *(pytest.param(*other, marks=pytest.mark.slow) for other in OTHERS[1:])],
)
def test_another_models_checkpoint_is_refused_by_every_rank(
    changes: dict[str, Any],
    said: str,
    finished: Run,
    warm: WarmRanks,
    ragged: dict[str, Any],
    tmp_path: Path,
) -> None:
    source = str(finished.directory.checkpoints)
    spec = make_spec(**SHORT, **DDP, **changes)
    run_plan = make_run_plan(spec, ranks=2, resume_from=source, **ragged)
    _, started = warm.start_training(run_plan, tmp_path / "other")
    assert started.wait() == [ExitCode.BAD_CHECKPOINT] * 2
    assert said in warm.error(0)["message"]


def test_a_resume_from_nothing_that_verifies_is_refused_by_every_rank(
    finished: Run, warm: WarmRanks, ragged: dict[str, Any], tmp_path: Path
) -> None:
    source = finished.directory.checkpoints / "step-000012"
    largest = max(source.iterdir(), key=lambda path: path.stat().st_size)
    before = sha256_of(largest)
    os.truncate(largest, largest.stat().st_size - 1)
    spec = make_spec(**SHORT, **DDP)
    run_plan = make_run_plan(spec, ranks=2, resume_from=str(source), **ragged)
    _, started = warm.start_training(run_plan, tmp_path / "other")
    assert started.wait() == [ExitCode.BAD_CHECKPOINT] * 2
    assert "bytes instead of" in warm.error(1)["message"]
    assert before != sha256_of(largest)
