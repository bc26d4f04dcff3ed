"""`python -m benchmarks.workbenches`: a key's echo in a terminal, and the start of workbenches.

Everything runs on the whole platform as `trainyard up` starts it. Keys go through a WebSocket of
the API, its tunnel, the carrier and the porter to a shell in the sandbox and back; in turn with
them, keys to the same program on a terminal of this machine, which is what is unavoidable. Goal:
the way adds at most 1 ms (median) and 10 ms (99th percentile) to an SSH on the same machine.
"""

import os
import pty
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import httpx2

from core.base.clock import utc_now
from tests.running import Running, running_platform, wait_for
from tests.spine.jobs import get, submit, wait_for_end
from tests.spine.short_leases import book_soon
from tests.spine.workbenches import Looking
from worker.scripts.sandbox import find_level
from worker.workbench.jupyter import why_not_installed

KEYS, STARTS = 400, 5
PAUSE_S = 0.01  # nobody types faster
Row = tuple[str, str, str]


def rows(keys: int = KEYS, starts: int = STARTS) -> list[Row]:
    """Measure, and return the rows of docs/benchmarks.md; none where no sandbox can be built."""
    if find_level().level is None:
        return []
    with running_platform(forked=False) as platform, platform.http() as client:
        terminal = [started(platform, client, "terminal") for _ in range(starts)]
        has_browser = not why_not_installed()
        jupyter = [
            started(platform, client, "jupyter") for _ in range(starts if has_browser else 0)
        ]
        idle_ms, here_ms = echoes(platform, client, keys=keys, busy=False)
        busy_ms, _ = echoes(platform, client, keys=keys, busy=True)
    load = f"load {os.getloadavg()[0]:.1f}"
    found = [
        (
            "a key's echo in a workbench's terminal",
            f"{percentiles(idle_ms)}; on a terminal of this machine {percentiles(here_ms)}; {load}",
            "adds <= 1 ms, p99 <= 10 ms",
        ),
        ("the same, beside a terminal of it that prints without end", percentiles(busy_ms), ""),
        (
            "start of a lease to the prompt of a terminal that was asked for ahead",
            seconds(terminal),
            "<= 5 s",
        ),
    ]
    if jupyter:
        what = "start of a lease until JupyterLab, asked for ahead, can be opened"
        found.append((what, seconds(jupyter), "<= 5 s"))
    return found


def started(platform: Running, client: httpx2.Client, kind: str) -> float:
    """Return the seconds from a lease's start until a workbench in it shows its prompt, or can be
    opened in the browser."""
    lease, start = book_soon(platform, starts_in_s=2)
    job = submit(client, bench(kind, lease=lease))
    wait_for(lambda: get(client, job)["state"] == "running", what="the workbench", every_s=0.01)
    if kind == "terminal":
        with Looking.at(platform, job) as look:
            look.wait_for("$ ")
    took_s = (utc_now() - start).total_seconds()
    end(client, job)
    client.post(f"/v1/leases/{lease}/release").raise_for_status()
    wait_for(
        lambda: client.get(f"/v1/leases/{lease}").json()["state"] == "ended", what="its lease's end"
    )
    return took_s


def echoes(
    platform: Running, client: httpx2.Client, *, keys: int, busy: bool
) -> tuple[Sequence[float], Sequence[float]]:
    """Return the milliseconds of each key's echo, in a workbench and on a terminal here."""
    job = submit(client, bench("terminal"))
    wait_for(lambda: get(client, job)["state"] == "running", what="the workbench")
    there, here = [], []
    with Looking.at(platform, job) as look, local_terminal() as screen:
        if busy:
            other = Looking.at(platform, job, "prints")
            other.type("yes 'a line that is as long as lines of programs often are'\n")
        look.type("cat\n")
        look.wait_for("cat\r\n")
        for number in range(keys):
            key = "abcdefghij"[number % 10]
            began = time.perf_counter()
            look.type(key)
            shown = b""
            while key.encode() not in shown:
                piece = look.connection.recv(timeout=30)
                assert isinstance(piece, bytes)
                shown = piece
            there.append(1000 * (time.perf_counter() - began))
            began = time.perf_counter()
            os.write(screen, key.encode())
            os.read(screen, 1)
            here.append(1000 * (time.perf_counter() - began))
            time.sleep(PAUSE_S)
        if busy:
            other.connection.close()
    end(client, job)
    return there, here


@contextmanager
def local_terminal() -> Iterator[int]:
    """Yield the descriptor of a terminal of this machine in which `cat` runs."""
    pid, screen = pty.fork()
    if pid == 0:
        os.execvp("cat", ["cat"])
    yield screen
    os.close(screen)
    os.waitpid(pid, 0)


def bench(kind: str, **terms: str) -> dict[str, object]:
    """Return the job of a workbench."""
    wall_time = "24h" if terms else "20min"
    kind_of = {"kind": kind}
    return {"name": kind, "workbench": kind_of, "resources": {"wall_time": wall_time}, **terms}


def end(client: httpx2.Client, job: str) -> None:
    """Stop a workbench, and wait until its slots are free."""
    client.post(f"/v1/jobs/{job}/cancel").raise_for_status()
    wait_for_end(client, job)


def percentiles(found_ms: Sequence[float]) -> str:
    """Return the median and the 99th percentile in words."""
    ranked = sorted(found_ms)
    p99 = ranked[int(0.99 * (len(ranked) - 1))]
    return f"{statistics.median(ranked):.2f} ms, p99 {p99:.1f} ms"


def seconds(found_s: Sequence[float]) -> str:
    """Return the median and the range in words."""
    return f"{statistics.median(found_s):.2f} s ({min(found_s):.2f} to {max(found_s):.2f})"


if __name__ == "__main__":
    for row in rows():
        sys.stdout.write(f"| {' | '.join(row)} |\n")
