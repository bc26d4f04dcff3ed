"""A fork begins like a new program: in its own session, with its own files, signals and log.

Each test forks in a program of its own: pytest has threads, and its own standard output.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.running import wait_for

PARENT = """
import os, signal, sys, time
from pathlib import Path
from standalone.children import Child

log = Path(sys.argv[1])
held = os.open(sys.argv[1] + ".held", os.O_RDWR | os.O_CREAT)
kept = os.open(sys.argv[1] + ".kept", os.O_RDWR | os.O_CREAT)
signal.signal(signal.SIGTERM, signal.SIG_IGN)

def tested(work, stop_s=10.0):
    program = ["sleep", "99"]
    child = Child("tested", program, {"OWN": "yes"}, log, [kept], stop_s, imported=work)
    child.start()
    return child

def say(*words):
    print(*words, flush=True)

"""
LOOK = """
def look():
    say(os.getsid(0) == os.getpid(), os.environ["OWN"], Path("/proc/self/comm").read_text().strip())
    for number in (held, kept):
        say(Path(f"/proc/self/fd/{number}").exists())
    say(sys.stdin.read() == "", signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)

say(tested(look).process.wait(20), os.environ.get("OWN"))
"""


def run(program: str, log: Path) -> str:
    """Output of a program that forks."""
    command = [sys.executable, "-c", PARENT + program, str(log)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert not done.stderr
    return done.stdout.strip()


def test_a_fork_has_nothing_of_its_parent_but_what_is_imported(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert run(LOOK, log) == "0 None"
    assert log.read_text() == "True yes ty-tested\nFalse\nTrue\nTrue True\n"


@pytest.mark.parametrize(
    ("work", "code", "said"),
    [
        ("None", 0, ""),
        ("3", 3, ""),
        ("sys.exit(4)", 4, ""),
        ("sys.exit('The port is in use.')", 1, "The port is in use.\n"),
        ("[][0]", 1, "IndexError: list index out of range\n"),
        ("os.kill(os.getpid(), signal.SIGKILL)", -9, ""),
        ("signal.raise_signal(signal.SIGTERM)", -15, ""),
        ("signal.raise_signal(signal.SIGINT)", 130, ""),
    ],
)
def test_the_end_of_a_fork_is_told_as_that_of_a_program(
    work: str, code: int, said: str, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    assert run(f"say(tested(lambda: {work}).process.wait(20))", log) == str(code)
    assert log.read_text().endswith(said)
    assert bool(log.read_text()) is bool(said)


def test_a_fork_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    program = "say(tested(lambda: time.sleep(999)).process.pid); time.sleep(999)"
    command = [sys.executable, "-c", PARENT + program, str(tmp_path / "log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert psutil.pid_exists(pid)
        os.kill(parent.pid, signal.SIGKILL)
    wait_for(lambda: not psutil.pid_exists(pid), what="the end of the fork")


def test_a_fork_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    program = """
def deaf():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    say("deaf")
    time.sleep(99)

child = tested(deaf, stop_s=0.2)
while not log.read_text():
    time.sleep(0.01)
child.stop()
say(child.process.returncode)
"""
    assert run(program, tmp_path / "log") == "-9"


def test_a_fork_that_is_killed_is_started_again_as_a_program(tmp_path: Path) -> None:
    program = """
child = tested(lambda: time.sleep(99))
first = child.process.pid
child.process.kill()
child.process.wait(20)
child.revive(child.started_at + 1, say)
say(child.is_running(), child.process.pid != first, child.process.args)
child.stop()
"""
    said = run(program, tmp_path / "log")
    assert "tested ended with code -9; starting it again" in said
    assert said.endswith("True True ['sleep', '99']")
