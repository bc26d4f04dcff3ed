"""Reverse proxy to the server in a workbench: HTTP and WebSockets, each on a stream of its own.

Both sides are parsed (h11, websockets), and bytes are never passed on unread: behind another proxy
one connection serves several people. Host and Origin go through unchanged, so that the server's own
checks hold; our cookie does not. What the server answers cannot set a cookie for other workbenches.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Collection, Iterable
from contextlib import suppress

import h11
import structlog
from starlette.requests import HTTPConnection
from starlette.types import Message, Receive, Scope, Send
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.typing import Origin, Subprotocol
from websockets.uri import parse_uri

from api.web.process import Process
from api.workbenches.tunnels import Key, NotConnected, Stream, StreamLost, Tunnels

SERVER = {"server": True}
# RFC 9110, section 7.6.1, and what each connection settles for itself.
HOP_BY_HOP = frozenset(
    {b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"te", b"trailer",
     b"transfer-encoding", b"upgrade", b"proxy-connection", b"expect"}
)  # fmt: skip
MAX_HEAD_BYTES = 64 << 10
MAX_MESSAGE_BYTES = 16 << 20
CHECKED_EVERY_S = 10.0
DOMAIN = re.compile(rb";\s*domain\s*=[^;]*", re.IGNORECASE)
AWAY = b'{"status": 503, "detail": "The workbench cannot be reached now. Try again in a moment."}'

log = structlog.get_logger()

RawHeaders = list[tuple[bytes, bytes]]


async def forward(
    process: Process,
    key: Key,
    scope: Scope,
    receive: Receive,
    send: Send,
    *,
    hidden: Collection[bytes],
) -> None:
    """Pass one request on to the workbench's server, and its answer back. `hidden`: cookies that
    stay here."""
    try:
        stream = await process.service(Tunnels).open(key, SERVER)
    except (NotConnected, StreamLost):
        await _say_away(send)
        return
    has_begun = False

    async def begun(message: Message) -> None:
        nonlocal has_begun
        has_begun = True
        await send(message)

    try:
        await _exchange(stream, scope, receive, begun, hidden)
    except (NotConnected, StreamLost, h11.RemoteProtocolError, h11.LocalProtocolError) as error:
        log.info("workbench_answer_lost", job=key.job_id, error=str(error))
        if not has_begun:
            await _say_away(send)
    finally:
        await stream.close()


async def _exchange(
    stream: Stream, scope: Scope, receive: Receive, send: Send, hidden: Collection[bytes]
) -> None:
    server = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)
    target = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
    headers = [*passed_on(scope["headers"], hidden), (b"Connection", b"close")]
    has_length = any(name == b"content-length" for name, _ in headers)
    if not has_length and any(name == b"transfer-encoding" for name, _ in scope["headers"]):
        headers.append((b"Transfer-Encoding", b"chunked"))
    request = h11.Request(method=scope["method"], target=target, headers=headers)
    await stream.write(server.send(request) or b"")
    sending = asyncio.create_task(_send_body(server, stream, receive))
    try:
        await _pass_answer(server, stream, send, sending)
    finally:
        sending.cancel()
        with suppress(asyncio.CancelledError, NotConnected, h11.LocalProtocolError):
            await sending


async def _send_body(server: h11.Connection, stream: Stream, receive: Receive) -> bool:
    """Send the request's body; return False if whoever sent it has gone."""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return False
        if body := message.get("body"):
            await stream.write(server.send(h11.Data(data=body)) or b"")
        if not message.get("more_body"):
            await stream.write(server.send(h11.EndOfMessage()) or b"")
            break
    while (await receive())["type"] != "http.disconnect":
        pass
    return False


async def _pass_answer(
    server: h11.Connection, stream: Stream, send: Send, sending: asyncio.Task[bool]
) -> None:
    while True:
        event = server.next_event()
        if event is h11.NEED_DATA:
            reading = asyncio.create_task(stream.read())
            await asyncio.wait((reading, sending), return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():  # the browser has gone
                reading.cancel()
                sending.result()
                return
            piece = reading.result()
            server.receive_data(piece)
            await stream.give_back(len(piece))
        elif isinstance(event, h11.Response):
            await send(
                {
                    "type": "http.response.start",
                    "status": event.status_code,
                    "headers": handed_back(event.headers.raw_items()),
                }
            )
        elif isinstance(event, h11.Data):
            await send({"type": "http.response.body", "body": bytes(event.data), "more_body": True})
        elif isinstance(event, h11.EndOfMessage):
            await send({"type": "http.response.body"})
            return
        elif isinstance(event, h11.ConnectionClosed) or event is h11.PAUSED:
            raise StreamLost("the server has closed the connection")


async def forward_socket(
    process: Process,
    key: Key,
    connection: HTTPConnection,
    receive: Receive,
    send: Send,
    *,
    hidden: Collection[bytes],
    still_allowed: Callable[[], Awaitable[bool]],
) -> None:
    """Connect a browser's WebSocket with one of the workbench's server, until one of them ends it
    or the person may no longer."""
    try:
        stream = await process.service(Tunnels).open(key, SERVER)
    except (NotConnected, StreamLost):
        await send({"type": "websocket.close", "code": 1013})
        return
    server = _client_of(connection, hidden)
    try:
        first = await _shake_hands(server, stream)
        if first is None:
            await send({"type": "websocket.close", "code": 1008})
            return
        await receive()  # websocket.connect
        await send({"type": "websocket.accept", "subprotocol": server.subprotocol})
        tasks = [
            asyncio.create_task(_from_server(server, stream, send, first)),
            asyncio.create_task(_from_browser(server, stream, receive)),
            asyncio.create_task(_until_refused(still_allowed)),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            code = done.pop().result()
        finally:
            for task in tasks:
                task.cancel()
        with suppress(RuntimeError):
            await send({"type": "websocket.close", "code": code})
    except (NotConnected, StreamLost):
        with suppress(RuntimeError):
            await send({"type": "websocket.close", "code": 1013})
    finally:
        await stream.close()


def _client_of(connection: HTTPConnection, hidden: Collection[bytes]) -> ClientProtocol:
    scope = connection.scope
    query = f"?{scope['query_string'].decode('latin-1')}" if scope["query_string"] else ""
    path = scope["raw_path"].decode("latin-1")
    client = ClientProtocol(
        parse_uri(f"ws://{connection.headers['host']}{path}{query}"),
        origin=Origin(connection.headers["origin"]),
        subprotocols=[Subprotocol(name) for name in scope.get("subprotocols", [])] or None,
        max_size=MAX_MESSAGE_BYTES,
    )
    request = client.connect()
    for name, value in passed_on(scope["headers"], hidden):
        text = name.decode("latin-1")
        if not text.startswith("sec-websocket-") and text not in ("host", "origin"):
            request.headers[text] = value.decode("latin-1")
    client.send_request(request)
    return client


async def _shake_hands(server: ClientProtocol, stream: Stream) -> list[Frame] | None:
    """Open the server's side; return the frames that came with its answer, None if it refuses."""
    await _flush(server, stream)
    while piece := await stream.read():
        await stream.give_back(len(piece))
        server.receive_data(piece)
        events = server.events_received()
        if server.handshake_exc is not None:
            return None
        if any(isinstance(event, Response) for event in events):
            return [event for event in events if isinstance(event, Frame)]
    return None


async def _from_server(
    server: ClientProtocol, stream: Stream, send: Send, first: Iterable[Frame]
) -> int:
    message, is_text = b"", False
    frames = first
    while True:
        for frame in frames:
            if frame.opcode is Opcode.CLOSE:
                await _flush(server, stream)
                return server.close_rcvd.code if server.close_rcvd is not None else 1000
            if frame.opcode not in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
                continue
            if frame.opcode is not Opcode.CONT:
                message, is_text = b"", frame.opcode is Opcode.TEXT
            message += frame.data
            if frame.fin:
                content = {"text": message.decode()} if is_text else {"bytes": message}
                await send({"type": "websocket.send", **content})
        await _flush(server, stream)  # pongs
        piece = await stream.read()
        if not piece:
            return 1012
        server.receive_data(piece)
        await stream.give_back(len(piece))
        frames = [event for event in server.events_received() if isinstance(event, Frame)]


async def _from_browser(server: ClientProtocol, stream: Stream, receive: Receive) -> int:
    while True:
        message = await receive()
        if message["type"] == "websocket.disconnect":
            server.send_close(1000)
            await _flush(server, stream)
            return 1000
        if message.get("text") is not None:
            server.send_text(message["text"].encode())
        else:
            server.send_binary(message.get("bytes") or b"")
        await _flush(server, stream)


async def _until_refused(still_allowed: Callable[[], Awaitable[bool]]) -> int:
    while True:
        await asyncio.sleep(CHECKED_EVERY_S)
        if not await still_allowed():
            return 1008


async def _flush(server: ClientProtocol, stream: Stream) -> None:
    for piece in server.data_to_send():
        if piece:
            await stream.write(piece)


def passed_on(headers: Iterable[tuple[bytes, bytes]], hidden: Collection[bytes]) -> RawHeaders:
    """Return a request's headers for the workbench: without those of the connection, and without
    our cookie and tokens."""
    kept = []
    for name, value in headers:
        if name in HOP_BY_HOP or name == b"authorization":
            continue
        if name == b"cookie":
            value = _without(value, hidden)
            if not value:
                continue
        kept.append((name, value))
    return kept


def handed_back(headers: Iterable[tuple[bytes, bytes]]) -> RawHeaders:
    """Return an answer's headers for the browser: a cookie is of its own host alone."""
    kept = []
    for name, value in headers:
        lower = name.lower()
        if lower in HOP_BY_HOP:
            continue
        kept.append((lower, DOMAIN.sub(b"", value) if lower == b"set-cookie" else value))
    return kept


def _without(cookies: bytes, hidden: Collection[bytes]) -> bytes:
    parts = [part.strip() for part in cookies.split(b";")]
    kept = [part for part in parts if part.partition(b"=")[0].strip() not in hidden]
    return b"; ".join(part for part in kept if part)


async def _say_away(send: Send) -> None:
    headers = [(b"content-type", b"application/json"), (b"retry-after", b"1")]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": AWAY})
