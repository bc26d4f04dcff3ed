"""Two child processes of the agent that fork shims: the plain one and the warm one."""

import hashlib
import os
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import structlog

import core
import strategies
import worker
from core.spec.spec import Launcher
from worker.boot import BOOT_ID_VARIABLE
from worker.ranks.launch import clean_environment

MAX_WARM_DEATHS = 3  # after that ranks use torchrun, until the code changes or the worker restarts
CODE_CHECK_EVERY_S = 2.0

log = structlog.get_logger()


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
    """False on a node with GPUs: a fork after CUDA was used fails."""
    plain: Spawner = field(init=False)
    warm: Spawner = field(init=False)
    warm_deaths: int = 0
    code: str = ""
    code_checked_at: float = 0.0

    def __post_init__(self) -> None:
        environment = clean_environment(os.environ)
        if BOOT_ID_VARIABLE in os.environ:
            environment[BOOT_ID_VARIABLE] = os.environ[BOOT_ID_VARIABLE]
        self.plain = Spawner([sys.executable, "-P", "-m", "worker.spawner"], environment)
        # One OpenMP thread, set before torch is imported: a pool would not survive the fork.
        self.warm = Spawner(
            [sys.executable, "-P", "-m", "worker.warm", self.trainer],
            {**environment, "OMP_NUM_THREADS": "1"},
        )

    def keep_ready(self) -> None:
        """Start missing processes and renew outdated ones; called now and then."""
        if not self.plain.is_running():
            self.plain.start()
        if not self.warm_allowed:
            return
        now = time.monotonic()
        if now - self.code_checked_at > CODE_CHECK_EVERY_S:
            self.code_checked_at = now
            code = fingerprint()
            if code != self.code:
                if self.code:
                    log.info("warm_launcher_renewed", reason="the code has changed")
                self.code, self.warm_deaths = code, 0
                self.warm.close()
        if self.warm.process is not None and not self.warm.is_running():
            self.warm_deaths += 1
            log.error("warm_launcher_died", code=self.warm.process.returncode)
            self.warm.close()
        if self.warm.process is None and self.warm_deaths < MAX_WARM_DEATHS:
            self.warm.start()

    def choose(self, asked: Launcher, *, device: str, spawns: int) -> Launcher:
        """Return the launcher to use for `asked`.

        After two failures to start it falls back to torchrun.
        """
        warm = self.warm_allowed and device == "cpu" and self.warm_deaths < MAX_WARM_DEATHS
        return (
            Launcher.WARM
            if warm and spawns < 2 and asked is not Launcher.TORCHRUN
            else (Launcher.TORCHRUN)
        )

    def spawn(self, attempt: Path, launcher: Launcher) -> bool:
        """Ask for a shim of this launcher; return False if that failed."""
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
    """Return a hash that changes with our code and with the installed packages; takes 1 ms."""
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
