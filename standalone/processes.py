"""The processes of a standalone platform, started in order, stopped in order."""

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version

import httpx2

from standalone import valkey
from standalone.children import Child
from standalone.data_directory import DataDirectory
from standalone.program import command

FIRST_PORT, PORTS_TRIED = 8471, 50
BACKLOG = 2048
READY_DEADLINE_S, LOOK_EVERY_S = 60.0, 0.05
ON_CPU = {
    # A worker that finds no GPU offers its CPU slots, which such a torch can use.
    "CUDA_VISIBLE_DEVICES": "",
    # A machine that is no GPU node has other work: it gets the memory of an idle launcher back.
    "TRAINYARD_WARM_RESTS_AFTER_MIN": os.environ.get("TRAINYARD_WARM_RESTS_AFTER_MIN", "10"),
}


class StartFailed(Exception):
    """A process of the platform did not start."""


@dataclass
class Processes:
    """Valkey, API, scheduler and the worker of this machine."""

    valkey: Child
    api: Child
    scheduler: Child
    worker: Child
    url: str

    @property
    def all(self) -> list[Child]:
        """Child processes in the order in which they are started."""
        return [self.valkey, self.api, self.scheduler, self.worker]

    def start(self, enrol_token: str) -> None:
        """Start everything and wait until the API answers; raises StartFailed.

        The worker's first request waits at the listening socket until the API takes it.
        """
        if enrol_token:
            self.worker.environment = {
                **self.worker.environment,
                "TRAINYARD_ENROL_TOKEN": enrol_token,
            }
        for child in self.all:
            child.start()
        self._wait_for_api()

    def stop(self) -> None:
        """Stop the running processes, the last started first."""
        for child in reversed(self.all):
            child.stop()

    def _wait_for_api(self) -> None:
        deadline = time.monotonic() + READY_DEADLINE_S
        while time.monotonic() < deadline:
            for child in (self.valkey, self.api):
                if not child.is_running():
                    raise StartFailed(
                        f"{child.name} ended at once. The end of {child.log}:\n{child.last_lines()}"
                    )
            if answers(self.url):
                return
            time.sleep(LOOK_EVERY_S)
        raise StartFailed(
            f"The API did not answer within {READY_DEADLINE_S:.0f} s. The end of {self.api.log}:\n"
            f"{self.api.last_lines()}"
        )


def describe(data: DataDirectory, listener: socket.socket, *, forked: bool = False) -> Processes:
    """The processes of the platform in `data`, none of them started; the API serves `listener`.

    With `forked` they are imported here and begin as forks of the caller's process, else as
    programs of their own.
    """
    host, port = listener.getsockname()
    url = f"http://{host}:{port}"
    redis_url = valkey.url(data.path)
    shared = {
        "TRAINYARD_DATABASE_URL": data.database_url,
        "TRAINYARD_REDIS_URL": redis_url,
    }

    def child(name: str, environment: dict[str, str], inherited: Sequence[int] = ()) -> Child:
        imported = _imported(name) if forked else None
        log = data.logs / f"{name}.log"
        return Child(name, command(name), environment, log, inherited, imported=imported)

    return Processes(
        valkey=Child("valkey", valkey.command(data.path), {}, data.logs / "valkey.log"),
        api=child(
            "api",
            {
                **shared,
                "TRAINYARD_STORE": str(data.store),
                "TRAINYARD_HOST": host,
                "TRAINYARD_PORT": str(port),
                "TRAINYARD_LISTEN_FD": str(listener.fileno()),
            },
            inherited=[listener.fileno()],
        ),
        scheduler=child("scheduler", shared),
        worker=child(
            "worker",
            {
                "TRAINYARD_API_URL": url,
                "TRAINYARD_REDIS_URL": redis_url,
                "TRAINYARD_DATA": str(data.node),
                **(ON_CPU if torch_lacks_cuda() else {}),
            },
        ),
        url=url,
    )


def torch_lacks_cuda() -> bool:
    """Return True if the installed torch is a build for the CPU alone."""
    try:
        return version("torch").endswith("+cpu")
    except PackageNotFoundError:
        return False


def answers(url: str) -> bool:
    """Return True if the API at `url` is ready."""
    try:
        return httpx2.get(f"{url}/readyz", timeout=2).status_code == 200
    except httpx2.TransportError:
        return False


def listen(port: int | None) -> socket.socket:
    """A listening socket on `port`, or on the first free one from FIRST_PORT on.

    It is ours until we end, also while the API restarts. The ports tried lie below the range from
    which clients get theirs.
    """
    for candidate in [port] if port else range(FIRST_PORT, FIRST_PORT + PORTS_TRIED):
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", candidate))
            listener.listen(BACKLOG)
        except OSError:
            listener.close()
            continue
        return listener
    if port:
        raise StartFailed(
            f"Port {port} is in use. Name another one with --port, or leave --port out."
        )
    last = FIRST_PORT + PORTS_TRIED - 1
    raise StartFailed(f"No port between {FIRST_PORT} and {last} is free. Name one with --port.")


def interrupt_on_signals(stop: threading.Event) -> None:
    """Let the first SIGINT or SIGTERM set `stop`; a second one ends the process at once."""

    def handle(number: int, _: object) -> None:
        if stop.is_set():
            os._exit(128 + number)
        stop.set()

    signal.signal(signal.SIGINT, handle)
    signal.signal(signal.SIGTERM, handle)


def _imported(name: str) -> Callable[[], object]:
    """Import a process's modules, which its fork then has; return its main function."""
    main = import_module(f"{name}.main").main
    return partial(main, []) if name == "worker" else main
