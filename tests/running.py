"""A whole platform in a temporary folder, as `trainyard up` starts it, for tests and benchmarks."""

import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TypeVar

import httpx2
import psutil

from standalone.data_directory import DataDirectory
from tests.forked import Forked, origin

Value = TypeVar("Value")
ADMIN = "ada"
START_DEADLINE_S = 90.0


def wait_for(
    ask: Callable[[], Value | None], *, what: str, within_s: float = 60.0, every_s: float = 0.05
) -> Value:
    """The first answer of `ask` that is neither None nor False; fails loudly after `within_s`."""
    deadline = time.monotonic() + within_s
    while True:
        answer = ask()
        if answer is not None and answer is not False:
            return answer
        assert time.monotonic() < deadline, f"waited {within_s:.0f} s in vain for {what}"
        time.sleep(every_s)


def own_port() -> int:
    """A free port, below the range from which clients get theirs."""
    while True:
        port = random.randrange(20_000, 30_000)
        with closing(socket.socket()) as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port


class Running:
    """One `trainyard up` and ways to ask it, to find its processes and to break them."""

    def __init__(
        self,
        folder: Path,
        environment: dict[str, str] | None = None,
        within: Sequence[str] = (),
        *,
        forked: bool = True,
    ) -> None:
        self.data = DataDirectory(folder)
        self.environment = environment or {}
        self.within = within
        """Command that starts `up`, such as one that gives it a view of its own."""
        self.forked = forked and not within
        self.token = ""
        self.url = ""
        self.up: subprocess.Popen[bytes] | Forked | None = None
        # Its own: a platform that runs beside the tests could take 8471 while our API is restarted.
        self.port = own_port()

    def start(self) -> None:
        """Start `up` and wait until its API answers; the first time also make the administrator."""
        self.data.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        arguments = ("--data", str(self.data.path), "--port", str(self.port))
        environment = {**os.environ, **self.environment}
        with open(self.data.path / "up.out", "a") as output:
            if self.forked:
                self.up = origin().start(
                    "standalone.__main__", *arguments, environment=environment, log=output
                )
            else:
                self.up = subprocess.Popen(
                    [*self.within, sys.executable, "-m", "standalone", *arguments],
                    env=environment,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
        self.url = wait_for(self._address, what="the platform's address", within_s=START_DEADLINE_S)
        if not self.token:
            self.token = self._first_start()

    def http(self, *, token: str | None = None) -> httpx2.Client:
        """An HTTP client of the administrator, or of the holder of `token`."""
        return httpx2.Client(
            base_url=self.url,
            headers={"Authorization": f"Bearer {self.token if token is None else token}"},
            timeout=30,
        )

    def wait_for_node(self) -> None:
        """Wait until this machine's worker has reported and takes jobs."""

        def ready() -> bool:
            with self.http() as client:
                nodes = client.get("/v1/nodes").raise_for_status().json()["data"]
                return any(node["state"] == "ready" and node["reachable"] for node in nodes)

        wait_for(ready, what="a ready node", within_s=START_DEADLINE_S)

    def process(self, name: str) -> psutil.Process:
        """The running api, scheduler, worker or valkey of this platform."""
        found = wait_for(lambda: self._child(name), what=f"process {name}")
        assert isinstance(found, psutil.Process)
        return found

    def up_pid(self) -> int:
        """Process id of the supervisor."""
        assert self.up is not None
        return self.up.pid

    def interrupt(self, within_s: float = 120.0) -> int:
        """Ctrl-C; returns the exit code of `up`."""
        assert self.up is not None
        self.up.send_signal(signal.SIGINT)
        return self.up.wait(timeout=within_s)

    def kill(self) -> None:
        """kill -9 of `up` alone."""
        assert self.up is not None
        self.up.kill()
        self.up.wait()

    def ranks(self) -> list[psutil.Process]:
        """Every process that has a run directory of this platform as its working directory."""
        return [p for p in psutil.process_iter() if self._works_below(p, self.data.node)]

    def output(self) -> str:
        """What `up` has printed."""
        return (self.data.path / "up.out").read_text()

    def _address(self) -> str | None:
        assert self.up is not None
        assert self.up.poll() is None, f"up ended: {self.output()}"
        address = self.data.running_address()
        if not address:
            return None
        try:
            httpx2.get(f"{address}/readyz", timeout=2)
        except httpx2.TransportError:
            return None  # the address that a killed platform has left behind
        return address

    def _first_start(self) -> str:
        link = wait_for(
            lambda: self.data.first_start.read_text() if self.data.first_start.exists() else None,
            what="the first-start link",
        )
        secret = re.search(r"secret=([A-Za-z0-9_-]+)", link)
        assert secret is not None, link
        answer = httpx2.post(
            f"{self.url}/v1/first-start",
            json={"secret": secret[1], "name": ADMIN, "password": "correct horse battery"},
            timeout=30,
        )
        assert answer.status_code == 201, answer.text
        return str(answer.json()["secret"])

    def _child(self, name: str) -> psutil.Process | None:
        assert self.up is not None
        for child in psutil.Process(self.up.pid).children():
            try:
                if is_named(child, name):
                    return child
            except psutil.NoSuchProcess:
                continue
        return None

    @staticmethod
    def _works_below(process: psutil.Process, folder: Path) -> bool:
        try:
            return Path(process.cwd()).is_relative_to(folder)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            return False


def is_named(child: psutil.Process, name: str) -> bool:
    """Whether a child of `up` is its valkey, api, scheduler or worker: a fork, or started again."""
    if name == "valkey":
        return any("valkey.sock" in part for part in child.cmdline())
    runs = child.name() == f"ty-{name}" or child.cmdline()[-2:] == ["standalone.program", name]
    return runs and child.status() != psutil.STATUS_ZOMBIE


@contextmanager
def running_platform(
    environment: dict[str, str] | None = None, within: Sequence[str] = (), *, forked: bool = True
) -> Iterator[Running]:
    """A platform with a ready node; everything it started is gone afterwards.

    Who measures it starts it anew, as users do: not `forked`.
    """
    folder = Path(tempfile.mkdtemp(prefix="ty-", dir="/tmp"))  # short: it holds a socket
    platform = Running(folder, environment, within, forked=forked)
    try:
        platform.start()
        platform.wait_for_node()
        yield platform
    finally:
        if platform.up is not None and platform.up.poll() is None:
            psutil_children = psutil.Process(platform.up.pid).children()
            platform.kill()
            psutil.wait_procs(psutil_children, timeout=15)
        for left in platform.ranks():
            left.kill()
        shutil.rmtree(folder, ignore_errors=True)
