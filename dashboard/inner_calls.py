"""One request to the public API in this very process, without a network or a client in between.

It goes through all that a request from outside goes through: middleware, lanes, authorization.
"""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlencode

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Scope

Query = Mapping[str, str | int | list[str] | None]


@dataclass(frozen=True)
class Answer:
    """A whole answer of the API."""

    status: int
    headers: Headers
    body: bytes

    @property
    def is_error(self) -> bool:
        """True for 4xx and 5xx."""
        return self.status >= 400

    def json(self) -> Any:
        """Return the document in the body."""
        return json.loads(self.body)


async def ask(
    app: ASGIApp,
    method: str,
    path: str,
    *,
    outer: Scope,
    state: dict[str, Any],
    headers: Mapping[str, str],
    query: Query,
    body: bytes,
) -> Answer:
    """Return the answer of `app`, asked by the sender of the request `outer`; 500 if it raises.

    `path` is quoted, as in an address. Parameters that are None are left out. Calls with the same
    `state` are of one moment: what the API keeps there, such as who asks, it looks up once.
    """
    given = {name: value for name, value in query.items() if value is not None}
    scope: Scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": outer["scheme"],
        "server": outer.get("server"),
        "client": outer.get("client") or ("127.0.0.1", 0),
        "root_path": "",
        "state": state,
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": urlencode(given, doseq=True).encode(),
        "headers": [
            (name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()
        ],
    }
    to_read: list[Message] = [{"type": "http.request", "body": body}]
    status, sent, pieces = 500, list[tuple[bytes, bytes]](), list[bytes]()

    async def receive() -> Message:
        if to_read:
            return to_read.pop()
        await asyncio.Event().wait()  # nobody hangs up
        raise AssertionError

    async def send(message: Message) -> None:
        nonlocal status, sent
        if message["type"] == "http.response.start":
            status, sent = message["status"], message["headers"]
        else:
            pieces.append(message.get("body", b""))

    try:
        await app(scope, receive, send)
    except Exception:  # the API has logged it
        status = 500
    return Answer(status, Headers(raw=sent), b"".join(pieces))
