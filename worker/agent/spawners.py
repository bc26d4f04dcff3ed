"""Two child processes of the agent that fork shims: the plain one and the warm one."""

import hashlib
import math
import os
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import structlog

import core
import strategies
import worker
from core.spec.spec import Launcher
from worker.node.boot import BOOT_ID_VARIABLE
from worker.ranks.launch import clean_environment, huge_pages
from worker.warm import ForkRisk

MAX_WARM_DEATHS = 3  # after that ranks use torchrun, until the code changes or the worker restarts
MAX_WARM_SPAWNS = 2  # of one attempt, after which its ranks use torchrun
# A look at the code takes 5 to 10 ms. Between attempts it only has the warm process ready in time.
CODE_CHECK_EVERY_S, CODE_CHECK_AT_START_S = 60.0, 2.0
SWITCHED_OFF = "this worker's TRAINYARD_WARM_LAUNCHER is false"

log = structlog.get_logger()


class Choice(NamedTuple):
    """Launcher of an attempt's ranks."""

    launcher: Launcher
    reason: str = ""
    """Reason for torchrun where the job did not ask for it, in a clause."""


@dataclass
class Spawner:
    """Process of `worker.spawner` or `worker.warm`. It ends when its input is closed."""

    command: list[str]
    environment: dict[str, str]
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it in /, because otherwise a rank's folder would seem in use."""
        self.process = subprocess.Popen(
            self.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env=self.environment,
            cwd="/",
            start_new_session=True,  # Ctrl-C in a terminal is not for shims
        )

    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def spawn(self, attempt: Path) -> bool:
        """Ask for a shim; return False if the process is gone."""
        if not self.is_running():
            return False
        assert self.process is not None
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(os.fsencode(attempt) + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return False
        return True

    def close(self) -> None:
        """End it; the shims it has forked continue."""
        if self.process is None:
            return
        assert self.process.stdin is not None
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            log.info("spawner_was_gone", command=self.command)
        try:
            self.process.wait(2.0)
        except subprocess.TimeoutExpired:  # importing: it will not read its input for seconds
            self.process.kill()
            self.process.wait()
        self.process = None


@dataclass
class Spawners:
    """Both processes, started when needed, and again when they die or the code changes."""

    trainer: str
    warm_allowed: bool
    """False if the worker's settings switch the warm launcher off."""
    rest_after_s: float = math.inf
    """Seconds without an attempt after which both processes end, until the next attempt."""
    plain: Spawner = field(init=False)
    warm: Spawner = field(init=False)
    warm_deaths: int = 0
    risk: ForkRisk | None = None
    """Reason why the warm process ended itself instead of forking."""
    code: str = ""
    code_checked_at: float = 0.0
    wanted_at: float = field(default_factory=time.monotonic)
    """Time of the last attempt, or of the worker's start."""

    def __post_init__(self) -> None:
        environment = clean_environment(os.environ)
        if BOOT_ID_VARIABLE in os.environ:
            environment[BOOT_ID_VARIABLE] = os.environ[BOOT_ID_VARIABLE]
        self.plain = Spawner([sys.executable, "-P", "-m", "worker.spawner"], environment)
        # Both are read when torch is imported or first asked; worker.warm says why.
        forkable = {"OMP_NUM_THREADS": "1", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
        # A fork allocates as the process does that it was forked from.
        self.warm = Spawner(
            [sys.executable, "-P", "-m", "worker.warm", self.trainer],
            {**environment, **forkable, **huge_pages()},
        )

    def keep_ready(self, *, code_age_s: float = CODE_CHECK_EVERY_S) -> None:
        """Start missing processes and renew outdated ones, or let both rest; called now and then.

        The code is looked at if the last look is older than `code_age_s`.
        """
        now = time.monotonic()
        if now - self.wanted_at > self.rest_after_s:
            self.close()
            return
        if not self.plain.is_running():
            self.plain.start()
        if not self.warm_allowed:
            return
        if now - self.code_checked_at > code_age_s:
            self.code_checked_at = now
            code = fingerprint()
            if code != self.code:
                if self.code:
                    log.info("warm_launcher_renewed", reason="the code has changed")
                self.code, self.warm_deaths, self.risk = code, 0, None
                self.warm.close()
        if self.warm.process is not None and not self.warm.is_running():
            self._bury(self.warm.process.returncode)
        if self.warm.process is None and not self._why_not_warm():
            self.warm.start()

    def choose(self, asked: Launcher, *, spawns: int) -> Choice:
        """Return the launcher to use for `asked`, for an attempt that was spawned `spawns` times.

        Whatever keeps the warm process from forking, torchrun takes its place.
        """
        self.wanted_at = time.monotonic()
        if asked is Launcher.TORCHRUN:
            return Choice(Launcher.TORCHRUN)
        self.keep_ready(code_age_s=CODE_CHECK_AT_START_S)
        reason = self._why_not_warm()
        if not reason and spawns >= MAX_WARM_SPAWNS:
            reason = f"the warm process was asked {spawns} times and started no rank"
        return Choice(Launcher.TORCHRUN if reason else Launcher.WARM, reason)

    def _why_not_warm(self) -> str:
        """Return the reason why no attempt here can use the warm process; empty if they can."""
        if not self.warm_allowed:
            return SWITCHED_OFF
        if self.risk is not None:
            return self.risk.sentence
        if self.warm_deaths >= MAX_WARM_DEATHS:
            return f"the warm process has died {self.warm_deaths} times"
        return ""

    def _bury(self, code: int) -> None:
        """Note the end of the warm process, which the next round starts again if that may help."""
        self.warm.close()
        if code in set(ForkRisk):
            self.risk = ForkRisk(code)
            log.warning("warm_launcher_unsafe", reason=self.risk.sentence)
        else:
            self.warm_deaths += 1
            log.error("warm_launcher_died", code=code)

    def spawn(self, attempt: Path, launcher: Launcher) -> bool:
        """Ask for a shim of this launcher; return False if that failed."""
        self.wanted_at = time.monotonic()
        self.keep_ready()
        return self._of(launcher).spawn(attempt)

    def is_running(self, launcher: Launcher) -> bool:
        return self._of(launcher).is_running()

    def close(self) -> None:
        """End both processes."""
        self.plain.close()
        self.warm.close()

    def _of(self, launcher: Launcher) -> Spawner:
        return self.warm if launcher is Launcher.WARM else self.plain


def fingerprint() -> str:
    """Return a hash that changes with our code and with the installed packages."""
    digest = hashlib.sha256()
    for path in _watched():
        found = path.stat()
        digest.update(f"{path} {found.st_mtime_ns} {found.st_size}\n".encode())
    return digest.hexdigest()


def _watched() -> Iterator[Path]:
    for package in (core, strategies, worker):
        for folder in package.__path__:
            yield from sorted(Path(folder).rglob("*.py"))
    yield Path(sysconfig.get_path("purelib"))
    yield Path(sysconfig.get_path("platlib"))
