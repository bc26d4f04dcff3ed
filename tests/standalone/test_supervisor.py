"""The program that `trainyard up` becomes: it sleeps, starts again what ends, and stops all."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from core.database.database import Database
from core.database.schema import upgrade
from standalone.data_directory import DataDirectory
from tests.running import wait_for

UP = """
import signal, sys, threading, time
from pathlib import Path
from standalone.children import Child
from standalone.data_directory import DataDirectory
from standalone.processes import interrupt_on_signals
from standalone.supervisor import become_supervisor

data = DataDirectory(Path(sys.argv[1]))
stop = threading.Event()
interrupt_on_signals(stop)
lock = data.lock()
data.address.write_text("http://127.0.0.1:1")
children = [
    Child("scheduler", ["sleep", "1000"], {}, data.logs / "scheduler.log"),
    Child("deaf", sys.argv[3:], {"OWN": "yes"}, data.logs / "deaf.log", stop_s=99.0),
]
for child in children:
    child.start()
print(*(child.process.pid for child in children), flush=True)
time.sleep(float(sys.argv[2]))
become_supervisor(data, children, lock, stopped=stop.is_set())
"""
SLEEP = ("sleep", "1000")
DEAF = (
    sys.executable,
    "-c",
    "import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True); time.sleep(99)",
)


class Up:
    """A supervisor of two small programs."""

    def __init__(self, data: DataDirectory, command: tuple[str, ...], wait_s: float = 0.0) -> None:
        self.data = data
        self.process = subprocess.Popen(
            [sys.executable, "-c", UP, str(data.path), str(wait_s), *command],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.pids = [int(word) for word in self.process.stdout.readline().split()]
        if wait_s == 0.0:
            name = psutil.Process(self.process.pid).name
            wait_for(lambda: name() == "trainyard-up", what="the supervisor")

    def ends(self) -> tuple[int, str]:
        """Its exit code, and what it has said; every child is gone then."""
        said, _ = self.process.communicate(timeout=30)
        wait_for(lambda: not any(map(psutil.pid_exists, self.pids)), what="the end of all children")
        return self.process.returncode, said

    def switches(self) -> int:
        """How often it has gone to sleep."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.findall(r"^voluntary_ctxt_switches:\t(\d+)", status, re.M)[0])


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DataDirectory]:
    """A folder with a database that has no jobs."""
    data = DataDirectory(tmp_path_factory.mktemp("up"))
    data.create()
    database = Database(data.database_url)
    upgrade(database)
    database.close()
    return data


def test_it_sleeps_until_a_child_ends_and_starts_that_again(data: DataDirectory) -> None:
    up = Up(data, SLEEP)
    process = psutil.Process(up.process.pid)
    wait_for(lambda: process.status() == psutil.STATUS_SLEEPING, what="its sleep")
    slept = up.switches()
    time.sleep(0.5)
    assert up.switches() == slept
    os.kill(up.pids[1], signal.SIGKILL)

    def started_again() -> bool:
        return any(
            child.pid not in up.pids and child.status() != psutil.STATUS_ZOMBIE
            for child in process.children()
        )

    wait_for(started_again, what="the second start")
    [again] = [child for child in process.children() if child.pid != up.pids[0]]
    wait_for(lambda: again.name() == "sleep", what="its program")
    assert again.environ()["OWN"] == "yes"
    up.process.send_signal(signal.SIGTERM)
    code, said = up.ends()
    assert not psutil.pid_exists(again.pid)  # it hears signals: nothing of the supervisor's is left
    assert code == 0
    assert said.startswith("deaf ended with code -9; starting it again")
    assert "Stopped." in said
    assert not data.address.exists()
    os.close(data.lock())


def test_the_folder_is_held_while_it_runs_and_a_second_signal_ends_it_at_once(
    data: DataDirectory,
) -> None:
    up = Up(data, DEAF)
    wait_for((data.logs / "deaf.log").read_text, what="the deaf child")
    with pytest.raises(Exception, match="already running"):
        data.lock()
    up.process.send_signal(signal.SIGINT)
    wait_for(lambda: not psutil.pid_exists(up.pids[0]), what="the end of the scheduler")
    wait_for(lambda: len(psutil.Process(up.process.pid).children()) == 1, what="the deaf one alone")
    up.process.send_signal(signal.SIGINT)
    assert up.process.wait(10) == -signal.SIGINT
    os.kill(up.pids[1], signal.SIGKILL)
    assert "Stopped." not in up.ends()[1]


def test_a_signal_that_came_before_it_began_counts(data: DataDirectory) -> None:
    up = Up(data, SLEEP, wait_s=0.5)
    up.process.send_signal(signal.SIGINT)
    code, said = up.ends()
    assert (code, said.partition(".")[0]) == (0, "Stopped")
