"""Total time limit, in seconds, for an exchange over a socket.

A socket's own timeout starts again with every byte, so a peer that sends one byte now and then
never exceeds it.
"""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

AGAIN_EVERY_S = 0.2  # for a socket that is opened only after the time is over


@contextmanager
def shut_down_after(
    seconds: float, connection: Callable[[], socket.socket | None]
) -> Iterator[threading.Event]:
    """Shut down the socket that `connection` returns after `seconds`.

    A thread that waits for the socket then gets an error, or reads its end. Yields an event that is
    set when the time is over.
    """
    done, over = threading.Event(), threading.Event()

    def watch() -> None:
        if done.wait(seconds):
            return
        over.set()
        while True:
            if (open_socket := connection()) is not None:
                with suppress(OSError):  # closed meanwhile
                    # Not SSLSocket's own: it removes the TLS layer while another thread reads.
                    socket.socket.shutdown(open_socket, socket.SHUT_RDWR)
            if done.wait(AGAIN_EVERY_S):
                return

    threading.Thread(target=watch, name="deadline", daemon=True).start()
    try:
        yield over
    finally:
        done.set()
