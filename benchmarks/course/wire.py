"""Minimal HTTP/1.1 client: plays 191 browsers in one process, to leave the cores to the platform.

Bytes are parsed by httptools, in C. Redirects, compression and TLS are not supported.
"""

import asyncio
import json
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import httptools

EXCHANGE_S = 60.0  # then a browser's user has long gone
CONNECTIONS = 6  # of a browser to one host


class Lost(Exception):
    """The connection ended before the answer was whole, or none could be made."""


@dataclass
class Answer:
    """Answer of the server."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    """Headers by name in lower case."""
    body: bytes = b""

    def json(self) -> Any:
        """Return the body, parsed as JSON."""
        return json.loads(self.body)


class Connection(asyncio.Protocol):
    """A connection with one exchange at a time."""

    def __init__(self) -> None:
        self.is_open = False
        self.is_fresh = True
        """True if no request was sent over it before."""
        self.is_answering = False
        """True if a part of the answer has come."""
        self._transport: asyncio.Transport | None = None
        self._done: asyncio.Future[Answer] | None = None
        self._heard: Callable[[bytes], None] | None = None
        self._begin()

    async def exchange(
        self, request: bytes, *, heard: Callable[[bytes], None] | None = None
    ) -> Answer:
        """Send a request and wait for the whole answer; raises Lost.

        `heard`, if given, gets the pieces of a stream's body, and there is no time limit; without
        it TimeoutError is raised after EXCHANGE_S.
        """
        assert self._transport is not None
        self._begin()
        self._heard = heard
        self._done = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        try:
            if heard is not None:
                return await self._done
            async with asyncio.timeout(EXCHANGE_S):
                return await self._done
        except BaseException:
            self.close()
            raise
        finally:
            self._done = None
            self.is_fresh = False

    def close(self) -> None:
        """Abort the connection."""
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport. Called by asyncio."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is not one by name
        self.is_open = True

    def connection_lost(self, error: Exception | None) -> None:
        """Fail the waiting exchange with Lost. Called by asyncio."""
        self.is_open = False
        if self._done is not None and not self._done.done():
            self._done.set_exception(Lost(str(error or "closed")))

    def data_received(self, data: bytes) -> None:
        """Parse a part of the answer. Called by asyncio."""
        self.is_answering = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.connection_lost(error)
            self.close()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header. Called by httptools, like the methods below."""
        self._answer.headers[name.decode().lower()] = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        """Take a piece of the body."""
        if self._heard is not None and self._parser.get_status_code() == 200:
            self._heard(body)
        else:
            self._pieces.append(body)

    def on_message_complete(self) -> None:
        """Return the complete answer to the waiting exchange."""
        self._answer.status = self._parser.get_status_code()
        self._answer.body = b"".join(self._pieces)
        if not self._parser.should_keep_alive():
            self.is_open = False
        if self._done is not None and not self._done.done():
            self._done.set_result(self._answer)

    def _begin(self) -> None:
        self.is_answering = False
        self._parser = httptools.HttpResponseParser(self)
        self._answer, self._pieces = Answer(), list[bytes]()


class Line:
    """Connections of one browser, or of one node; requests that find none free wait in line."""

    def __init__(self, host: str, port: int, headers: Mapping[str, str]) -> None:
        self._host, self._port = host, port
        self._headers = {"Host": f"{host}:{port}", **headers}
        self._idle: list[Connection] = []
        self._free = CONNECTIONS
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def backlog(self) -> int:
        """Requests under way or waiting for a connection, streams included."""
        return CONNECTIONS - self._free + len(self._waiting)

    async def ask(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        heard: Callable[[bytes], None] | None = None,
    ) -> Answer:
        """Send a request over a free connection; return the answer. Raises Lost or TimeoutError.

        A request is sent again if the server had closed a used connection before it answered.
        """
        request = self._written(method, path, body, headers or {})
        await self._take()
        try:
            while True:
                connection = await self._connection()
                was_fresh = connection.is_fresh
                try:
                    answer = await connection.exchange(request, heard=heard)
                except Lost:
                    if was_fresh or connection.is_answering:
                        raise
                    continue  # the server had closed it meanwhile: browsers ask again by themselves
                if connection.is_open:
                    self._idle.append(connection)
                return answer
        finally:
            self._give()

    def close(self) -> None:
        """Drop every idle connection."""
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    async def _take(self) -> None:
        if self._free:
            self._free -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._give()
            raise

    def _give(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1

    async def _connection(self) -> Connection:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                return connection
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(EXCHANGE_S):
                _, made = await loop.create_connection(Connection, self._host, self._port)
        except OSError as error:
            raise Lost(str(error)) from error
        return made

    def _written(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> bytes:
        lines = [f"{method} {path} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in {**self._headers, **headers}.items()]
        if body is not None or method in ("POST", "PUT", "PATCH"):
            lines.append(f"Content-Length: {len(body or b'')}")
        return "\r\n".join([*lines, "", ""]).encode() + (body or b"")
