"""Thread that looks for something to send, again and again."""

import threading
from collections.abc import Callable

import structlog
from sqlalchemy.exc import SQLAlchemyError

EVERY_S = 5.0
LAST_LOOK_S = 30.0  # for what is in hand when the process ends

log = structlog.get_logger()


class Lookout:
    """Thread that calls `look` every EVERY_S seconds; an error ends one look, not the next."""

    def __init__(self, name: str, look: Callable[[], object]) -> None:
        """`name` is that of the thread, and says in the log who waits."""
        self.closed = threading.Event()
        """Set when what is in hand shall be finished and nothing begun."""
        self._name = name
        self._look = look
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Look in a thread that ends with the process."""
        self._thread.start()

    def close(self) -> None:
        """End after the present look; wait LAST_LOOK_S at most."""
        self.closed.set()
        if self._thread.is_alive():
            self._thread.join(timeout=LAST_LOOK_S)

    def _run(self) -> None:
        while not self.closed.is_set():
            try:
                self._look()
            except SQLAlchemyError as error:
                log.warning("sending_waits", of=self._name, error=str(error).splitlines()[0])
            except Exception:
                log.exception("sending_waits", of=self._name)
            self.closed.wait(EVERY_S)
