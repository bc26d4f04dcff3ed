"""The whole platform on this machine: as `trainyard up` starts it, or two of each on PostgreSQL."""

import asyncio
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import httpx2
import psutil

from core.database.database import Database
from core.database.schema import upgrade
from standalone import valkey
from standalone.children import Child
from standalone.data_directory import DataDirectory
from standalone.processes import answers, describe, listen
from tests.postgresql import Server
from tests.running import ADMIN, is_named, running_platform, wait_for

LOOK_EVERY_S = 0.05  # standalone.processes: how soon an ended process is seen


@dataclass
class House:
    """A running platform, and ways to watch and to break it."""

    kind: str
    """Database: `sqlite` or `postgresql`."""
    url: str
    token: str
    """Secret of a session of the administrator."""
    database_url: str
    roots: dict[str, psutil.Process]
    """Processes, by name, that this process does not restart."""
    redis_url: str = ""
    """Address of Valkey."""
    server: Server | None = None
    """The database's server; None on SQLite."""
    children: list[Child] = field(default_factory=list)
    """Processes that this process starts again if they end."""

    @property
    def host(self) -> str:
        """Host on which the API listens."""
        return self.url.removeprefix("http://").rpartition(":")[0]

    @property
    def port(self) -> int:
        """Port on which the API listens."""
        return int(self.url.rpartition(":")[2])

    def http(self) -> httpx2.Client:
        """Return an HTTP client of the administrator."""
        headers = {"Authorization": f"Bearer {self.token}"}
        return httpx2.Client(base_url=self.url, headers=headers, timeout=30)

    def processes(self) -> dict[str, list[psutil.Process]]:
        """Return the platform's present processes by name."""
        found: dict[str, list[psutil.Process]] = {}
        for name, root in self.roots.items():
            if name == "up":
                found[name] = [root]
                for child in root.children():
                    found.setdefault(_named(child), []).extend(_family(child))
            else:
                found[name] = _family(root)
        for one in self.children:
            if one.process is not None and one.is_running():
                found[one.name] = _family(psutil.Process(one.process.pid))
        return found

    async def keep_running(self) -> None:
        """Start processes again that have ended, as `up` does, until cancelled."""
        while True:
            for child in self.children:
                child.revive(time.monotonic(), lambda _: None)
            await asyncio.sleep(LOOK_EVERY_S)

    def kill_an_api(self) -> None:
        """Kill an API with SIGKILL, and wait until it is gone."""
        name = "api" if self.kind == "sqlite" else "api-1"
        process = self.processes()[name][0]
        process.send_signal(signal.SIGKILL)
        while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.001)


@contextmanager
def standing(kind: str) -> Iterator[House]:
    """Run a platform on `sqlite` or `postgresql`; everything is removed afterwards."""
    with _on_sqlite() if kind == "sqlite" else _on_postgresql() as house:
        yield house


@contextmanager
def _on_sqlite() -> Iterator[House]:
    with running_platform() as platform:
        yield House(
            kind="sqlite",
            url=platform.url,
            token=platform.token,
            database_url=platform.data.database_url,
            roots={"up": psutil.Process(platform.up_pid())},
        )


@contextmanager
def _on_postgresql() -> Iterator[House]:
    """Run two APIs on one socket, two schedulers and Valkey; no worker of this machine."""
    folder = Path(tempfile.mkdtemp(prefix="ty-b-", dir="/tmp"))  # short: it holds sockets
    folder.chmod(0o755)
    (folder / "pg").mkdir()
    server = Server(folder / "pg")
    listener = listen(None)
    children: list[Child] = []
    try:
        server.create()
        server.start()
        database = Database(server.url)
        upgrade(database)
        database.close()
        data = DataDirectory(folder / "data")
        data.create()
        described = describe(data, listener)
        for child in (described.api, described.scheduler):
            child.environment = {**child.environment, "TRAINYARD_DATABASE_URL": server.url}
            children += [
                replace(child, name=f"{child.name}-{n}", log=data.logs / f"{child.name}-{n}.log")
                for n in (1, 2)
            ]
        children.insert(0, described.valkey)
        for child in children:
            child.start()
            if child.name == "api-1":
                wait_for(lambda: answers(described.url), what="the first API")
        assert server.process is not None
        yield House(
            kind="postgresql",
            url=described.url,
            token=_first_administrator(described.url, data),
            database_url=server.url,
            redis_url=valkey.url(data.path),
            server=server,
            roots={"postgresql": psutil.Process(server.process.pid)},
            children=children,
        )
    finally:
        for child in reversed(children):
            child.stop()
        listener.close()
        if server.process is not None:
            server.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _first_administrator(url: str, data: DataDirectory) -> str:
    secret = data.first_start.read_text().partition("secret=")[2].strip()
    body = {"secret": secret, "name": ADMIN, "password": "correct horse battery"}
    answer = httpx2.post(f"{url}/v1/first-start", json=body, timeout=30)
    return str(answer.raise_for_status().json()["secret"])


def _named(child: psutil.Process) -> str:
    names = ("valkey", "api", "scheduler", "worker")
    return next((name for name in names if is_named(child, name)), "")


def _family(process: psutil.Process) -> list[psutil.Process]:
    try:
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []
