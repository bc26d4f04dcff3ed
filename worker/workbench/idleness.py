"""Idleness of a workbench, seen from inside: nobody types, no kernel is busy and nothing computes.

Runs in the porter, with the standard library only. What it says is the owner's own word: it can
give away the owner's slots, and nobody else's.
"""

import asyncio
import contextlib
import json
import os
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

IDLE_AFTER = "TRAINYARD_IDLE_AFTER_S"  # variable: seconds; without it nobody looks
RELEASES = "TRAINYARD_RELEASES_KERNELS"  # variable: set if idle kernels are shut down
LOOK_EVERY_S, IDLE_LOOK_EVERY_S = 5.0, 1.0  # the second: a cell that runs is seen within a second
TOLD_EVERY_S = 10.0  # while it is idle, in case that the last report was lost
ANSWERS_WITHIN_S = 15.0  # Jupyter gives a kernel 5 s to shut down, then kills it
BUSY_SHARE = 0.1  # of a processor: JupyterLab alone uses 1 to 3 per cent
XSRF = "0" * 32  # Jupyter wants the same token in a cookie and in a header
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class SignsOfUse(NamedTuple):
    """Signs of use at one moment."""

    at: float
    """Seconds of the monotonic clock."""
    processor_s: float
    """Processor time of all processes inside so far, with that of their ended children."""
    kernels: Mapping[str, str]
    """Map kernel -> time of its last message."""
    has_busy_kernel: bool


def shows_use(before: SignsOfUse, now: SignsOfUse) -> bool:
    """Return True if a program has computed between two looks, or a kernel has done anything."""
    moved = any(before.kernels.get(kernel) != at for kernel, at in now.kernels.items())
    if now.has_busy_kernel or moved:
        return True
    return now.processor_s - before.processor_s > BUSY_SHARE * (now.at - before.at)


class Idleness:
    """Watch over one workbench. It is idle after `after_s` without use."""

    def __init__(
        self, after_s: int, tell: Callable[[bool], None], *, socket: str | None, releases: bool
    ) -> None:
        self.after_s, self.tell = after_s, tell
        self.socket, self.releases = socket, releases
        """Socket of the Jupyter server, if there is one; whether its kernels are shut down."""
        self.is_idle = False
        self.used_at = self.told_at = time.monotonic()

    def stir(self) -> None:
        """Take note that the workbench is used now."""
        self.used_at = time.monotonic()
        if self.is_idle:
            self.is_idle = False
            self.tell(False)

    async def watch(self) -> None:
        """Look again and again, and tell whenever it becomes idle or is used again."""
        before = await self.look()
        while True:
            await asyncio.sleep(
                min(self.after_s, IDLE_LOOK_EVERY_S if self.is_idle else LOOK_EVERY_S)
            )
            now = await self.look()
            if shows_use(before, now):
                self.stir()
            elif now.at - self.used_at >= self.after_s:
                await self._be_idle(now)
            before = now

    async def _be_idle(self, seen: SignsOfUse) -> None:
        if not self.is_idle and self.releases:
            for kernel in seen.kernels:  # notebooks are saved a second after the last key
                await self._ask_server("DELETE", f"/api/kernels/{kernel}")
        if not self.is_idle or seen.at - self.told_at >= TOLD_EVERY_S:
            self.is_idle, self.told_at = True, seen.at
            self.tell(True)

    async def look(self) -> SignsOfUse:
        """Return the signs of use now."""
        kernels = []
        if self.socket is not None:
            with contextlib.suppress(ValueError):
                kernels = json.loads(await self._ask_server("GET", "/api/kernels") or b"[]")
        return SignsOfUse(
            at=time.monotonic(),
            processor_s=processor_s(),
            kernels={one["id"]: str(one.get("last_activity")) for one in kernels},
            has_busy_kernel=any(one.get("execution_state") == "busy" for one in kernels),
        )

    async def _ask_server(self, method: str, path: str) -> bytes:
        """Return the content of the server's answer; nothing if it does not answer."""
        assert self.socket is not None
        request = (
            f"{method} {path} HTTP/1.0\r\nHost: localhost\r\n"
            f"Cookie: _xsrf={XSRF}\r\nX-XSRFToken: {XSRF}\r\n\r\n"
        )
        try:
            async with asyncio.timeout(ANSWERS_WITHIN_S):
                reader, writer = await asyncio.open_unix_connection(self.socket)
                writer.write(request.encode())
                answer = await reader.read()
                writer.close()
        except (OSError, TimeoutError):
            return b""
        return answer.partition(b"\r\n\r\n")[2]


def processor_s() -> float:
    """Return the processor seconds of all processes inside, and of their ended children.

    Inside are those below the porter's parent: the first process there, or what is outside of it.
    """
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError), open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
                parents[int(name)] = int(fields[1])
                ticks[int(name)] = sum(map(int, fields[11:15]))  # utime, stime, cutime, cstime
    root, total = os.getppid(), 0
    for process in ticks:
        above = process
        while above in parents and above != root:
            above = parents[above]
        if above == root and process != root:
            total += ticks[process]
    return total / TICKS_PER_S
