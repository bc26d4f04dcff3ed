"""Measurements taken while people click: health, CPU, memory."""

import asyncio
import contextlib
import os
import time
from collections.abc import Iterator

import psutil

from benchmarks.course.houses import House
from benchmarks.course.records import Records
from benchmarks.course.wire import Line, Lost

HEALTH_EVERY_S = 0.5
GENERATOR = "load generator"


async def ask_health(house: House, records: Records) -> None:
    """Ask /readyz as a load balancer does, each time over a new connection, until cancelled."""
    while True:
        line = Line(house.host, house.port, {})
        begun = time.perf_counter()
        try:
            answer = await line.ask("GET", "/readyz")
            records.wait("/readyz", time.perf_counter() - begun)
            if answer.status != 200:
                records.errors[f"/readyz: {answer.status}"] += 1
        except (Lost, TimeoutError) as error:
            records.errors[f"/readyz: {type(error).__name__}"] += 1
        line.close()
        await asyncio.sleep(HEALTH_EVERY_S)


class HouseUse:
    """CPU of every process between two moments, and memory at the second."""

    def __init__(self, house: House) -> None:
        self._house = house
        self._begun = time.monotonic()
        self._before = dict(self._seconds())

    def cpu(self) -> dict[str, float]:
        """Map process name -> CPU use since the beginning, in per cent of one core."""
        elapsed = time.monotonic() - self._begun
        used: dict[str, float] = {}
        for key, seconds in self._seconds():
            name = key[0]
            more = seconds - self._before.get(key, 0.0)
            used[name] = used.get(name, 0.0) + 100 * more / elapsed
        return used

    def memory(self) -> dict[str, float]:
        """Map process name -> proportional set size, in MiB."""
        sizes: dict[str, float] = {}
        for name, processes in self._house.processes().items():
            for process in processes:
                with contextlib.suppress(psutil.NoSuchProcess):
                    pss = process.memory_full_info().pss / (1 << 20)
                    sizes[name] = sizes.get(name, 0.0) + pss
        return sizes

    def _seconds(self) -> Iterator[tuple[tuple[str, int], float]]:
        for name, processes in self._house.processes().items():
            for process in processes:
                with contextlib.suppress(psutil.NoSuchProcess):
                    times = process.cpu_times()
                    yield (name, process.pid), times.user + times.system
        own = os.times()
        yield (GENERATOR, os.getpid()), own.user + own.system
