"""`python -m benchmarks.egress [PAIRS]`: speed of a sandbox's proxy, and what it adds to a start.

Bytes come from a server on this machine's own address, by TCP and without TLS, so that the proxy is
measured and not a cipher. Starts with and without a proxy take turns. Goals: 200 MB/s, 20 ms.
"""

import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NoReturn

from worker.egress.launch import EGRESS_PORT, fork_proxy
from worker.scripts.sandbox import Box, Egress, Level, find_level
from worker.scripts.sandbox_users import user_for_a_while

PAIRS, RUNS = 30, 5
SIZE = 1 << 30
PIECE = 1 << 18
NAME = "host.benchmark"
READS = f"""
import socket, time
s = socket.create_connection(("127.0.0.1", {EGRESS_PORT}))
s.sendall(b"CONNECT {NAME}:PORT HTTP/1.1\\r\\n\\r\\n")
said = s.recv(65536)
assert b" 200 " in said, said
began, size, buffer = time.perf_counter(), 0, bytearray({PIECE})
while got := s.recv_into(buffer):
    size += got
print(size / (time.perf_counter() - began))
"""


def main(pairs: int = PAIRS) -> None:
    """Measure and print two lines."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.chmod(0o755)
        uid = stack.enter_context(user_for_a_while())
        proxy_uid = stack.enter_context(user_for_a_while())
        server = stack.enter_context(socket.create_server((own_address(), 0)))
        sender = os.fork()  # a process, as one that forks may have no threads
        if sender == 0:
            serve(server)
        stack.callback(os.kill, sender, signal.SIGKILL)
        inside = Inside(folder, uid, proxy_uid, server)
        inside.run(["/bin/true"], has_proxy=True)  # the first start finds nothing warm
        both = [
            (inside.run(["/bin/true"], has_proxy=True), inside.run(["/bin/true"], has_proxy=False))
            for _ in range(pairs)
        ]
        source = READS.replace("PORT", str(server.getsockname()[1]))
        reads = [sys.executable, "-I", "-S", "-c", source]
        rates = []
        for _ in range(RUNS):
            inside.run(reads, has_proxy=True)
            rates.append(float(inside.printed) / 1e6)
    cost_ms = 1000 * statistics.median(proxied - bare for proxied, bare in both)
    start_ms = 1000 * statistics.median(bare for _, bare in both)
    sys.stdout.write(
        f"A proxy adds {cost_ms:.1f} ms to a sandbox's start of {start_ms:.0f} ms (goal 20; median "
        f"of {pairs} pairs, load {os.getloadavg()[0]:.1f})\n"
        f"{statistics.median(rates):.0f} MB/s through the proxy, {min(rates):.0f} to "
        f"{max(rates):.0f} (goal 200; {RUNS} runs of {SIZE >> 20} MiB)\n"
    )


class Inside:
    """Sandboxes, with a proxy or without."""

    def __init__(
        self, folder: Path, uid: int | None, proxy_uid: int | None, server: socket.socket
    ) -> None:
        self.folder, self.uid, self.proxy_uid = folder, uid, proxy_uid
        self.address, self.port = server.getsockname()[:2]
        self.printed = ""
        level = find_level().level
        if level is None:
            sys.exit(find_level().reason)
        self.level: Level = level

    async def resolve(self, name: str, port: int) -> Sequence[str]:
        """Return the address of the one name."""
        return [self.address] if name == NAME else []

    def run(self, command: list[str], *, has_proxy: bool) -> float:
        """Run a program to its end; return the seconds from the start of its sandbox on."""
        began = time.perf_counter()
        with ExitStack() as stack:
            outside, inside = (stack.enter_context(one) for one in socket.socketpair())
            if has_proxy:
                proxy = fork_proxy(
                    outside, uid=self.proxy_uid, prepare=lambda: None, resolve=self.resolve
                )
                proxy.follow([f"private:{NAME}:{self.port}"], None)
            box = Box(
                folder=self.folder / "box",
                command=command,
                environment={"PATH": "/usr/bin:/bin"},
                working_folder="/",
                binds=[],
                uid=self.uid,
                egress=Egress(EGRESS_PORT, inside.fileno()) if has_proxy else None,
            )
            words, told = box.launch(self.level)
            done = subprocess.run(
                words,
                input=told,
                check=True,
                stdout=subprocess.PIPE,
                env={},
                cwd="/",
                pass_fds=[inside.fileno()] if has_proxy else [],
            )
            took_s = time.perf_counter() - began
            if has_proxy:
                proxy.finish()
                os.waitpid(proxy.pid, 0)
        self.printed = done.stdout.decode()
        return took_s


def serve(server: socket.socket) -> NoReturn:
    """Send SIZE bytes to everybody who connects."""
    piece = bytes(PIECE)
    while True:
        connection, _ = server.accept()
        with connection:
            for _ in range(SIZE // PIECE):
                connection.sendall(piece)


def own_address() -> str:
    """Return an address of this machine that is not loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        any_socket.connect(("192.0.2.254", 9))  # sends nothing
        return str(any_socket.getsockname()[0])


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
