"""The small formats of a run directory."""

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from strategies.plan.durable_files import json_bytes, write_atomically
from strategies.plan.layout import Layout
from strategies.plan.run_directory import (
    Action,
    BadCheckpoint,
    Result,
    RunDirectory,
    RunPlan,
    checkpoint_name,
    finished_checkpoints,
    newest_checkpoint,
    read_control,
    read_manifest,
    verify_checkpoint,
    write_control,
    write_manifest,
)
from strategies.plan.spec import TrainSpec
from strategies.train.control import ControlWatch
from tests.strategies.support.training_runs import make_run_plan, make_spec


def test_a_plan_survives_its_file(tmp_path: Path) -> None:
    run_plan = make_run_plan(make_spec(), prompt="def ", resume_from="/somewhere")
    directory = RunDirectory(tmp_path)
    directory.plan.write_bytes(json_bytes(run_plan))
    assert directory.read_plan() == run_plan


def test_a_larger_spec_is_stored_as_its_training_part(tmp_path: Path) -> None:
    """core's JobSpec adds fields; plan.json must stay readable here all the same."""

    class JobSpec(TrainSpec):
        name: str

    job = JobSpec.model_validate({**make_spec().model_dump(), "name": "mine"})
    run_plan = make_run_plan(job)
    stored = json_bytes(run_plan)
    assert b"mine" not in stored
    assert RunPlan.model_validate_json(stored).spec == make_spec()


def test_unknown_fields_of_a_plan_are_refused() -> None:
    record = make_run_plan(make_spec()).model_dump(mode="json")
    with pytest.raises(ValidationError, match="surprise"):
        RunPlan.model_validate({**record, "surprise": 1})


def test_controls_are_numbered_and_each_is_seen_once(tmp_path: Path) -> None:
    path = tmp_path / "control.json"
    watch = ControlWatch(path)
    assert watch.look() is None
    assert write_control(path, Action.CHECKPOINT).sequence == 1
    assert watch.look() is Action.CHECKPOINT
    assert watch.look() is None
    assert write_control(path, Action.PROFILE).sequence == 2
    assert watch.look() is Action.PROFILE
    write_atomically(path, path.read_bytes())  # the same request again, as a new file
    assert watch.look() is None
    assert write_control(path, Action.STOP).sequence == 3
    assert ControlWatch(path).look() is Action.STOP  # one that stood before the run began


def test_only_the_first_rank_has_a_file_to_look_at() -> None:
    watch = ControlWatch(None)
    assert watch.look() is None
    watch.terminate(15, None)
    assert watch.look() is Action.STOP


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"sequence": 0, "action": "stop"}', '{"sequence": 1}']
)
def test_nonsense_in_control_json_is_an_error_to_the_reader(text: str, tmp_path: Path) -> None:
    path = tmp_path / "control.json"
    path.write_text(text)
    with pytest.raises(ValueError, match="Control"):
        read_control(path)


def test_a_result_with_a_loss_that_is_no_number_is_still_json() -> None:
    result = Result(
        finished=False,
        step=3,
        loss_first=float("nan"),
        loss_last=None,
        eval_loss=None,
        tokens_per_s=None,
        wall_s=1.0,
        checkpoint=None,
        sample=None,
        reason="diverged",
    )
    assert json.loads(json_bytes(result))["loss_first"] is None


def make_checkpoint(checkpoints: Path, step: int) -> Path:
    path = checkpoints / checkpoint_name(step)
    path.mkdir(parents=True)
    (path / "weights").write_bytes(bytes([step]) * 100)
    write_manifest(path, step=step, layout=Layout(replicate=2))
    return path


def test_checkpoints_are_found_by_number_not_by_spelling(tmp_path: Path) -> None:
    for step in (999_999, 5, 1_000_000):
        make_checkpoint(tmp_path, step % 251)
        (tmp_path / checkpoint_name(step % 251)).rename(tmp_path / checkpoint_name(step))
    (tmp_path / "step-000007.tmp-1").mkdir()
    (tmp_path / "step-000008").write_text("a file")
    found = [path.name for path in finished_checkpoints(tmp_path)]
    assert found == ["step-1000000", "step-999999", "step-000005"]
    assert finished_checkpoints(tmp_path / "nowhere") == []
    assert newest_checkpoint(tmp_path / "nowhere") is None


def test_a_manifest_lists_every_file_with_its_hash(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path, 3)
    manifest = verify_checkpoint(path)
    assert (manifest.step, manifest.world_size, manifest.layout.replicate) == (3, 2, 2)
    (file,) = manifest.files
    # 100 bytes of value 3, hashed by coreutils
    assert (file.path, file.size) == ("weights", 100)
    assert file.sha256 == "af463dc9670b6c91799ed7bd94e868ae7201a333aa7effe2958c02d401b2aa64"


@pytest.mark.parametrize("change", ["format", "hash", "absolute", "parent", "no manifest"])
def test_a_manifest_that_cannot_be_trusted_is_refused(change: str, tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path, 3)
    record = json.loads((path / "manifest.json").read_text())
    if change == "format":
        record["format"] = 2
    elif change == "hash":
        record["files"][0]["sha256"] = "0" * 63
    elif change == "absolute":
        record["files"][0]["path"] = "/etc/passwd"
    elif change == "parent":
        record["files"][0]["path"] = "a/../../b"
    (path / "manifest.json").write_text(json.dumps(record))
    if change == "no manifest":
        (path / "manifest.json").unlink()
    with pytest.raises(BadCheckpoint, match="step-000003"):
        read_manifest(path)
