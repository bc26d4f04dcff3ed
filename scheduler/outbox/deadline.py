"""Ends an exchange over a socket after so many seconds in all.

A socket's own timeout begins anew with every byte: who sends one now and then is never late by it.
"""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

AGAIN_EVERY_S = 0.2  # for a socket that is there only after the time is over


@contextmanager
def shut_down_after(
    seconds: float, connection: Callable[[], socket.socket | None]
) -> Iterator[threading.Event]:
    """Shut the socket that `connection` gives down once the time is over.

    Whoever waits for the socket then gets an error, or reads its end. The event is set when the
    time is over.
    """
    done, over = threading.Event(), threading.Event()

    def watch() -> None:
        if done.wait(seconds):
            return
        over.set()
        while True:
            if (open_socket := connection()) is not None:
                with suppress(OSError):  # closed meanwhile
                    # Not SSLSocket's own: that takes the TLS away from under a thread that reads.
                    socket.socket.shutdown(open_socket, socket.SHUT_RDWR)
            if done.wait(AGAIN_EVERY_S):
                return

    threading.Thread(target=watch, name="deadline", daemon=True).start()
    try:
        yield over
    finally:
        done.set()
