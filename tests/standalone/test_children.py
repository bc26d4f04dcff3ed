"""Supervised children: they die with their parent and come back when they fail."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest
from sqlalchemy import text

from core.database.database import Database
from core.database.schema import upgrade
from standalone.children import FIRST_PAUSE_S, Child
from standalone.data_directory import AlreadyRunning, DataDirectory
from standalone.valkey import SocketPathTooLong, command
from tests.running import wait_for


def test_a_child_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    program = textwrap.dedent(
        f"""
        import sys, time
        from pathlib import Path
        from standalone.children import Child
        child = Child("sleeper", ["sleep", "1000"], {{}}, Path({str(tmp_path / "log")!r}))
        child.start()
        print(child.process.pid, flush=True)
        time.sleep(1000)
        """
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert psutil.pid_exists(pid)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    wait_for(lambda: not psutil.pid_exists(pid), what="the end of the child")


def test_a_failed_child_is_started_again_after_a_growing_pause(tmp_path: Path) -> None:
    child = Child("failing", [sys.executable, "-c", "raise SystemExit(3)"], {}, tmp_path / "log")
    said: list[str] = []
    child.start()
    assert child.process is not None
    child.process.wait()
    child.revive(child.started_at + FIRST_PAUSE_S / 2, said.append)
    assert child.restarts == 0
    child.revive(child.started_at + FIRST_PAUSE_S, said.append)
    assert child.restarts == 1
    assert child.pause_s == 2 * FIRST_PAUSE_S
    assert "failing ended with code 3" in said[0]
    child.process.wait()
    child.revive(child.started_at + FIRST_PAUSE_S, said.append)
    assert child.restarts == 1
    child.stop()


def test_a_child_that_cannot_be_started_again_is_tried_later(tmp_path: Path) -> None:
    child = Child("failing", ["true"], {}, tmp_path / "log")
    said: list[str] = []
    child.start()
    assert child.process is not None
    child.process.wait()
    child.command = [str(tmp_path / "nothing")]
    later = child.started_at + FIRST_PAUSE_S
    child.revive(later, said.append)
    assert said[-1].startswith("failing cannot be started: ")
    child.command = ["sleep", "99"]
    child.revive(later + FIRST_PAUSE_S, said.append)
    assert not child.is_running()
    child.revive(later + 2 * FIRST_PAUSE_S, said.append)
    assert child.is_running()
    child.stop()


def test_a_child_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    program = "import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); "
    log = tmp_path / "log"
    child = Child("deaf", [sys.executable, "-c", program + "time.sleep(99)"], {}, log, stop_s=0.2)
    child.start()
    wait_for(lambda: "deaf" in log.read_text(), what="the child")
    started = time.monotonic()
    child.stop()
    assert not child.is_running()
    assert time.monotonic() - started < 5


def test_a_data_directory_is_held_by_one_platform_at_a_time(tmp_path: Path) -> None:
    data = DataDirectory(tmp_path)
    data.create()
    held = data.lock()
    data.address.write_text("http://127.0.0.1:8471")
    with pytest.raises(AlreadyRunning, match=r"http://127\.0\.0\.1:8471"):
        data.lock()
    os.close(held)
    os.close(data.lock())


@pytest.mark.slow
@pytest.mark.db
def test_a_data_directory_of_an_older_version_is_refused_with_the_way_out(tmp_path: Path) -> None:
    data = DataDirectory(tmp_path)
    data.create()
    database = Database(data.database_url)
    upgrade(database)
    with database.write() as session:
        session.execute(text("UPDATE alembic_version SET version_num = '20261124_certificates'"))
    database.close()
    up = subprocess.run(
        [sys.executable, "-m", "standalone", "--data", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert up.returncode == 1
    assert "revision 20261124_certificates" in up.stderr
    assert "Start the last commit of version 0.1.0" in up.stderr
    assert "Traceback" not in up.stderr


def test_a_data_directory_is_its_owners_alone(tmp_path: Path) -> None:
    data = DataDirectory(tmp_path / "data")
    data.create()
    assert data.path.stat().st_mode & 0o777 == 0o700


def test_a_data_directory_too_long_for_a_socket_is_refused_with_its_length(tmp_path: Path) -> None:
    with pytest.raises(SocketPathTooLong, match=r"has \d+ characters"):
        command(tmp_path / ("x" * 120))
