"""Keep the processes of a standalone platform running until it is asked to stop.

`trainyard up` becomes this program once its processes run. It is a program of its own because it
stays: it imports next to nothing, and sleeps until a child ends or a signal comes.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from core.process.parent_death import die_with_parent
from standalone.children import Child
from standalone.data_directory import DataDirectory
from standalone.forks import STOPS

NEWS = {*STOPS, signal.SIGCHLD}
LOOK_ANYWAY_S = 3600.0
LOOK_AGAIN_S = 0.1  # while one that has ended waits for its next start
COMM = "trainyard-up"


def become_supervisor(
    data: DataDirectory, children: Sequence[Child], lock: int, *, stopped: bool
) -> NoReturn:
    """Replace this process's program by the supervisor of `children`, in the order of their start.

    `lock` is kept open. With `stopped` a signal has asked for the end already.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, NEWS)  # what comes from here on waits for the new one
    if stopped:
        os.kill(os.getpid(), signal.SIGTERM)
    handed = os.memfd_create("trainyard-children", 0)
    os.write(handed, json.dumps([child.handed_over() for child in children]).encode())
    for kept in (lock, *(number for child in children for number in child.inherited)):
        os.set_inheritable(kept, True)
    sys.stdout.flush()
    sys.stderr.flush()
    program = [sys.executable, "-P", "-m", "standalone.supervisor", str(data.path), str(handed)]
    os.execv(sys.executable, program)


def main(folder: str, handed: int) -> int:
    """Supervise until SIGTERM or SIGINT; then save the jobs and stop all. Returns the exit code."""
    Path("/proc/self/comm").write_text(COMM)
    data = DataDirectory(Path(folder))
    children = _taken_over(handed)
    try:
        keep_running(children)
        for number in STOPS:  # a second one ends this process at once, and the others with it
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, NEWS)
        code = _save_jobs(data, children)
    finally:
        data.address.unlink(missing_ok=True)
        for child in reversed(children):
            child.stop()
    say("Stopped. The next `trainyard up` continues where this one ended.")
    return code


def keep_running(children: Sequence[Child]) -> None:
    """Start again what ends, with growing pauses, until one of STOPS comes; all NEWS is blocked."""
    while True:
        for child in children:
            child.revive(time.monotonic(), say)
        are_running = all(child.is_running() for child in children)
        news = signal.sigtimedwait(NEWS, LOOK_ANYWAY_S if are_running else LOOK_AGAIN_S)
        if news is not None and news.si_signo in STOPS:
            return


def _save_jobs(data: DataDirectory, children: Sequence[Child]) -> int:
    """Have the running jobs save and stop, by a program that imports what it needs and ends.

    Returns its exit code.
    """
    for child in children:
        if child.name == "scheduler":  # it would start them again
            child.stop()
    saving = [sys.executable, "-P", "-m", "standalone.saving", str(data.path)]
    return subprocess.run(saving, preexec_fn=die_with_parent, check=False).returncode


def _taken_over(handed: int) -> list[Child]:
    with os.fdopen(handed, "rb") as file:
        file.seek(0)
        return [Child.taken_over(part) for part in json.load(file)]


def say(line: str) -> None:
    """Write a line to standard output, at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
