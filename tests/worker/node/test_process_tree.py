"""Finding and ending every process of an attempt, with and without a cgroup."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from tests.worker.nodes import gone, wait_for
from worker.node.process_tree import (
    MARK,
    Cgroup,
    ProcessTree,
    around_worker,
    attempts_of_processes,
    cgroup_for,
    descendants,
    make_group,
    pass_controllers_down,
    strays,
)

# A subreaper whose child leaves a grandchild in a session and a folder of its own behind.
SHIM = """
import os, subprocess, sys, time
from worker.node.process_tree import adopt_orphans
adopt_orphans()
child = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import os, time; " \
        "os.chdir(chr(47)); time.sleep(600)'], start_new_session=True)"
subprocess.run([sys.executable, "-c", child])
print("ready", flush=True)
time.sleep(600)
"""


@pytest.fixture
def attempt(tmp_path: Path) -> Path:
    path = tmp_path / "attempts" / "job_a.1"
    path.mkdir(parents=True)
    return path


@contextlib.contextmanager
def process(code: str, cwd: Path, **environment: str) -> Iterator[psutil.Process]:
    with subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=cwd,
        env={"PATH": os.environ["PATH"], **environment},
        stdout=subprocess.PIPE,
    ) as started:
        try:
            assert started.stdout is not None
            started.stdout.readline()
            yield psutil.Process(started.pid)
        finally:
            started.kill()


def test_orphans_in_other_sessions_and_folders_are_found_by_descent(attempt: Path) -> None:
    with process(SHIM, attempt) as shim:
        (orphan,) = wait_for(lambda: descendants(shim.pid))
        wait_for(lambda: os.readlink(f"/proc/{orphan}/cwd") == "/")
        assert os.getsid(orphan) != os.getsid(shim.pid)
        tree = ProcessTree(attempt)
        assert tree.pids(spare=shim.pid) == {orphan}
        assert tree.kill(within_s=10, spare=shim.pid)
        assert gone(orphan)
        assert shim.is_running()


def test_a_process_is_known_by_its_working_directory_or_its_mark(attempt: Path) -> None:
    idle = "import time; print('ready', flush=True); time.sleep(600)"
    inside = attempt / "deeper"
    inside.mkdir()
    with (
        process(idle, inside) as by_folder,
        process(idle, Path("/"), **{MARK: str(attempt)}) as by_mark,
        process(idle, attempt.parent) as stranger,
    ):
        found = dict(attempts_of_processes(attempt.parent))
        assert found.get(by_folder.pid) == found.get(by_mark.pid) == "job_a.1"
        assert stranger.pid not in found
        assert strays(attempt.parent, live={"job_a.1"}) == {}
        assert strays(attempt.parent, live=set()) == dict.fromkeys(
            (by_folder.pid, by_mark.pid), "job_a.1"
        )
        assert ProcessTree(attempt).kill(within_s=10)
        assert gone(by_folder.pid)
        assert gone(by_mark.pid)
        assert not gone(stranger.pid)


def test_another_attempt_with_a_longer_name_is_not_touched(attempt: Path) -> None:
    idle = "import time; print('ready', flush=True); time.sleep(600)"
    other = attempt.with_name("job_a.12")
    other.mkdir()
    with process(idle, other) as neighbour:
        assert ProcessTree(attempt).kill(within_s=10)
        assert not gone(neighbour.pid)


def test_a_cgroup_holds_what_has_left_everything_else(attempt: Path) -> None:
    cgroup = cgroup_for(attempt)
    if cgroup is None:
        pytest.skip("this machine has no cgroup v2")
    try:
        cgroup.ranks.mkdir(parents=True)
    except OSError as error:
        pytest.skip(f"no cgroup may be made here: {error}")
    idle = "import time; print('ready', flush=True); time.sleep(600)"
    try:
        with process(idle, Path("/")) as hidden:
            (cgroup.ranks / "cgroup.procs").write_text(str(hidden.pid))
            assert ProcessTree(attempt).pids() == set()
            tree = ProcessTree(attempt, cgroup)
            assert tree.pids() == {hidden.pid}
            assert tree.kill(within_s=10)
            assert gone(hidden.pid)
    finally:
        cgroup.remove()
    assert not cgroup.path.parent.exists()


def test_a_cgroup_that_may_not_be_made_is_an_error_for_the_caller(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(OSError, match="Not a directory"):
        Cgroup(blocked / "below").create()


@pytest.mark.parametrize(
    ("place", "around"),
    [
        ("/", "/"),
        ("/user.slice/session-3.scope", "/user.slice/session-3.scope"),
        ("/system.slice/trainyard-worker.service", "/system.slice/trainyard-worker.service"),
        ("/system.slice/x.service/trainyard-worker", "/system.slice/x.service"),
        ("/system.slice/x.service/trainyard-0123456789ab/job_a.1/shim", "/system.slice/x.service"),
        ("/trainyard-0123456789ab/job_a.1", ""),
    ],
)
def test_cgroups_of_attempts_are_beside_the_worker_s_whoever_asks(place: str, around: str) -> None:
    assert around_worker(place) == around


def test_a_group_is_made_although_the_last_one_beside_it_goes_at_that_moment(
    tmp_path: Path,
) -> None:
    node = tmp_path / "trainyard-0123456789ab"

    def come_and_go(name: str) -> None:
        for number in range(2000):
            group = node / f"{name}.{number}"
            make_group(group)
            group.rmdir()
            with contextlib.suppress(OSError):  # somebody else is there
                node.rmdir()

    with ThreadPoolExecutor() as pool:
        for done in [pool.submit(come_and_go, name) for name in ("job_a", "job_b")]:
            done.result()
    with pytest.raises(NotADirectoryError):
        make_group(Path("/dev/null/group"))


def test_controllers_are_passed_down_only_by_a_cgroup_that_was_handed_over(tmp_path: Path) -> None:
    control = tmp_path / "cgroup.subtree_control"
    control.write_text("")
    for elsewhere in (None, tmp_path):
        pass_controllers_down(elsewhere)
    assert control.read_text() == ""
    (tmp_path / "trainyard-worker").mkdir()
    pass_controllers_down(tmp_path / "trainyard-worker")
    assert control.read_text() == "+cpuset"  # the last of three; the kernel takes them one by one
    control.unlink()
    control.mkdir()  # writing to it is refused
    pass_controllers_down(tmp_path / "trainyard-worker")
