"""Tunnels of API processes that meet through one Redis, with a scripted porter at their end."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from api.workbenches.tunnels import Key, NotConnected, StreamLost, Tunnels
from core.wire.frames import WINDOW, Frame, FrameKind, IdleReport, pack, pack_idle, unpack

pytestmark = pytest.mark.anyio
KEY = Key("job_a", 1)


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


class Porter:
    """A porter that echoes what it hears, connected to one API process."""

    def __init__(self, tunnels: Tunnels, key: Key = KEY) -> None:
        self.tunnels, self.key = tunnels, key
        self.up: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.heard: list[Frame] = []
        self.answers = True
        self.reports: list[IdleReport] = []

    async def hold(self) -> None:
        await self.tunnels.hold(self.key, self.up.get, self.hear, self.heed)

    async def heed(self, report: IdleReport) -> bool:
        self.reports.append(report)
        return len(self.reports) > 1  # the first cannot be recorded

    async def hear(self, message: bytes) -> None:
        frame = unpack(message)
        self.heard.append(frame)
        if not self.answers:
            return
        if frame.kind is FrameKind.HELLO:
            self.say(message)
        elif frame.kind is FrameKind.OPEN and b"refuse" in frame.content:
            self.say(pack(FrameKind.CLOSE, frame.stream, b'{"why": "no such thing"}'))
        elif frame.kind is FrameKind.OPEN:
            self.say(pack(FrameKind.OPENED, frame.stream, b'{"offset": 0}'))
        elif frame.kind in (
            FrameKind.DATA,
            FrameKind.CREDIT,
        ):  # it takes as much as it is allowed to send
            self.say(message)

    def say(self, message: bytes) -> None:
        self.up.put_nowait(message)


@asynccontextmanager
async def processes(*urls: str) -> AsyncIterator[list[Tunnels]]:
    made = [Tunnels(url) for url in urls]
    for one in made:
        one.start()
    try:
        yield made
    finally:
        for one in made:
            await one.close()


@asynccontextmanager
async def connected(porter: Porter) -> AsyncIterator[asyncio.Task[None]]:
    """Hold the porter's connection; it is open once a stream can be opened."""
    holding = asyncio.create_task(porter.hold())
    try:
        await eventually(lambda: can_open(porter.tunnels, porter.key))
        yield holding
    finally:
        holding.cancel()
        await asyncio.gather(holding, return_exceptions=True)


async def can_open(tunnels: Tunnels, key: Key = KEY) -> bool:
    try:
        stream = await tunnels.open(key, {})
    except NotConnected:
        return False
    await stream.close()
    return True


async def eventually(ask: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(15):
        while not await ask():
            await asyncio.sleep(0.02)


async def test_bytes_go_both_ways_in_the_process_that_holds_the_tunnel_without_redis() -> None:
    async with processes("unix:///nonexistent/none.sock?db=0") as (one,), connected(Porter(one)):
        stream = await one.open(KEY, {"terminal": "1"})
        await stream.write(b"hello")
        assert await stream.read() == b"hello"


async def test_bytes_go_both_ways_through_another_process(valkey_url: str) -> None:
    async with processes(valkey_url, valkey_url) as (one, other), connected(Porter(one)):
        await eventually(lambda: can_open(other))
        stream = await other.open(KEY, {"terminal": "1"})
        sent = bytes(range(256)) * 8192  # eight windows: credit comes and goes
        writing = asyncio.create_task(stream.write(sent))
        got = b""
        while len(got) < len(sent):
            piece = await stream.read()
            got += piece
            await stream.give_back(len(piece))
        await writing
        assert got == sent


async def test_a_node_that_connects_anew_ends_the_streams_of_its_connection_before() -> None:
    """It forgets them, and its former connection may be there for a while."""
    async with processes("unix:///nonexistent/none.sock?db=0") as (one,), connected(Porter(one)):
        stream = await one.open(KEY, {"terminal": "1"})
        porter = Porter(one)
        again = asyncio.create_task(porter.hold())
        try:
            async with asyncio.timeout(15):
                assert await stream.read() == b""
            assert stream.end == {"why": "the connection to the node is lost"}
            stream = await one.open(KEY, {"terminal": "1"})
            await stream.write(b"hello")
            assert await stream.read() == b"hello"
            assert porter.heard[-1].kind is FrameKind.DATA
        finally:
            again.cancel()
            await asyncio.gather(again, return_exceptions=True)


async def test_a_report_is_recorded_at_last_and_the_owner_s_keys_come_through_another_process(
    valkey_url: str,
) -> None:
    async with processes(valkey_url, valkey_url) as (one, other):
        porter = Porter(one)
        async with connected(porter):
            await eventually(lambda: can_open(other))
            porter.say(pack_idle(IdleReport(is_idle=True, after_s=900)))

            async def recorded() -> bool:
                return len(porter.reports) == 2

            await eventually(recorded)
            assert set(porter.reports) == {IdleReport(is_idle=True, after_s=900)}
            await other.stir(KEY)

            async def heard() -> bool:
                return porter.heard[-1].kind is FrameKind.STIRRED

            await eventually(heard)


async def test_what_the_workbench_refuses_is_said(valkey_url: str) -> None:
    async with processes(valkey_url) as (one,), connected(Porter(one)):
        with pytest.raises(StreamLost, match="no such thing"):
            await one.open(KEY, {"terminal": "refuse"})


async def test_nobody_is_there(valkey_url: str) -> None:
    async with processes(valkey_url) as (one,):
        with pytest.raises(NotConnected, match="not connected"):
            await one.open(KEY, {"terminal": "1"})


async def test_streams_end_with_the_connection_in_every_process(valkey_url: str) -> None:
    async with processes(valkey_url, valkey_url) as (one, other):
        porter = Porter(one)
        async with connected(porter):
            await eventually(lambda: can_open(other))
            near, far = await one.open(KEY, {}), await other.open(KEY, {})
            porter.up.put_nowait(None)
            async with asyncio.timeout(5):
                assert await near.read() == b""
                assert await far.read() == b""
            assert "lost" in str((far.end or {}).get("why"))


async def test_a_process_that_was_killed_loses_the_streams_through_it(valkey_url: str) -> None:
    async with processes(valkey_url, valkey_url) as (one, other), connected(Porter(one)):
        await eventually(lambda: can_open(other))
        far = await other.open(KEY, {})
        assert one._channel is not None
        await one._channel.unsubscribe(KEY.channel)  # as Redis does when its connection is gone
        async with asyncio.timeout(10):
            assert await far.read() == b""


async def test_a_node_that_connects_elsewhere_leaves_the_first_process(valkey_url: str) -> None:
    async with (
        processes(valkey_url, valkey_url) as (one, other),
        connected(Porter(one)) as first,
        connected(Porter(other)),
    ):
        async with asyncio.timeout(5):
            await first
        assert await can_open(one)


async def test_frames_of_the_connection_before_and_of_unknown_streams_are_dropped(
    valkey_url: str,
) -> None:
    async with processes(valkey_url) as (one,):
        porter, thief = Porter(one), Porter(one, Key("job_b", 1))
        porter.say(pack(FrameKind.DATA, 1, b"of before"))
        async with connected(porter), connected(thief):
            stream = await one.open(KEY, {})
            thief.say(pack(FrameKind.DATA, stream.number, b"of another workbench"))
            porter.say(pack(FrameKind.DATA, stream.number + 1, b"of no stream"))
            assert await can_open(one, thief.key)  # it has been heard by now
            porter.say(pack(FrameKind.DATA, stream.number, b"its own"))
            assert await stream.read() == b"its own"


async def test_a_workbench_that_sends_more_than_it_may_loses_the_stream(valkey_url: str) -> None:
    async with processes(valkey_url) as (one,):
        porter = Porter(one)
        async with connected(porter):
            stream = await one.open(KEY, {})
            piece = bytes(32 << 10)
            for _ in range(WINDOW // len(piece) + 1):
                porter.say(pack(FrameKind.DATA, stream.number, piece))
            while await stream.read():
                pass
            assert stream.end is not None
            assert "more than it was allowed" in str(stream.end["why"])


@pytest.mark.parametrize("kind", [FrameKind.CREDIT, FrameKind.OPEN, FrameKind.RESIZE])
async def test_a_frame_against_the_rules_ends_its_stream(valkey_url: str, kind: FrameKind) -> None:
    async with processes(valkey_url) as (one,):
        porter = Porter(one)
        async with connected(porter):
            stream = await one.open(KEY, {})
            porter.say(pack(kind, stream.number, b"1"))
            assert await stream.read() == b""
            assert "rules" in str((stream.end or {}).get("why"))
