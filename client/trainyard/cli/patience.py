"""Polling of the server, which may be away for a while."""

import time
from collections.abc import Callable
from typing import TypeVar

from trainyard.client import Trainyard
from trainyard.errors import ConnectionFailed, ServerFailed

Seen = TypeVar("Seen")
PATIENCE_S = 300.0  # for a server that is away: jobs continue without it


def look_again(client: Trainyard, look: Callable[[], Seen], *, after_s: float) -> Seen:
    """Return the result of `look` after a pause.

    Raises ConnectionFailed once the server was away for PATIENCE_S.
    """
    deadline = time.monotonic() + PATIENCE_S
    while True:
        client.connection.sleep(after_s)
        try:
            return look()
        except (ConnectionFailed, ServerFailed):
            if time.monotonic() > deadline:
                raise
