"""A job's live stream (server-sent events), reconnected without a gap while patience lasts.

The server sends `event` (something happened), `job` (the job as it is now), `metrics` and `log`
(new `lines`), and at last `end` (the job; nothing more will come). Two more are made here:
`disconnected` when the line broke, and `reconnected` when it is there again. That the server ends
an old connection in good order is not worth an event.
"""

import json
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from trainyard.connection import Connection
from trainyard.errors import (
    ConnectionFailed,
    ServerFailed,
    TooMany,
    TrainyardError,
    UnexpectedAnswer,
)

DISCONNECTED = "disconnected"
RECONNECTED = "reconnected"
END = "end"
SILENCE_S = 60.0  # the server sends a comment every 15 s; four missed ones mean a dead line
STEADY_S = 10.0  # a line that held this long was a good one, even if nothing was said
FIRST_WAIT_S, LONGEST_WAIT_S = 0.25, 4.0


@dataclass(frozen=True)
class StreamEvent:
    """One event. `id` is where a new connection would go on."""

    kind: str
    data: Any
    id: str = ""


def follow_stream(
    connection: Connection,
    path: str,
    *,
    last_event_id: str = "",
    patience_s: float = 300.0,
    monotonic: Callable[[], float] = time.monotonic,
) -> Iterator[StreamEvent]:
    """Events until `end`, across broken connections and restarts of the server.

    Raises ConnectionFailed once the line has been lost for `patience_s`; ApiError if the job is
    not there or the token stopped working.
    """
    position = last_event_id
    is_lost = False
    lost_since: float | None = None
    attempt = 0
    while True:
        connected_at: float | None = None
        try:
            with connection.event_stream(
                path, last_event_id=position, silence_s=SILENCE_S
            ) as source:
                connected_at = monotonic()
                if is_lost:
                    is_lost = False
                    yield StreamEvent(RECONNECTED, {}, position)
                for message in source:
                    lost_since, attempt = None, 0
                    position = message.id or position
                    if not message.data:
                        continue
                    yield StreamEvent(message.event, _parsed(message.data), position)
                    if message.event == END:
                        return
            failure: TrainyardError = ConnectionFailed("The server closed the stream.")
            if monotonic() - connected_at > STEADY_S:
                continue
        except (ConnectionFailed, ServerFailed, TooMany) as error:
            failure = error
        now = monotonic()
        if connected_at is not None and now - connected_at > STEADY_S:
            lost_since, attempt = None, 0
        lost_since = now if lost_since is None else lost_since
        if now - lost_since > patience_s:
            raise failure
        if not is_lost:
            is_lost = True
            yield StreamEvent(DISCONNECTED, {"reason": str(failure)}, position)
        wait_s = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2.0 ** min(attempt, 10))
        attempt += 1
        connection.sleep(wait_s * (1 - random.random() / 2))


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise UnexpectedAnswer(
            f"the stream sent something else than JSON: {text[:80]!r}"
        ) from error
