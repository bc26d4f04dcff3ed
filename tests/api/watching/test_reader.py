"""One task reads for all viewers, and what comes together is read together."""

import asyncio

import pytest

from api.watching.reader import Reader

GATHER_S, REST_S, POLL_S = 0.111, 0.0, 60.0


class Counting(Reader):
    """A reader that counts its readings."""

    def __init__(self) -> None:
        super().__init__(POLL_S, REST_S, gather_s=GATHER_S)
        self.num_readings = 0

    async def _read(self) -> None:
        self.num_readings += 1


def test_what_rings_while_the_reader_gathers_is_read_with_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sleep = asyncio.sleep

    async def run() -> None:
        gathered = asyncio.Event()

        async def until_told(seconds: float) -> None:
            await (gathered.wait() if seconds == GATHER_S else sleep(seconds))

        monkeypatch.setattr(asyncio, "sleep", until_told)
        reader = Counting()
        reader.join()
        for _ in range(3):  # curves, logs, and the echo of both
            reader.wake()
            for _ in range(5):
                await sleep(0)
            assert reader.num_readings == 0
        gathered.set()
        for _ in range(10):
            await sleep(0)
        assert reader.num_readings == 1
        reader.leave()

    asyncio.run(run())
