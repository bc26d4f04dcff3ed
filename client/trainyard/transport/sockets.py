"""WebSockets of one server, for programs that one sits in front of."""

from contextlib import ExitStack

import httpx2
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from trainyard.errors import ConnectionFailed
from trainyard.transport.config import Access
from trainyard.transport.connection import problem

OPEN_WITHIN_S = 15.0
MAX_MESSAGE = 1 << 20


def open_socket(access: Access, path: str) -> ClientConnection:
    """Open a WebSocket with the user's token.

    Raises ConnectionFailed if the server does not answer, and ApiError if it refuses.
    """
    address = httpx2.URL(access.url + path)
    is_secure = address.scheme == "https"
    try:
        opening = connect(
            str(address.copy_with(scheme="wss" if is_secure else "ws")),
            additional_headers={"Authorization": f"Bearer {access.token or ''}"},
            ssl=httpx2.create_ssl_context() if is_secure else None,
            compression=None,
            max_size=MAX_MESSAGE,
            open_timeout=OPEN_WITHIN_S,
            close_timeout=1,
        )
        return ExitStack().enter_context(opening)  # whoever has it closes it
    except InvalidStatus as error:
        found = error.response
        raise problem(
            httpx2.Response(
                found.status_code,
                headers=list(found.headers.raw_items()),
                content=bytes(found.body or b""),
                request=httpx2.Request("GET", address),
            )
        ) from error
    except (OSError, InvalidHandshake, ConnectionClosed, EOFError) as error:
        raise ConnectionFailed(f"Can't reach {access.url}: {error}") from error
