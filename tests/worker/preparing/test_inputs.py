"""Inputs of a script: there before it starts, one copy on the node, read-only, never evicted."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from core.spec.inputs import InputKind
from core.states import Outcome
from core.wire.messages import InputFiles, PackagesAhead
from tests.worker.fake_api import FakeApi
from tests.worker.nodes import Node, wait_for
from tests.worker.script_orders import output_of, script_order
from tests.worker.scripts.test_script_parts import wheel
from worker.preparing.cache import trim
from worker.scripts.inputs import mount_of
from worker.scripts.sandbox import Level, why_not

ROWS = b'{"text": "one"}\n{"text": "two"}\n'
WEIGHTS = b"weights" * 40_000
READS = """
import os, pathlib
for name, place in sorted(os.environ.items()):
    if name.startswith("TRAINYARD_INPUT_"):
        for path in sorted(pathlib.Path(place).rglob("*")):
            if path.is_file():
                print(name, path, path.stat().st_size)
model = pathlib.Path(os.environ["TRAINYARD_INPUT_LAB_TINY"])
def tried(what, act):
    try:
        act()
        print("WROTE", what)
    except OSError as error:
        print(what, error.strerror)
weights = model / "model.safetensors"
tried("open", lambda: weights.open("r+b"))
tried("chmod", lambda: weights.chmod(0o777))
tried("unlink", weights.unlink)
tried("rename", lambda: weights.rename(model / "other"))
tried("create", lambda: (model / "new").touch())
tried("folder", lambda: model.parent.joinpath("more").mkdir())
tried("link", lambda: os.link(weights, "/job/output/weights"))
"""
WAITS = """
import os, pathlib, time
from trainyard.run import log
log(step=1, loss=1.0)
weights = pathlib.Path(os.environ["TRAINYARD_INPUT_LAB_TINY"], "model.safetensors")
while not pathlib.Path(os.environ["TRAINYARD_RUN"], "go").exists():
    time.sleep(0.05)
print("still", len(weights.read_bytes()))
"""


def inputs(api: FakeApi) -> list[InputFiles]:
    """A dataset and a model, both in the store."""
    rows = api.add_file("data.jsonl", ROWS)
    files = [api.add_file("config.json", b"{}"), api.add_file("model.safetensors", WEIGHTS)]
    return [
        InputFiles(kind=InputKind.DATASET, name="rows", files=[rows]),
        InputFiles(kind=InputKind.MODEL, name="lab/tiny", files=files),
    ]


@pytest.mark.parametrize(
    "level", [Level.BUBBLEWRAP, pytest.param(Level.NAMESPACES, marks=pytest.mark.slow)]
)
def test_a_script_reads_its_inputs_and_cannot_write_to_them(
    api: FakeApi, node: Node, level: Level
) -> None:
    if why_not(level):
        pytest.skip(why_not(level))
    node.start(warm=False, TRAINYARD_SANDBOX=level)
    key = api.order(script_order(api, READS, inputs=inputs(api)))
    record = api.wait_for_exit(key)
    assert record.outcome is Outcome.SUCCEEDED, (record, output_of(api))
    api.wait_for(lambda: (o := api.observed(key)) is not None and o.kept)
    said = output_of(api).splitlines()
    assert said[:3] == [
        "TRAINYARD_INPUT_LAB_TINY /job/inputs/lab/tiny/config.json 2",
        f"TRAINYARD_INPUT_LAB_TINY /job/inputs/lab/tiny/model.safetensors {len(WEIGHTS)}",
        f"TRAINYARD_INPUT_ROWS /job/inputs/rows/data.jsonl {len(ROWS)}",
    ]
    assert [line.split()[0] for line in said[3:]] == [
        "open", "chmod", "unlink", "rename", "create", "folder", "link",
    ]  # fmt: skip
    assert "WROTE" not in output_of(api)
    entry = Path(mount_of(node.folder.cache, inputs(api)[1]).entry)
    assert (entry / "model.safetensors").read_bytes() == WEIGHTS
    assert (entry / "model.safetensors").stat().st_mode & 0o222 == 0


def test_jobs_that_start_together_fetch_a_model_once(
    api: FakeApi, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: list[str] = []
    answer = api.answer

    def slow(method: str, path: str, body: bytes) -> tuple[int, bytes]:
        if method == "GET" and path.startswith("/v1/node/files/"):
            fetched.append(path.rpartition("/")[2])
            time.sleep(0.2)  # long enough for the others to ask for the same file
        return answer(method, path, body)

    monkeypatch.setattr(api, "answer", slow)
    named = inputs(api)
    keys = [
        api.order(script_order(api, "print('done')", f"job_{letter}", inputs=named))
        for letter in "abcd"
    ]
    node.start(warm=False)
    for key in keys:
        assert api.wait_for_exit(key).outcome is Outcome.SUCCEEDED
    hashes = [file.sha256 for one in named for file in one.files]
    assert sorted(sha256 for sha256 in fetched if sha256 in hashes) == sorted(hashes)
    copies = [
        path
        for path in node.folder.path.rglob("model.safetensors")
        if path.is_file() and not path.is_symlink()
    ]
    assert len(copies) == 1


def test_an_input_that_is_mounted_is_not_evicted(
    api: FakeApi, node: Node, make_old: Callable[[Path], None]
) -> None:
    node.start(warm=False)
    named = inputs(api)
    key = api.order(script_order(api, WAITS, inputs=named))
    api.wait_for_step(key, 1)
    entries = [Path(mount_of(node.folder.cache, one).entry) for one in named]
    code = node.folder.cache / f"sha256-{api.orders[key].code.sha256}"  # type: ignore[union-attr]
    for entry in (*entries, code):
        make_old(entry)
    assert trim(node.folder, 0) > 0
    assert [entry.exists() for entry in (*entries, code)] == [True, True, False]
    (node.attempt(key).path / "sandbox" / "run" / "go").touch()
    record = api.wait_for_exit(key)
    assert record.outcome is Outcome.SUCCEEDED, (record, output_of(api))
    api.wait_for(lambda: f"still {len(WEIGHTS)}" in output_of(api))
    wait_for(lambda: node.attempt(key).exit.exists())
    for entry in entries:
        make_old(entry)
    trim(node.folder, 0)
    assert not any(entry.exists() for entry in entries)


def test_what_is_fetched_ahead_is_there_when_the_job_comes_and_its_rate_is_told(
    api: FakeApi, node: Node
) -> None:
    large = api.add_file("model.safetensors", bytes(9 << 20))
    tiny = InputFiles(kind=InputKind.MODEL, name="lab/tiny", files=[large])
    entry = Path(mount_of(node.folder.cache, tiny).entry)
    api.ahead = [tiny]
    node.start(warm=False)
    wait_for(lambda: (entry / "model.safetensors").exists())
    assert api.wait_for(lambda: (last := api.last()) and last.telemetry.fetch_bytes_per_s) > 1
    assert api.last() is not None
    assert api.last().attempts == []  # type: ignore[union-attr]
    del api.files[large.sha256]  # it is not asked for again
    key = api.order(script_order(api, "print('done')", inputs=[tiny]))
    assert api.wait_for_exit(key).outcome is Outcome.SUCCEEDED


@pytest.fixture
def make_old() -> Callable[[Path], None]:
    """Makes a cache entry look unused for a day."""

    def make(entry: Path) -> None:
        day_ago = time.time() - 24 * 3600
        os.utime(entry, (day_ago, day_ago))

    return make


def test_a_mount_is_named_by_content_and_shared_with_recipes(tmp_path: Path) -> None:
    api = FakeApi()
    try:
        rows, model = inputs(api)
    finally:
        api.close()
    mount = mount_of(tmp_path, rows)
    assert mount.entry == str(tmp_path / f"sha256-{rows.files[0].sha256}")
    assert (mount.inside, mount.folder) == ("/job/inputs/rows/data.jsonl", "/job/inputs/rows")
    turned = model.model_copy(update={"files": model.files[::-1], "name": "other"})
    assert mount_of(tmp_path, turned).entry == mount_of(tmp_path, model).entry


@pytest.mark.slow
def test_the_packages_of_a_workbench_are_there_before_its_lease(
    api: FakeApi, node: Node, tmp_path: Path
) -> None:
    wheel(tmp_path / "wheels", "tinynet", "1.2", "SIZE = 3\n")
    missing = PackagesAhead(requirements="no-such-package-here", network=None)
    api.packages = [missing, PackagesAhead(requirements="tinynet==1.2  # ours\n", network=None)]
    node.start(warm=False, TRAINYARD_WHEELS=str(tmp_path / "wheels"))
    wait_for(lambda: any(node.folder.cache.glob("environment-*/complete")))
    files = {"train.py": "import tinynet; print(tinynet.SIZE)", "requirements.txt": "tinynet==1.2"}
    key = api.order(script_order(api, files, requirements="requirements.txt"))
    assert api.wait_for_exit(key).outcome is Outcome.SUCCEEDED
    api.wait_for(lambda: (o := api.observed(key)) is not None and o.kept)
    assert "already built" in api.logs[key, -1, "stdout"]
