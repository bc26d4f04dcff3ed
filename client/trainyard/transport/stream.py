"""A job's live stream (server-sent events), reconnected without a gap while patience lasts.

The server sends `event` (an event of the job), `job` (the job's present state), `metrics` and `log`
(new `lines`), and at last `end` (the job; nothing follows). Two more events are made here:
`disconnected` when the connection broke, and `reconnected` when it works again. An old connection
that the server closes in good order makes no event.
"""

import json
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from trainyard.errors import (
    ConnectionFailed,
    ServerFailed,
    TooMany,
    TrainyardError,
    UnexpectedAnswer,
)
from trainyard.transport.connection import Connection

DISCONNECTED = "disconnected"
RECONNECTED = "reconnected"
END = "end"
SILENCE_S = 60.0  # the server sends a comment every 15 s; four missed ones mean a dead connection
STEADY_S = 10.0  # a connection that lasted this long was good, even without messages
FIRST_WAIT_S, LONGEST_WAIT_S = 0.25, 4.0


@dataclass(frozen=True)
class StreamEvent:
    """One event. `id` is the position at which a new connection would continue."""

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
    """Yield events until `end`, across broken connections and restarts of the server.

    Raises ConnectionFailed once the connection has been lost for `patience_s`; ApiError if the job
    does not exist or the token stopped working.
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
        raise UnexpectedAnswer(f"the stream sent text that is not JSON: {text[:80]!r}") from error
