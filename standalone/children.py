"""Child processes that die with their parent, write their output to files, and are kept running."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.process.parent_death import die_with_parent
from standalone.forks import ChildProcess, Fork

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
HEALTHY_AFTER_S = 60.0  # a child that lived so long starts its back-off anew


@dataclass
class Child:
    """One process to keep running; its standard output and error go to `log`, appended."""

    name: str
    command: Sequence[str]
    """Program and arguments."""
    environment: Mapping[str, str]
    log: Path
    inherited: Sequence[int] = ()
    """Descriptors that the process inherits, each under its number."""
    stop_s: float = 10.0
    """Time after SIGTERM, in seconds, before the process is killed."""
    process: subprocess.Popen[bytes] | ChildProcess | None = None
    started_at: float = 0.0
    pause_s: float = FIRST_PAUSE_S
    restarts: int = 0
    imported: Callable[[], object] | None = None
    """The same program as a function of this process: a fork of it is the first start."""

    def start(self) -> None:
        """Start it; its parent is the calling thread's process."""
        # As root a log that others may write must not be followed: the folder is ours alone (0700).
        with open(self.log, "ab") as log:
            if self.imported is None:
                self.process = subprocess.Popen(
                    self.command,
                    env={**os.environ, **self.environment},
                    stdin=subprocess.DEVNULL,
                    pass_fds=self.inherited,
                    stdout=log,
                    stderr=log,
                    preexec_fn=_begin,
                    start_new_session=True,  # Ctrl-C in the terminal is for the supervisor alone
                )
            else:
                self.process = Fork(
                    f"ty-{self.name}", self.imported, self.environment, log.fileno(), self.inherited
                )
                self.imported = None
        self.started_at = time.monotonic()

    def is_running(self) -> bool:
        """Return True if the process exists."""
        return self.process is not None and self.process.poll() is None

    def stop(self) -> None:
        """Send SIGTERM, then SIGKILL after `stop_s`."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.terminate()
        try:
            self.process.wait(self.stop_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def revive(self, now: float, say: Callable[[str], None]) -> None:
        """Start it again if it has ended and its pause is over; the pause doubles each time."""
        if self.process is None or self.process.poll() is None:
            return
        lived_s = now - self.started_at
        if lived_s > HEALTHY_AFTER_S:
            self.pause_s = FIRST_PAUSE_S
        if lived_s < self.pause_s:
            return
        say(
            f"{self.name} ended with code {self.process.returncode}; starting it again "
            f"(its log: {self.log})"
        )
        self.pause_s = min(self.pause_s * 2, LONGEST_PAUSE_S)
        self.restarts += 1
        try:
            self.start()
        except OSError as error:  # no memory, no process: the others go on, and it may pass
            say(f"{self.name} cannot be started: {error}")
            self.started_at = now

    def handed_over(self) -> dict[str, Any]:
        """Return, as JSON can hold it, what the program needs that this process becomes."""
        assert self.process is not None
        return {
            "name": self.name,
            "command": list(self.command),
            "environment": dict(self.environment),
            "log": str(self.log),
            "inherited": list(self.inherited),
            "stop_s": self.stop_s,
            "pid": self.process.pid,
            "started_at": self.started_at,
        }

    @classmethod
    def taken_over(cls, handed: dict[str, Any]) -> "Child":
        """Return the running child that `handed_over` told of, before this program began."""
        process = ChildProcess(handed["pid"])
        others = {name: value for name, value in handed.items() if name not in ("pid", "log")}
        return cls(**others, log=Path(handed["log"]), process=process)

    def last_lines(self, count: int = 15) -> str:
        """Return the end of the process's log, for a person to read."""
        if not self.log.exists():
            return ""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-count:])


def _begin() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # a supervisor waits for what it has blocked
    die_with_parent()
