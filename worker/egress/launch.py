"""Start of a proxy, and its parent's end of the connection to it."""

import json
import os
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from pydantic import TypeAdapter, ValidationError

from core.wire.messages import HostUse
from worker.egress.proxy import Resolve, main

EGRESS_PORT = 29_472  # in a network that nobody else is in
ROOT = Path(__file__).parents[2]  # where the packages lie
MODULE = "worker.egress.proxy"
PROGRAM = """
import runpy, sys
sys.path.insert(0, {root!r})
runpy.run_module({module!r}, None, "__main__")
"""
LAST_REPORT_WITHIN_S = 2.0
MAX_DESCRIPTORS = 4096
MAX_MESSAGE = 1 << 17
REPORT = TypeAdapter(dict[str, tuple[HostUse, ...]])


class ProxyProcess:
    """A proxy of this process, which ends with it."""

    def __init__(
        self,
        pid: int,
        control: socket.socket,
        earlier: Sequence[HostUse],
        *,
        process: subprocess.Popen[bytes] | None = None,
    ) -> None:
        self.pid, self.control, self.process = pid, control, process
        self.earlier = tuple(earlier)
        self.hosts = self.earlier
        """Use of each host, as last reported, with the earlier one."""

    def follow(
        self, reach: Sequence[str], ceiling: Sequence[str] | None, *, key: str | None = None
    ) -> None:
        """Give the proxy its list, or a new one. Raises OSError if it has ended."""
        above = None if ceiling is None else list(ceiling)
        self.control.send(json.dumps({"reach": list(reach), "ceiling": above, "key": key}).encode())

    def look(self, *, wait_s: float = 0.0) -> bool:
        """Take the reports that have arrived; return True if there was one.

        With `wait_s`, wait for more until the proxy has ended the connection.
        """
        deadline, is_new = time.monotonic() + wait_s, False
        while True:
            try:
                self.control.settimeout(max(0.0, deadline - time.monotonic()))
                told = self.control.recv(MAX_MESSAGE)
            except OSError:  # nothing more has arrived, or it has ended
                return is_new
            if not told:
                return is_new
            try:
                self.hosts = added(self.earlier, REPORT.validate_json(told)["hosts"])
            except (ValidationError, KeyError):
                continue
            is_new = True

    def finish(self) -> bool:
        """Let the proxy end, with a last report; return True if there was one."""
        try:
            self.control.shutdown(socket.SHUT_WR)
        except OSError:
            return False
        is_new = self.look(wait_s=LAST_REPORT_WITHIN_S)
        self.control.close()
        return is_new

    def wait(self) -> None:
        """Wait for the end of a proxy that was started."""
        assert self.process is not None
        self.process.wait()


def fork_proxy(
    given: socket.socket,
    *,
    uid: int | None,
    prepare: Callable[[], None],
    earlier: Sequence[HostUse] = (),
    resolve: Resolve | None = None,
) -> ProxyProcess:
    """Fork a proxy that gets its listening socket through the other end of `given`.

    For a process with one thread: nothing has to be imported, which would take longer than to build
    a sandbox. `prepare` is called first in the new process. `uid`: user that it runs as if this one
    is root. `earlier`: uses to which those of this proxy are added.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        pid = os.fork()
        if pid == 0:
            _become(theirs, given, uid, prepare, resolve)
    return ProxyProcess(pid, ours, earlier)


def _become(
    control: socket.socket,
    given: socket.socket,
    uid: int | None,
    prepare: Callable[[], None],
    resolve: Resolve | None,
) -> NoReturn:
    try:
        prepare()
        keep_only([control, given])
        os.environ.clear()  # it has the worker's settings, and needs none
        main(control.fileno(), given.fileno(), uid, resolve=resolve)
    except BaseException:  # the edge of the proxy's process: record, then end
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(1)
    raise AssertionError  # not reached


def start_proxy(
    given: socket.socket,
    *,
    uid: int | None,
    environment: Mapping[str, str],
    module: str = MODULE,
) -> ProxyProcess:
    """Start a proxy as `fork_proxy` does, from a process with threads."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    numbers = (theirs.fileno(), given.fileno())
    program = PROGRAM.format(root=str(ROOT), module=module)
    command = [sys.executable, "-I", "-S", "-c", program, *map(str, numbers)]
    with theirs:
        process = subprocess.Popen(
            command if uid is None else [*command, str(uid)],
            stdin=subprocess.DEVNULL,
            env=dict(environment),
            pass_fds=numbers,
        )
    return ProxyProcess(process.pid, ours, (), process=process)


def keep_only(sockets: Iterable[socket.socket]) -> None:
    """Close all descriptors of this process but those of these sockets and of its standard
    streams; a program that it becomes inherits them."""
    first = 3
    for number in sorted(one.fileno() for one in sockets):
        os.closerange(first, number)
        os.set_inheritable(number, True)
        first = number + 1
    os.closerange(first, MAX_DESCRIPTORS)


def added(earlier: Sequence[HostUse], later: Sequence[HostUse]) -> tuple[HostUse, ...]:
    """Return the uses of two proxies of one attempt together."""
    found = {use.host: use for use in earlier}
    for use in later:
        before = found.get(use.host)
        if before is not None:
            use = HostUse(
                host=use.host,
                connections=before.connections + use.connections,
                refused=before.refused + use.refused,
                sent_bytes=before.sent_bytes + use.sent_bytes,
                received_bytes=before.received_bytes + use.received_bytes,
                why=use.why or before.why,
            )
        found[use.host] = use
    return tuple(found.values())


def proxy_variables(address: str, *, also: Sequence[str] = ()) -> dict[str, str]:
    """Return the variables that lead programs to the proxy at `address`, but not to their own
    loopback, nor to the addresses `also`."""
    direct = ",".join(["localhost", "127.0.0.1", "::1", *also])
    values = {"HTTPS_PROXY": address, "HTTP_PROXY": address, "NO_PROXY": direct}
    return values | {name.lower(): value for name, value in values.items()}
