"""Live streams: half of them of a running job, half of jobs that wait, one each."""

import asyncio
import json
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field

import psutil

from benchmarks import service
from benchmarks.ratios import percentile
from benchmarks.service import ServedApi, add_people, ask, connection_to, example_job
from core.database.database import Database
from core.tables.kinds import Role
from tests.running import is_named

STREAMS_OF_ONE = 36  # below the limit of one person
LINE_EVERY_S = 1 / 3


@dataclass
class WatchedStreams:
    """Openings and lags that the viewers have seen."""

    begun_at: float = field(default_factory=time.monotonic)
    opened_s: list[float] = field(default_factory=list)
    lags_s: list[float] = field(default_factory=list)


def rows(*, streams: int, seconds: float) -> list[tuple[str, str, str]]:
    """Measure how long the streams take to open, how late lines are, and what the API computes."""
    with service.serving("sqlite") as served:
        attempt = service.running_attempt(served)
        service.drain(served)
        jobs = [str(attempt["job_id"])] * (streams // 2) + _submitted(served, streams // 2)
        tokens = _staff(served, -(-streams // STREAMS_OF_ONE))
        ended = threading.Event()
        node = threading.Thread(target=_report, args=(served, attempt, ended))
        node.start()
        try:
            seen, api_percent = asyncio.run(_watch(served, jobs, tokens, seconds))
        finally:
            ended.set()
            node.join()
    lag_ms = 1000 * percentile(seen.lags_s, 0.99)
    return [
        (
            f"{streams:,} live streams, half of a running job, half of as many that wait",
            f"open in {max(seen.opened_s):.1f} s; lag p99 {lag_ms:.0f} ms; API {api_percent:.0f} % "
            "of a core",
            "<= 2 s, < 300 ms",
        )
    ]


async def _watch(
    served: ServedApi, jobs: Sequence[str], tokens: Sequence[str], seconds: float
) -> tuple[WatchedStreams, float]:
    seen = WatchedStreams()
    viewers = [
        asyncio.create_task(_follow(served, job, tokens[number % len(tokens)], seen))
        for number, job in enumerate(jobs)
    ]
    while len(seen.opened_s) < len(jobs):
        await asyncio.sleep(0.05)
        for viewer in viewers:
            if viewer.done():
                viewer.result()
    seen.lags_s.clear()
    api = _api()
    before, since = sum(api.cpu_times()[:2]), time.monotonic()
    await asyncio.sleep(seconds)
    used = (sum(api.cpu_times()[:2]) - before) / (time.monotonic() - since)
    for viewer in viewers:
        viewer.cancel()
    await asyncio.gather(*viewers, return_exceptions=True)
    return seen, 100 * used


async def _follow(served: ServedApi, job: str, token: str, seen: WatchedStreams) -> None:
    reader, writer = await asyncio.open_connection(served.url_host, served.port, limit=1 << 22)
    try:
        writer.write(
            f"GET /v1/jobs/{job}/stream HTTP/1.1\r\nHost: {served.url_host}:{served.port}\r\n"
            f"Authorization: Bearer {token}\r\n\r\n".encode()
        )
        status = await reader.readline()
        assert b" 200 " in status, status
        is_open, event = False, b""
        async for line in reader:
            if line.startswith(b"event: "):
                event = line[7:].strip()
            elif line.startswith(b"data: ") and event == b"job" and not is_open:
                is_open = True
                seen.opened_s.append(time.monotonic() - seen.begun_at)
            elif line.startswith(b"data: ") and event == b"metrics":
                now = time.time()
                seen.lags_s += [now - told["sent_at"] for told in json.loads(line[6:])["lines"]]
        raise ConnectionError("a stream ended")
    finally:
        writer.close()


def _report(served: ServedApi, attempt: dict[str, object], ended: threading.Event) -> None:
    """Send a line with its moment, three times a second."""
    number = 0
    with connection_to(served) as connection:
        while not ended.wait(LINE_EVERY_S):
            line = {"step": number, "sent_at": time.time()}
            body = {**attempt, "rank": 0, "first_line": number, "lines": [line]}
            ask(connection, "POST", "/v1/node/metrics", served.node_token, body, 200)
            number += 1


def _submitted(served: ServedApi, count: int) -> list[str]:
    with connection_to(served) as connection:
        return [
            str(ask(connection, "POST", "/v1/jobs", served.user_token, example_job(), 201)["id"])
            for _ in range(count)
        ]


def _staff(served: ServedApi, count: int) -> Sequence[str]:
    """Add staff, who may watch the jobs of all; return their tokens."""
    with closing(Database(served.database_url)) as database:
        return add_people(database, "staff", count, Role.STAFF)


def _api() -> psutil.Process:
    below = psutil.Process().children(recursive=True)
    return next(child for child in below if is_named(child, "api"))
