"""The way from a node to the platform: a TCP proxy that can lose what it carries."""

import asyncio
import contextlib
import threading
from collections.abc import Sequence
from enum import StrEnum

SLOW_BYTES_S, SLOW_DELAY_S = 12_500, 0.3  # 100 kbit/s

Address = str | tuple[str, int]
"""A unix socket's path, or host and port."""


class Weather(StrEnum):
    """What becomes of bytes on the way."""

    CLEAR = "clear"
    FROZEN = "frozen"
    """Nothing arrives, either way, until it thaws: then all of it does, late."""
    DEAF = "deaf"
    """Requests arrive and are carried out; every answer is lost with its connection."""
    CUT = "cut"
    """Connections end, and none is made."""
    SLOW = "slow"
    """A modem's line: SLOW_BYTES_S either way, and SLOW_DELAY_S for each piece."""


class Links:
    """Every proxy of the campaign, in one thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._links: list[Link] = []
        self._thread = threading.Thread(target=self._loop.run_forever, name="links", daemon=True)
        self._thread.start()

    def open(self, host: str, targets: Sequence[Address]) -> "Link":
        """A proxy on a free port of `host` to the first of `targets` that answers."""
        link = Link(self._loop, targets)
        asyncio.run_coroutine_threadsafe(link.serve(host), self._loop).result(10)
        self._links.append(link)
        return link

    def close(self) -> None:
        """End every connection and the thread."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()

    async def _end(self) -> None:
        for link in self._links:
            link.end()
        carrying = asyncio.all_tasks() - {asyncio.current_task()}
        for task in carrying:
            task.cancel()
        await asyncio.gather(*carrying, return_exceptions=True)


class Link:
    """One proxy."""

    def __init__(self, loop: asyncio.AbstractEventLoop, targets: Sequence[Address]) -> None:
        self._loop = loop
        self._targets = list(targets)
        self._open: set[asyncio.StreamWriter] = set()
        self._thawed = asyncio.Event()
        self._thawed.set()
        self._weather = Weather.CLEAR
        self.port = 0

    def change(self, weather: Weather) -> None:
        """From now on."""
        self._loop.call_soon_threadsafe(self._change, weather)

    async def serve(self, host: str) -> None:
        """Listen."""
        self._server = await asyncio.start_server(self._carry, host, 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def end(self) -> None:
        """Listen no more, and let go of every connection. In the loop's thread."""
        self._server.close()
        for writer in self._open:
            writer.transport.abort()

    def _change(self, weather: Weather) -> None:
        self._weather = weather
        if weather is Weather.FROZEN:
            self._thawed.clear()
        else:
            self._thawed.set()
        if weather is Weather.CUT:
            for writer in self._open:
                writer.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._weather is Weather.CUT:
            writer.transport.abort()
            return
        await self._thawed.wait()
        there = await self._connect()
        if there is None:
            writer.transport.abort()
            return
        their_reader, their_writer = there
        self._open |= {writer, their_writer}
        await asyncio.gather(
            self._pump(reader, their_writer, writer, is_answer=False),
            self._pump(their_reader, writer, their_writer, is_answer=True),
        )
        self._open -= {writer, their_writer}

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        for target in self._targets:
            with contextlib.suppress(OSError, TimeoutError):
                if isinstance(target, str):
                    return await asyncio.wait_for(asyncio.open_unix_connection(target), 2)
                return await asyncio.wait_for(asyncio.open_connection(*target), 2)
        return None

    async def _pump(
        self,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        other: asyncio.StreamWriter,
        *,
        is_answer: bool,
    ) -> None:
        with contextlib.suppress(OSError):
            while piece := await source.read(65536):
                await self._thawed.wait()
                if is_answer and self._weather is Weather.DEAF:
                    break
                if self._weather is Weather.SLOW:
                    await asyncio.sleep(SLOW_DELAY_S + len(piece) / SLOW_BYTES_S)
                sink.write(piece)
                await sink.drain()
        sink.close()
        other.close()
