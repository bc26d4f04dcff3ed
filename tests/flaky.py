"""A TCP proxy that breaks its connections at random places, for tests and benchmarks."""

import random
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

PIECE = 1 << 16
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close with a reset


@dataclass
class FlakyProxy:
    """A proxy to one port of this machine.

    A connection breaks once it has carried `next_break()` bytes from the client; never for None.
    """

    port: int
    next_break: Callable[[], int | None]
    breaks: int = 0
    listener: socket.socket = field(default_factory=socket.socket)

    @property
    def url(self) -> str:
        """Its own address."""
        return f"http://127.0.0.1:{self.listener.getsockname()[1]}"

    def serve(self) -> None:
        """Relay connections until the listener is closed."""
        with suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                threading.Thread(target=self._relay, args=(client,), daemon=True).start()

    def _relay(self, client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", self.port)) as server:
            answers = threading.Thread(target=_copy, args=(server, client), daemon=True)
            answers.start()
            if not _copy(client, server, most=self.next_break()):
                self.breaks += 1
                server.shutdown(socket.SHUT_WR)  # a reset would discard what the kernel holds
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                with suppress(OSError):
                    client.shutdown(socket.SHUT_RDWR)
            answers.join()


def _copy(source: socket.socket, target: socket.socket, most: int | None = None) -> bool:
    """Copy until the end; return False if `most` bytes came before it."""
    copied = 0
    with suppress(OSError):
        while piece := source.recv(PIECE):
            if most is not None and copied + len(piece) >= most:
                target.sendall(piece[: most - copied])
                return False
            target.sendall(piece)
            copied += len(piece)
        target.shutdown(socket.SHUT_WR)
    return True


@contextmanager
def flaky(port: int, next_break: Callable[[], int | None]) -> Iterator[FlakyProxy]:
    """Run a proxy in a thread."""
    proxy = FlakyProxy(port, next_break)
    proxy.listener.bind(("127.0.0.1", 0))
    proxy.listener.listen()
    threading.Thread(target=proxy.serve, daemon=True).start()
    try:
        yield proxy
    finally:
        proxy.listener.close()


def at_random(seed: int, *, longest: int) -> Callable[[], int]:
    """Return a source of break places, the same for a seed."""
    chosen = random.Random(seed)
    return lambda: chosen.randint(1, longest)
