"""Child processes by their number, and forks: what a fork's parent has imported is shared with it.

A fork is ready at once and costs only the memory that it changes. It must find nothing of its
parent's work: fork before any thread, with no connection to a database open (SQLite's may not be
carried over), and let it run in a session, with signals, files and a log of its own.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from core.process.parent_death import die_with_parent

WAIT_EVERY_S = 0.01
STOPS = (signal.SIGTERM, signal.SIGINT)


class ChildProcess:
    """A child of this process, known by its number; to its parent like a subprocess.Popen."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return its exit code, minus the signal's number if one killed it; None while it runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; raises subprocess.TimeoutExpired."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            time.sleep(WAIT_EVERY_S)
        return code

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


class Fork(ChildProcess):
    """A process that runs `work`."""

    def __init__(
        self,
        name: str,
        work: Callable[[], object],
        environment: Mapping[str, str],
        log: int,
        inherited: Sequence[int],
    ) -> None:
        """Fork; the new process is called `name` (the first 15 bytes of it), and its output goes to
        the descriptor `log`."""
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)  # until each has its own handlers
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(OSError):
                Path("/proc/self/comm").write_text(name)
            _leave(parent, log, inherited)
            os.environ.update(environment)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
            _end_with(work)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
        super().__init__(pid)


def _leave(parent: int, log: int, inherited: Sequence[int]) -> None:
    """Leave everything of the parent behind but `inherited`, as a new program would."""
    os.setsid()  # Ctrl-C in the terminal is for the supervisor alone
    die_with_parent()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if os.getppid() != parent:
        os._exit(128 + signal.SIGTERM)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for taken, number in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(taken, number)
    first = 3
    for kept in (*sorted(inherited), os.sysconf("SC_OPEN_MAX")):
        os.closerange(first, kept)
        first = kept + 1


def _end_with(work: Callable[[], object]) -> NoReturn:
    """Run `work`, then end without a return into the parent's code."""
    code: object = 1
    try:
        code = work()
    except SystemExit as error:
        code = error.code
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
    except BaseException:
        traceback.print_exc()
    if isinstance(code, str):
        sys.stderr.write(f"{code}\n")
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))
