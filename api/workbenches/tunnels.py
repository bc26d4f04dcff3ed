"""Tunnels to workbenches: connections that nodes hold to this process, and streams through them.

A node connects to one API process, its owner's browser perhaps to another. They meet through Redis:
the process that holds a tunnel subscribes to the tunnel's channel, and that is all that says where
it is. A frame for it is published there, with the name of the sender's inbox in front; the answer
is published to that inbox. A stream of the process that holds the tunnel itself needs no Redis.
Credit (`core.wire.frames`) bounds what any stream keeps in memory.

What comes from a node is written by the program that runs there: a frame of a stream that nobody
here has opened through this tunnel is dropped, and one that breaks the rules ends the stream.
"""

import asyncio
import json
import secrets
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import NamedTuple

import redis.asyncio
import structlog
from redis.asyncio.client import PubSub
from redis.exceptions import RedisError

from core.base.errors import ServiceError
from core.wire.frames import (
    MAX_CONTENT,
    WINDOW,
    BadFrame,
    Frame,
    FrameKind,
    IdleReport,
    credit_in,
    idle_in,
    pack,
    pack_credit,
    pack_resize,
    unpack,
)

CHANNEL = "workbench.tunnel."
INBOX = "workbench.inbox."
NAME_BYTES = 16
MAX_STREAMS = 256  # of one tunnel
OPEN_WITHIN_S = 10.0
LOOK_EVERY_S = 2.0  # whether a process that holds a tunnel for us is still there
AWAY_S = 1.0
LOST = {"why": "the connection to the node is lost"}
HEEDED_EVERY_S = 1.0  # reports of one workbench: each may become a row

log = structlog.get_logger()


class Key(NamedTuple):
    """Name of an attempt's tunnel."""

    job_id: str
    epoch: int

    @property
    def channel(self) -> str:
        return f"{CHANNEL}{self.job_id}.{self.epoch}"


class NotConnected(ServiceError):
    """The node of a workbench has no connection to the API now."""

    status = 503
    code = "not_connected"


class StreamLost(Exception):
    """End of a stream that nobody asked for; the message says why."""


class Stream:
    """A stream to something in a workbench, opened by this process."""

    def __init__(self, tunnels: "Tunnels", key: Key, number: int) -> None:
        self.key, self.number = key, number
        self._tunnels = tunnels
        self._arrived: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._unread = 0
        """Bytes that have arrived and that no credit was given for again."""
        self._passed_on = 0
        """Those of them that were passed on."""
        self._credit = WINDOW
        self._has_credit = asyncio.Event()
        self._has_credit.set()
        self.facts: asyncio.Future[Mapping[str, object]] = asyncio.Future()
        self.end: Mapping[str, object] | None = None
        """Reason of its end, once the other side has closed it."""

    async def read(self) -> bytes:
        """Return the bytes that have arrived next; none at the end of the stream."""
        piece = await self._arrived.get()
        if piece is None:
            self._arrived.put_nowait(None)  # for whoever asks again
            return b""
        return piece

    async def give_back(self, num_bytes: int) -> None:
        """Say that so many bytes were passed on: the other side may send as many more."""
        self._passed_on += num_bytes
        if self._passed_on >= WINDOW // 2:
            again, self._passed_on = self._passed_on, 0
            self._unread -= again
            await self._send(pack_credit(self.number, again))

    async def write(self, content: bytes) -> None:
        """Send bytes, as far as the other side has credit for them, and wait for more credit."""
        for start in range(0, len(content), MAX_CONTENT):
            piece = content[start : start + MAX_CONTENT]
            while self._credit < len(piece):
                if self.end is not None:
                    return
                self._has_credit.clear()
                await self._has_credit.wait()
            self._credit -= len(piece)
            await self._send(pack(FrameKind.DATA, self.number, piece))

    async def resize(self, rows: int, columns: int) -> None:
        """Say how large the window is in which a terminal is shown."""
        await self._send(pack_resize(self.number, rows, columns))

    async def close(self) -> None:
        """Close it, unless the other side has."""
        self._tunnels.forget(self)
        if self.end is None:
            self.finish({"why": "closed"})
            with suppress(NotConnected):
                await self._send(pack(FrameKind.CLOSE, self.number, b"{}"))

    def take(self, frame: Frame) -> None:
        """Take a frame that has arrived for it. Raises BadFrame."""
        match frame.kind:
            case FrameKind.OPENED:
                if not self.facts.done():
                    self.facts.set_result(_facts_in(frame.content))
            case FrameKind.DATA:
                self._unread += len(frame.content)
                if self._unread > WINDOW:
                    raise BadFrame("it sent more than it was allowed to")
                self._arrived.put_nowait(frame.content)
            case FrameKind.CREDIT:
                self._credit = min(WINDOW, self._credit + credit_in(frame.content))
                self._has_credit.set()
            case FrameKind.CLOSE:
                self.finish(_facts_in(frame.content))
            case _:
                raise BadFrame(f"a node sends no {frame.kind.name}")

    def finish(self, facts: Mapping[str, object]) -> None:
        """End it for whoever reads or writes."""
        if self.end is not None:
            return
        self.end = facts
        self._arrived.put_nowait(None)
        self._has_credit.set()
        if not self.facts.done():
            self.facts.set_result(facts)

    async def _send(self, frame: bytes) -> None:
        await self._tunnels.send(self.key, self.number, frame)


class HeldTunnel:
    """A tunnel whose node is connected to this process."""

    def __init__(self, key: Key, say: Callable[[bytes], Awaitable[None]]) -> None:
        self.key, self.say = key, say
        self.number = secrets.randbits(63)
        """Number of this connection, which the porter repeats before anything else counts."""
        self.is_open = False
        self.inboxes: dict[int, str] = {}
        """Stream -> inbox of the process that has opened it."""
        self.taken = asyncio.Event()
        """Set once the node has connected to another process."""
        self.report: IdleReport | None = None
        """Newest report on the use of the workbench."""
        self.has_report = asyncio.Event()


class Tunnels:
    """The tunnels that this process holds, and the streams that it has opened."""

    def __init__(self, redis_url: str) -> None:
        self._redis = redis.asyncio.Redis.from_url(
            redis_url, socket_timeout=None, socket_connect_timeout=2
        )
        self._inbox = secrets.token_hex(NAME_BYTES // 2)
        self._held: dict[Key, HeldTunnel] = {}
        self._streams: dict[int, Stream] = {}
        self._channel: PubSub | None = None
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to listen. Call it in the running loop."""
        self._tasks = [
            asyncio.create_task(self._listen()),
            asyncio.create_task(self._look_after_streams()),
        ]

    async def close(self) -> None:
        """Stop listening."""
        for task in self._tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        await self._redis.aclose()

    # -------------------------------------------------------------------------------- for people

    async def open(self, key: Key, wanted: Mapping[str, object]) -> Stream:
        """Open a stream to something in a workbench, and wait until it is open.

        Raises NotConnected if its node is not connected now, and StreamLost if the workbench
        refuses.
        """
        stream = Stream(self, key, secrets.randbits(63))
        self._streams[stream.number] = stream
        try:
            opening = pack(FrameKind.OPEN, stream.number, json.dumps(wanted).encode())
            await self.send(key, stream.number, opening)
            async with asyncio.timeout(OPEN_WITHIN_S):
                await asyncio.shield(stream.facts)
        except TimeoutError as error:
            await stream.close()
            raise NotConnected("The workbench does not answer. Try again.") from error
        except BaseException:
            self.forget(stream)
            raise
        if stream.end is not None:
            self.forget(stream)
            raise StreamLost(str(stream.end.get("why", "it was closed")))
        return stream

    def forget(self, stream: Stream) -> None:
        """Let go of a stream that is over."""
        self._streams.pop(stream.number, None)

    async def send(self, key: Key, number: int, frame: bytes) -> None:
        """Send a frame into a tunnel, wherever it is held. Raises NotConnected."""
        held = self._held.get(key)
        if held is not None:
            await held.say(frame)
            return
        try:
            heard_by = await self._redis.publish(key.channel, self._inbox.encode() + frame)
        except (RedisError, OSError) as error:
            raise NotConnected(
                "The workbench cannot be reached now: Redis is away. Try again."
            ) from error
        if not heard_by:
            raise NotConnected("The workbench's node is not connected now. Try again.")

    async def stir(self, key: Key) -> None:
        """Tell a workbench that its owner is in front of its program in the browser. Raises
        NotConnected."""
        await self.send(key, 0, pack(FrameKind.STIRRED, 0))

    # --------------------------------------------------------------------------------- for nodes

    async def hold(
        self,
        key: Key,
        hear: Callable[[], Awaitable[bytes | None]],
        say: Callable[[bytes], Awaitable[None]],
        heed: Callable[[IdleReport], Awaitable[bool]],
    ) -> None:
        """Hold a node's connection until it ends, or until the node has made another.

        `hear` returns its next message, or None at its end; `say` raises NotConnected after that.
        `heed` takes a report on the use of the workbench, and is asked again if it returns False.
        """
        held = HeldTunnel(key, say)
        await say(pack(FrameKind.HELLO, held.number))
        hearing = asyncio.create_task(self._hear(held, hear))
        taken = asyncio.create_task(held.taken.wait())
        heeding = asyncio.create_task(self._heed(held, heed))
        try:
            await asyncio.wait((hearing, taken), return_when=asyncio.FIRST_COMPLETED)
        finally:
            taken.cancel()
            hearing.cancel()
            heeding.cancel()
            await self._let_go(held)

    async def _hear(self, held: HeldTunnel, hear: Callable[[], Awaitable[bytes | None]]) -> None:
        while (message := await hear()) is not None:
            try:
                frame = unpack(message)
                if not held.is_open:
                    if frame.kind is FrameKind.HELLO and frame.stream == held.number:
                        await self._take_up(held)
                    continue
                await self._pass_on(held, frame, message)
            except BadFrame as error:
                log.warning("bad_frame", job=held.key.job_id, error=str(error))
                return

    @staticmethod
    async def _heed(held: HeldTunnel, heed: Callable[[IdleReport], Awaitable[bool]]) -> None:
        while True:
            await held.has_report.wait()
            held.has_report.clear()
            report = held.report
            assert report is not None
            if not await heed(report):
                held.has_report.set()
            await asyncio.sleep(HEEDED_EVERY_S)

    async def _take_up(self, held: HeldTunnel) -> None:
        held.is_open = True
        before = self._held.get(held.key)
        self._held[held.key] = held
        if before is not None:
            before.taken.set()
            self._end_streams(held.key)  # the porter forgets them when it says hello
        with suppress(RedisError, OSError):  # subscribed again once Redis is back
            if self._channel is not None:
                await self._channel.subscribe(held.key.channel)

    async def _let_go(self, held: HeldTunnel) -> None:
        if self._held.get(held.key) is held:
            del self._held[held.key]
            with suppress(RedisError, OSError):
                if self._channel is not None:
                    await self._channel.unsubscribe(held.key.channel)
            self._end_streams(held.key)
        for number, inbox in held.inboxes.items():
            with suppress(RedisError, OSError):
                over = pack(FrameKind.CLOSE, number, json.dumps(LOST).encode())
                await self._redis.publish(INBOX + inbox, over)

    def _end_streams(self, key: Key) -> None:
        """End the streams that this process has opened through a connection that is over."""
        for stream in [one for one in self._streams.values() if one.key == key]:
            stream.finish(LOST)

    async def _pass_on(self, held: HeldTunnel, frame: Frame, message: bytes) -> None:
        if frame.kind is FrameKind.IDLE:
            held.report = idle_in(frame.content)
            held.has_report.set()
            return
        inbox = held.inboxes.get(frame.stream)
        if inbox is None:
            self._deliver(frame, key=held.key)
            return
        if frame.kind is FrameKind.CLOSE:
            del held.inboxes[frame.stream]
        with suppress(RedisError, OSError):  # the other process loses its stream by itself
            await self._redis.publish(INBOX + inbox, message)

    def _deliver(self, frame: Frame, *, key: Key | None = None) -> None:
        """Give a frame to the stream of this process that it is for. `key`: only if it goes through
        that tunnel."""
        stream = self._streams.get(frame.stream)
        if stream is None or (key is not None and stream.key != key):
            return
        try:
            stream.take(frame)
        except BadFrame as error:
            stream.finish({"why": f"the workbench broke the rules: {error}"})

    # ----------------------------------------------------------------------- between the processes

    async def _listen(self) -> None:
        is_away = False
        while True:
            try:
                async with self._redis.pubsub() as channel:
                    await channel.subscribe(INBOX + self._inbox)
                    for key in self._held:
                        await channel.subscribe(key.channel)
                    self._channel, is_away = channel, False
                    async for heard in channel.listen():
                        name = heard["channel"].decode()
                        if heard["type"] == "message":
                            await self._hear_of(name, heard["data"])
                        elif heard["type"] == "subscribe" and name.startswith(CHANNEL):
                            # Only now: whoever held the tunnel before lets go of it, and a frame
                            # that is sent then must find us.
                            await self._redis.publish(name, self._inbox.encode())
            except (RedisError, OSError) as error:
                if not is_away:
                    log.warning("workbenches_without_redis", error=str(error))
                is_away = True
            finally:
                self._channel = None
            await asyncio.sleep(AWAY_S)

    async def _hear_of(self, channel: str, message: bytes) -> None:
        """Take a message of another process."""
        if channel == INBOX + self._inbox:
            with suppress(BadFrame):
                self._deliver(unpack(message))
            return
        job_id, _, epoch = channel.removeprefix(CHANNEL).rpartition(".")
        held = self._held.get(Key(job_id, int(epoch)))
        inbox, content = message[:NAME_BYTES].decode(), message[NAME_BYTES:]
        if held is None or (not content and inbox == self._inbox):
            return
        if not content:
            held.taken.set()
            return
        frame = unpack(content)
        if frame.kind is FrameKind.OPEN and len(held.inboxes) < MAX_STREAMS:
            held.inboxes[frame.stream] = inbox
        if held.inboxes.get(frame.stream) != inbox and frame.kind is not FrameKind.STIRRED:
            return
        if frame.kind is FrameKind.CLOSE:
            del held.inboxes[frame.stream]
        with suppress(NotConnected):
            await held.say(content)

    async def _look_after_streams(self) -> None:
        """End the streams whose tunnel no process holds any more: one that was killed says
        nothing."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            keys = {one.key for one in self._streams.values()} - self._held.keys()
            if not keys:
                continue
            try:
                counts = await self._redis.pubsub_numsub(*(key.channel for key in keys))
            except (RedisError, OSError):
                continue
            there = {_text(name) for name, count in counts if count}
            for stream in list(self._streams.values()):
                if stream.key in keys and stream.key.channel not in there:
                    stream.finish(LOST)


def _text(name: bytes | str) -> str:
    return name.decode() if isinstance(name, bytes) else name


def _facts_in(content: bytes) -> Mapping[str, object]:
    try:
        found = json.loads(content)
    except ValueError as error:
        raise BadFrame("its facts are not JSON") from error
    if not isinstance(found, dict):
        raise BadFrame("its facts are not an object")
    return found
