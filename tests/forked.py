"""Programs that are forked from a process which has imported them: no test waits for imports.

A module's `main` runs as in a program of its own, with the arguments and the environment that it is
given; only /proc shows the command line and the environment of the process it was forked from. At
least one test of each program starts it as its users do.
"""

import atexit
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, Any

from core.process.parent_death import die_with_parent
from standalone.forks import WAIT_EVERY_S, Fork

TREE = Path(__file__).parents[1]
MESSAGE_BYTES = 1 << 20


class Forked:
    """A program that was forked; to whoever started it like a subprocess.Popen."""

    def __init__(self, origin: "Origin", pid: int) -> None:
        self.origin, self.pid = origin, pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Its exit code, minus the signal's number if one killed it; None while it runs."""
        if self.returncode is None:
            self.returncode = self.origin.ask({"poll": self.pid})
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; raises subprocess.TimeoutExpired."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            time.sleep(WAIT_EVERY_S)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Origin:
    """The process that imports modules and forks what runs their `main`."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self.asking = threading.Lock()
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "tests.forked", str(theirs.fileno())],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))},
                pass_fds=[theirs.fileno()],
                preexec_fn=die_with_parent,
            )
        atexit.register(self.close)

    def start(
        self, module: str, *arguments: str, environment: Mapping[str, str], log: IO[Any] | int
    ) -> Forked:
        """Fork a program, whose output goes to `log`."""
        order = {"module": module, "arguments": arguments, "environment": dict(environment)}
        pid = self.ask(order, log if isinstance(log, int) else log.fileno())
        assert pid is not None
        return Forked(self, pid)

    def ask(self, order: dict[str, Any], *descriptors: int) -> int | None:
        """The answer to one order."""
        with self.asking:
            socket.send_fds(self.socket, [json.dumps(order).encode()], descriptors)
            received = self.socket.recv(MESSAGE_BYTES)
        assert received, "the process that forks programs has ended"
        answer: int | None = json.loads(received)
        return answer

    def close(self) -> None:
        """End it; what it has forked and is still there gets SIGTERM."""
        self.socket.close()
        self.process.wait()


@cache
def origin(*folders: Path) -> Origin:
    """The process of this session that forks programs; it finds modules in `folders` first."""
    return Origin((*folders, TREE, TREE / "client"))


def serve(orders: socket.socket) -> None:
    """Fork a program for each order, until whoever gives them has gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests
    forks: dict[int, Fork] = {}
    while True:
        received, descriptors, *_ = socket.recv_fds(orders, MESSAGE_BYTES, 1)
        if not received:
            return
        order = json.loads(received)
        if "poll" in order:
            answer = forks[order["poll"]].poll()
        else:
            [log] = descriptors
            fork = fork_program(order["module"], order["arguments"], order["environment"], log)
            os.close(log)
            forks[fork.pid], answer = fork, fork.pid
        orders.send(json.dumps(answer).encode())


def fork_program(module: str, arguments: list[str], environment: dict[str, str], log: int) -> Fork:
    """Import a module, which takes time but once, and fork what runs its `main`."""
    program = importlib.import_module(module)
    gc.collect()
    gc.freeze()  # a collection would write to every object, and a fork no longer share its page

    def work() -> object:
        for name in os.environ.keys() - environment.keys():
            del os.environ[name]
        os.environ.update(environment)
        sys.argv[1:] = arguments
        return program.main()

    return Fork(f"ty-{module.partition('.')[0]}", work, {}, log, [])


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
