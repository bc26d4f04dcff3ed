"""What goes to the store, and what does not."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from strategies.plan.layout import Layout
from strategies.plan.run_directory import write_manifest
from tests.worker.fake_api import TOKEN, FakeApi
from tests.worker.nodes import make_order
from worker.node.api_client import ApiClient, Unreachable
from worker.node.attempts import Attempt, Key, NodeFolder, read_model
from worker.shipping.keep import Keeper, KeptState
from worker.shipping.spool import ShippedPositions

KEY = Key("job_a", 1)


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    folder = NodeFolder(tmp_path / "node")
    folder.create()
    attempt = folder.begin(make_order())
    attempt.checkpoints.mkdir()
    attempt.artifacts.mkdir()
    return attempt


@pytest.fixture
def keeper(api: FakeApi, attempt: Attempt) -> Iterator[Keeper]:
    client = ApiClient(api.url, TOKEN)
    events = [threading.Event() for _ in range(3)]
    folder = NodeFolder(attempt.path.parents[1])
    yield Keeper(folder, client, nudge=events[0], stop=events[1], kept=events[2])
    client.close()


def save(attempt: Attempt, step: int, **files: bytes) -> Path:
    path = attempt.checkpoints / f"step-{step:06d}"
    path.mkdir()
    for name, content in files.items():
        (path / name).write_bytes(content)
    write_manifest(path, step=step, layout=Layout())
    return path


def finish(attempt: Attempt) -> None:
    attempt.exit.write_text("{}")
    attempt.shipped_file.write_text(ShippedPositions(complete=True).model_dump_json())


def test_a_checkpoint_is_reported_with_its_manifest_once_all_its_files_are_there(
    api: FakeApi, keeper: Keeper, attempt: Attempt
) -> None:
    save(attempt, 10, weights=b"w" * 5000, moments=b"m")
    (attempt.checkpoints / "step-000020.tmp-77").mkdir()
    keeper.keep(attempt)
    keeper.keep(attempt)
    assert {file.path for file in api.checkpoints[KEY, 10]} == {
        "weights",
        "moments",
        "manifest.json",
    }
    assert len(api.puts) == len(set(api.puts)) == 3
    assert list(api.checkpoints) == [(KEY, 10)]


def test_an_upload_that_was_cut_goes_on_with_the_files_that_are_missing(
    api: FakeApi, keeper: Keeper, attempt: Attempt
) -> None:
    save(attempt, 10, a=b"1", b=b"2", c=b"3")
    put = keeper.client.put_file

    def cut_after_two(path: Path, sha256: str) -> None:
        if len(api.puts) == 2:
            raise Unreachable("cut")
        put(path, sha256)

    keeper.client.put_file = cut_after_two  # type: ignore[method-assign]
    with pytest.raises(Unreachable):
        keeper.keep(attempt)
    assert not api.checkpoints
    keeper.client.put_file = put  # type: ignore[method-assign]
    keeper.keep(attempt)
    assert len(api.puts) == len(set(api.puts)) == 4
    assert (KEY, 10) in api.checkpoints


def test_a_damaged_checkpoint_is_never_sent_and_does_not_block_the_end(
    api: FakeApi, keeper: Keeper, attempt: Attempt
) -> None:
    (save(attempt, 10, weights=b"good") / "weights").write_bytes(b"baad")
    save(attempt, 20, weights=b"fine")
    finish(attempt)
    keeper.keep(attempt)
    assert keeper.kept.is_set()
    assert list(api.checkpoints) == [(KEY, 20)]
    state = read_model(attempt.kept_file, KeptState)
    assert state is not None
    assert state.complete


def test_artifacts_go_after_the_exit_without_links_and_strange_names(
    api: FakeApi, keeper: Keeper, attempt: Attempt
) -> None:
    (attempt.artifacts / "deep").mkdir()
    (attempt.artifacts / "deep" / "trace.json").write_text("{}")
    (attempt.artifacts / "a name with spaces").write_text("x")
    (attempt.artifacts / "link").symlink_to("/etc/passwd")
    keeper.keep(attempt)
    assert not api.artifacts
    assert not keeper.kept.is_set()
    finish(attempt)
    keeper.keep(attempt)
    assert keeper.kept.is_set()
    assert [file.path for file in api.artifacts[KEY]] == ["deep/trace.json"]


def test_nothing_is_kept_before_the_last_line_is_shipped(keeper: Keeper, attempt: Attempt) -> None:
    attempt.exit.write_text("{}")
    keeper.keep(attempt)
    assert not keeper.kept.is_set()
    finish(attempt)
    keeper.keep(attempt)
    assert keeper.kept.is_set()


def test_an_empty_artifacts_folder_or_none_is_no_obstacle(keeper: Keeper, attempt: Attempt) -> None:
    attempt.artifacts.rmdir()
    attempt.checkpoints.rmdir()
    finish(attempt)
    keeper.keep(attempt)
    assert keeper.kept.is_set()
