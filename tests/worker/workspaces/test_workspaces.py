"""Workspaces on a node: what a program leaves in its own comes back on any other node."""

import os
import socket
import time
from pathlib import Path

import pytest

from core.base.words import size_text
from core.states import Outcome
from core.wire.messages import ExitRecord, SnapshotReport, StopOrder, StoredBlob, WorkspaceOrder
from core.wire.workspace_tree import SMALL, Blob, EntryKind, Tree, read_tree
from tests.worker.fake_api import FakeApi
from tests.worker.nodes import Node, wait_for
from tests.worker.script_orders import output_of, script_order
from worker.node.attempts import Key
from worker.preparing.placing_workspace import quota_of
from worker.scripts.sandbox import Level, why_not
from worker.workspaces.packing import Draft, LastLook, draft, empty_folder
from worker.workspaces.restoring import BadContent, restore
from worker.workspaces.scanning import look_at

OFTEN = {"TRAINYARD_WORKSPACE_EVERY_S": "0.3"}


def taken(root: Path, known: LastLook, aside: Path) -> Draft:
    return draft(root, look_at(root, max_entries=100_000), known, empty_folder(aside))


def old(path: Path) -> None:
    """Give a file a time at which nobody can still be changing it."""
    an_hour_ago = time.time() - 3600
    os.utime(path, (an_hour_ago, an_hour_ago))


class Store:
    """The store's files, by hash."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}

    def keep(self, drafted: Draft) -> int:
        """Take what is new; return the number of files."""
        new = {s: p.read_bytes() for s, p in drafted.files.items() if s not in self.files}
        self.files |= new
        return len(new)

    def place(self, tree: Tree, root: Path, aside: Path) -> LastLook:
        def fetch(blob: Blob) -> Path:
            path = aside / blob.sha256
            path.write_bytes(self.files[blob.sha256])
            assert path.stat().st_size == blob.size
            return path

        root.mkdir()
        aside.mkdir()
        return restore(tree, root, fetch)


def test_names_modes_times_and_links_come_back_and_nothing_is_read_twice(tmp_path: Path) -> None:
    root = tmp_path / "one"
    (root / "my données" / "empty").mkdir(parents=True)
    (root / ".hidden").write_text("h")
    (root / "my données" / "été 🚂.csv").write_text("1,2")
    (root / "run.sh").write_text("#!/bin/sh")
    (root / "run.sh").chmod(0o755)
    (root / "large").write_bytes(os.urandom(SMALL + 5))
    (root / "copy of large").write_bytes((root / "large").read_bytes())
    (root / "out").symlink_to("/etc/passwd")
    (root / "__pycache__").mkdir()
    (root / "__pycache__" / "x.pyc").write_text("made again")
    for path in root.rglob("*"):
        if path.is_file() and not path.is_symlink():
            old(path)
    store = Store()
    first = taken(root, LastLook(), tmp_path / "aside")
    assert store.keep(first) == 2  # a pack, and the large content once
    known = store.place(first.tree, tmp_path / "two", tmp_path / "fetched")
    two = tmp_path / "two"
    assert (two / "my données" / "été 🚂.csv").read_text() == "1,2"
    assert (two / "my données" / "empty").is_dir()
    assert os.access(two / "run.sh", os.X_OK)
    assert not os.access(two / ".hidden", os.X_OK) or os.geteuid() == 0
    assert os.readlink(two / "out") == "/etc/passwd"
    assert not (two / "__pycache__").exists()
    assert (two / "large").stat().st_mtime_ns == (root / "large").stat().st_mtime_ns
    for path in two.rglob("*"):
        if path.is_file() and not path.is_symlink():
            path.chmod(0)  # reading one would fail, unless by root
    again = taken(two, known, tmp_path / "aside")
    assert not again.files
    assert {e.path: e.sha256 for e in again.tree.entries} == {
        e.path: e.sha256 for e in first.tree.entries
    }


def test_only_what_changed_is_sent_and_wasteful_packs_are_made_anew(tmp_path: Path) -> None:
    root, store, known = tmp_path / "one", Store(), LastLook()
    root.mkdir()
    for number in range(50):
        (root / f"{number:02}").write_bytes(os.urandom(1000))
        old(root / f"{number:02}")
    first = taken(root, known, tmp_path / "aside")
    store.keep(first)
    known = LastLook(first.tree, first.stats)
    (root / "00").write_bytes(os.urandom(1000))
    second = taken(root, known, tmp_path / "aside")
    assert [path.stat().st_size for path in second.files.values()] == [1000]
    assert len(second.tree.packs) == 2
    store.keep(second)
    for number in range(1, 40):
        (root / f"{number:02}").unlink()
    third = taken(root, LastLook(second.tree, second.stats), tmp_path / "aside")
    store.keep(third)
    assert sum(pack.size for pack in third.tree.packs) == 11_000  # nothing unused is left
    store.place(third.tree, tmp_path / "two", tmp_path / "fetched")
    assert {p.name: p.read_bytes() for p in (tmp_path / "two").iterdir()} == {
        p.name: p.read_bytes() for p in root.iterdir()
    }


def test_many_small_packs_become_one(tmp_path: Path) -> None:
    root, store, known = tmp_path / "one", Store(), LastLook()
    root.mkdir()
    most = 0
    for number in range(40):
        (root / f"{number:02}").write_bytes(os.urandom(100))
        old(root / f"{number:02}")
        found = taken(root, known, tmp_path / "aside")
        store.keep(found)
        known = LastLook(found.tree, found.stats)
        most = max(most, len(found.tree.packs))
    assert most <= 17
    store.place(known.tree, tmp_path / "two", tmp_path / "fetched")
    assert len(list((tmp_path / "two").iterdir())) == 40


def test_what_cannot_be_kept_is_left_out_and_links_are_not_followed(tmp_path: Path) -> None:
    root, outside = tmp_path / "one", tmp_path / "secret"
    outside.mkdir()
    (outside / "key").write_text("secret")
    root.mkdir()
    (root / "folder").symlink_to(outside)
    os.mkfifo(root / "pipe")
    (root / os.fsdecode(b"bad\xff")).write_text("x")
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(root / "door"))
    look = look_at(root, max_entries=100)
    assert [(seen.path, seen.kind) for seen in look.entries] == [("folder", EntryKind.LINK)]
    assert look.num_left_out == 3
    found = draft(root, look, LastLook(), empty_folder(tmp_path / "aside"))
    assert not found.files
    # A folder that becomes a link between the look and the reading leads nowhere.
    (root / "deep").mkdir()
    (root / "deep" / "key").write_text("mine")
    look = look_at(root, max_entries=100)
    (root / "deep" / "key").unlink()
    (root / "deep").rmdir()
    (root / "deep").symlink_to(outside)
    assert not draft(root, look, LastLook(), empty_folder(tmp_path / "aside")).files


def test_damaged_bytes_are_refused(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "a").write_text("right")
    store = Store()
    found = taken(tmp_path / "one", LastLook(), tmp_path / "aside")
    store.keep(found)
    store.files = {sha256: b"wrong" for sha256 in store.files}
    with pytest.raises(BadContent, match="other bytes"):
        store.place(found.tree, tmp_path / "two", tmp_path / "fetched")


# ------------------------------------------------------------------------------- on a real worker


def workspace(
    tree: StoredBlob | None = None, access: str = "write", max_bytes: int = 1 << 20
) -> WorkspaceOrder:
    return WorkspaceOrder.model_validate(
        {
            "access": access,
            "person": "user_01abc",
            "number": 7,
            "tree": tree,
            "max_bytes": max_bytes,
            "max_files": 1000,
        }
    )


def last_of(api: FakeApi, key: Key) -> SnapshotReport | None:
    """The look that its node called the last one."""
    return next((one for one in api.snapshots.get(key, []) if one.final), None)


WRITES = """
import os, pathlib, sys
home = pathlib.Path(os.environ["TRAINYARD_WORKSPACE"])
(home / "données.txt").write_text("kept")
(home / "deep er").mkdir(exist_ok=True)
(home / "deep er" / ".count").write_text(str(1 + int((home / "deep er" / ".count").read_text()))
    if (home / "deep er" / ".count").exists() else "1")
print(sorted(p.name for p in home.iterdir()))
"""


@pytest.mark.slow
def test_a_workspace_follows_its_owner_to_another_node(
    api: FakeApi, node: Node, tmp_path: Path
) -> None:
    node.start(warm=False, **OFTEN)
    key = api.order(script_order(api, WRITES, workspace=workspace()))
    assert api.wait_for_exit(key).outcome is Outcome.SUCCEEDED
    first = api.wait_for(lambda: last_of(api, key))
    assert first.files == 3
    api.wait_for(lambda: (seen := api.observed(key)) is not None and seen.kept)
    node.stop()
    other = Node(tmp_path / "other", api)
    try:
        other.start(warm=False, **OFTEN)
        order = script_order(api, WRITES, job="job_b", workspace=workspace(first.tree))
        second_key = api.order(order)
        assert api.wait_for_exit(second_key).outcome is Outcome.SUCCEEDED
        second = api.wait_for(lambda: last_of(api, second_key))
        assert second.tree is not None
        tree = read_tree(api.files[second.tree.sha256])
        assert list(tree.by_path) == ["deep er", "deep er/.count", "données.txt"]
        [pack] = {tree.packs[tree.by_path["deep er/.count"].pack or 0]}
        offset = tree.by_path["deep er/.count"].offset
        assert api.files[pack.sha256][offset : offset + 1] == b"2"
    finally:
        other.close()


SITS = """
import os, pathlib, signal, sys, time
home = pathlib.Path(os.environ["TRAINYARD_WORKSPACE"])
def leave(*_):
    (home / "last words").write_text("saved at SIGTERM")
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
(home / "early").write_text("while it runs")
print("sitting", flush=True)
while True:
    time.sleep(0.05)
"""


def paths_of(api: FakeApi, report: SnapshotReport) -> set[str]:
    assert report.tree is not None
    return set(read_tree(api.files[report.tree.sha256]).by_path)


@pytest.mark.slow
def test_it_is_kept_while_the_program_runs_across_a_killed_worker_and_at_the_stop(
    api: FakeApi, node: Node
) -> None:
    node.start(warm=False, **OFTEN)
    order = script_order(api, SITS, workspace=workspace())
    key = api.order(order)
    report = api.wait_for(lambda: next(iter(api.snapshots.get(key, [])), None))
    assert paths_of(api, report) == {"early"}
    node.kill()
    node.start(warm=False, **OFTEN)
    api.orders[key] = order.model_copy(
        update={"stop": StopOrder(reason=Outcome.PAUSED, grace_s=20.0)}
    )
    assert api.wait_for_exit(key).outcome is Outcome.PAUSED
    last = api.wait_for(lambda: last_of(api, key))
    assert paths_of(api, last) == {"early", "last words"}


@pytest.mark.slow
def test_the_last_look_arrives_although_the_api_was_away_and_the_worker_died(
    api: FakeApi, node: Node
) -> None:
    node.start(warm=False, **OFTEN)
    order = script_order(api, SITS, workspace=workspace())
    key = api.order(order)
    api.wait_for(lambda: next(iter(api.snapshots.get(key, [])), None))
    stop = StopOrder(reason=Outcome.PAUSED, grace_s=20.0)
    api.orders[key] = order.model_copy(update={"stop": stop})
    schedule = node.attempt(key).schedule
    wait_for(lambda: (found := schedule()) is not None and found.ordered)
    api.down = True
    wait_for(lambda: node.attempt(key).exit.exists())
    node.kill()
    node.start(warm=False, **OFTEN)
    assert last_of(api, key) is None
    api.down = False
    last = api.wait_for(lambda: last_of(api, key))
    assert paths_of(api, last) == {"early", "last words"}
    api.wait_for(lambda: (seen := api.observed(key)) is not None and seen.kept)


READS = """
import os, pathlib
home = pathlib.Path(os.environ["TRAINYARD_WORKSPACE"])
print("found", (home / "données.txt").read_text())
try:
    (home / "mine").write_text("x")
except OSError as error:
    print("refused", error.errno)
for other in ("/job/../workspace", "/work", "/data"):
    print(other, os.path.exists(other))
print(sorted(os.listdir("/job")))
"""


@pytest.mark.parametrize(
    "level", [Level.BUBBLEWRAP, pytest.param(Level.NAMESPACES, marks=pytest.mark.slow)]
)
def test_a_reader_gets_it_read_only_and_brings_nothing(
    api: FakeApi, node: Node, level: Level
) -> None:
    if why := why_not(level):
        pytest.skip(f"no sandbox of this level can be built here: {why}")
    node.start(warm=False, TRAINYARD_SANDBOX=level, **OFTEN)
    key = api.order(script_order(api, WRITES, workspace=workspace()))
    first = api.wait_for(lambda: last_of(api, key))
    reading = api.order(
        script_order(api, READS, job="job_r", workspace=workspace(first.tree, "read"))
    )
    assert api.wait_for_exit(reading).outcome is Outcome.SUCCEEDED
    said = api.wait_for(
        lambda: text if "'workspace'" in (text := output_of(api, "job_r")) else None
    )
    assert "found kept" in said
    assert "refused 30" in said  # EROFS
    api.wait_for(lambda: (seen := api.observed(reading)) is not None and seen.kept)
    assert reading not in api.snapshots


FILLS = """
import os, pathlib, time
home = pathlib.Path(os.environ["TRAINYARD_WORKSPACE"])
(home / "big").write_bytes(b"x" * 3_000_000)
time.sleep(1.2)
print("still alive")
"""


@pytest.mark.slow
def test_beyond_the_quota_nothing_is_sent_and_the_program_goes_on(api: FakeApi, node: Node) -> None:
    api.workspace_full = "The workspace was not kept, because ..."
    node.start(warm=False, **OFTEN)
    key = api.order(script_order(api, FILLS, workspace=workspace()))
    assert api.wait_for_exit(key).outcome is Outcome.SUCCEEDED
    last = api.wait_for(lambda: last_of(api, key))
    assert (last.tree, last.size) == (None, 3_000_000)
    assert "still alive" in output_of(api)
    assert len(api.files) == 1  # the code


@pytest.mark.slow
def test_a_writer_that_was_superseded_ends_quietly(api: FakeApi, node: Node) -> None:
    node.start(warm=False, **OFTEN)
    api.stale.add(Key("job_script", 1))
    key = api.order(script_order(api, WRITES, workspace=workspace()))
    assert api.wait_for_exit(key).outcome is Outcome.SUCCEEDED
    path = node.attempt(key).path / "workspace.json"
    wait_for(lambda: '"is_kept":true' in path.read_text().replace(" ", ""))
    assert key not in api.snapshots


def test_a_shared_folder_is_bound_as_it_is_and_nobody_sees_the_other_ones(
    api: FakeApi, node: Node, tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o711)
    (shared / "user_01other").mkdir(mode=0o700)
    (shared / "user_01other" / "private").write_text("secret")
    node.start(warm=False, TRAINYARD_WORKSPACES=str(shared), **OFTEN)
    order = workspace(access="shared")
    key = api.order(script_order(api, WRITES, workspace=order))
    assert api.wait_for_exit(key).outcome is Outcome.SUCCEEDED
    assert (shared / "user_01abc" / "données.txt").read_text() == "kept"
    if os.geteuid() == 0:
        assert (shared / "user_01abc").stat().st_uid == 1_879_100_007
        assert (shared / "user_01abc" / "données.txt").stat().st_uid == 1_879_100_007
    peeks = (
        "import os\n"
        f"print([os.path.exists(p) for p in ({str(shared)!r}, '/job/workspace/../user_01other')])\n"
        "print(open(os.environ['TRAINYARD_WORKSPACE'] + '/données.txt').read())\n"
    )
    peeking = api.order(script_order(api, peeks, job="job_p", workspace=order))
    assert api.wait_for_exit(peeking).outcome is Outcome.SUCCEEDED
    said = api.wait_for(lambda: text if "kept" in (text := output_of(api, "job_p")) else None)
    assert "[False, False]" in said
    assert not api.snapshots


GROWS = """
import os, pathlib, time
folder = pathlib.Path(os.environ["TRAINYARD_WORKSPACE"])
(pathlib.Path(os.environ["TRAINYARD_OUTPUT"]) / "result").write_text("found")
(folder / "more").write_bytes(bytes(int(os.environ["GROWS_BY"])))
if (folder / "more").stat().st_size > 1:
    time.sleep(600)
"""


def test_a_shared_folder_beyond_its_quota_starts_no_program_and_ends_one_that_fills_it(
    api: FakeApi, node: Node, tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o711)
    node.start(warm=False, TRAINYARD_WORKSPACES=str(shared), **OFTEN)
    order = workspace(access="shared", max_bytes=1000)
    begun = script_order(api, WRITES, "job_begun", workspace=order)
    assert api.wait_for_exit(api.order(begun)).outcome is Outcome.SUCCEEDED
    folder = shared / "user_01abc"
    held = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())

    def run(job: str, grows_by: int) -> ExitRecord:
        environment = {"GROWS_BY": str(grows_by)}
        return api.wait_for_exit(
            api.order(script_order(api, GROWS, job, workspace=order, environment=environment))
        )

    (folder / "fill").write_bytes(bytes(999 - held))
    assert run("job_last_byte", 1).outcome is Outcome.SUCCEEDED  # 1,000 of 1,000 bytes
    assert run("job_at_the_limit", 1).outcome is Outcome.SUCCEEDED
    (folder / "fill").write_bytes(bytes(1000 - held))
    refused = run("job_beyond", 1)
    assert refused.outcome is Outcome.USER_ERROR
    assert "The workspace holds 1001 bytes of at most 1000 bytes" in refused.reason
    assert "Delete something in a workbench" in refused.reason
    (folder / "fill").unlink()
    ended = run("job_fills", 5000)
    assert ended.outcome is Outcome.USER_ERROR
    assert f"workspace holds {size_text(5000 + held)} of at most 1000 bytes" in ended.reason
    kept = node.attempt(Key("job_fills", 1)).artifacts
    assert [path.read_text() for path in kept.rglob("result")] == ["found"]


@pytest.mark.parametrize("held", [1000, 3000])
def test_a_workbench_starts_on_a_full_shared_folder_that_may_only_shrink(
    tmp_path: Path, held: int
) -> None:
    folder = tmp_path / "shared" / "user_01abc"
    folder.mkdir(parents=True)
    (folder / "data").write_bytes(bytes(held))
    order = workspace(access="shared", max_bytes=1000)
    found = quota_of(folder, order, is_workbench=True)
    assert (found.max_bytes, found.max_files) == (held, 1000)
    assert not found.why_ended(held, 1)
    assert f"{held + 1 if held < 1024 else '2.9 KiB'}" in found.why_ended(held + 1, 1)


def test_a_shared_folder_follows_its_owner_to_another_node_and_its_use_is_told(
    api: FakeApi, node: Node, tmp_path: Path
) -> None:
    (tmp_path / "shared").mkdir(mode=0o711)
    settings = {"TRAINYARD_WORKSPACES": str(tmp_path / "shared"), **OFTEN}
    node.start(warm=False, **settings)
    key = api.order(script_order(api, WRITES, workspace=workspace(access="shared")))
    assert api.wait_for_exit(key).outcome is Outcome.SUCCEEDED
    api.wait_for(lambda: (seen := api.observed(key)) is not None and seen.kept)
    api.conclude(key)
    node.stop()
    other = Node(tmp_path / "other", api)
    try:
        other.start(warm=False, **settings)
        order = script_order(api, WRITES, job="job_b", workspace=workspace(access="shared"))
        second = api.order(order)
        assert api.wait_for_exit(second).outcome is Outcome.SUCCEEDED
        api.wait_for(lambda: (seen := api.observed(second)) is not None and seen.kept)
    finally:
        other.close()
    assert (tmp_path / "shared" / "user_01abc" / "deep er" / ".count").read_text() == "2"
    last = [look for look in api.shared_looks if look.job_id == "job_b"][-1]
    assert (last.use.size, last.use.files, last.use.is_whole) == (5, 3, True)
    told = [(one.path, one.kind, one.size, one.files) for one in last.use.top]
    assert told == [("données.txt", "file", 4, 0), ("deep er", "folder", 1, 1)]
    assert not api.snapshots
