"""Clocks of the GPUs while a training runs: a GPU that is held down is slow through no program."""

import threading
from collections.abc import Collection
from types import TracebackType
from typing import Self

from core.wire.messages import GpuReading
from worker.gpus.node_gpus import NodeGpus
from worker.gpus.readings import reading_of

EVERY_S = 0.2


class Clocks:
    """Readings of some GPUs, taken by a thread from `with` to its end; none on CPU slots."""

    def __init__(self, node_gpus: NodeGpus, uuids: Collection[str]) -> None:
        devices = [node_gpus.devices.get(uuid) for uuid in uuids]
        self.devices = [one for one in devices if one is not None and one.handle is not None]
        self.readings: list[GpuReading] = []
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.watch, name="clocks", daemon=True)

    def watch(self) -> None:
        """Read until the end."""
        while self.devices and not self.over.wait(EVERY_S):
            self.readings += [reading_of(slot, one) for slot, one in enumerate(self.devices)]

    def __enter__(self) -> Self:
        self.thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.over.set()
        self.thread.join()

    @property
    def held_down(self) -> str:
        """Reasons for which a GPU was held below its highest clock; empty if none was."""
        return told(self.readings)


def told(readings: Collection[GpuReading]) -> str:
    """Return `power cap, clocks down to 1,845 of 1,980 MHz`; empty if no reading was throttled."""
    throttled = [one for one in readings if one.throttled]
    if not throttled:
        return ""
    reasons = ", ".join(dict.fromkeys(reason for one in throttled for reason in one.throttled))
    clocks = [one.clock_mhz for one in throttled if one.clock_mhz is not None]
    highest = max((one.max_clock_mhz or 0 for one in throttled), default=0)
    if not clocks or not highest:
        return reasons
    return f"{reasons}, clocks down to {min(clocks):,} of {highest:,} MHz"
