"""Trainyard on SQLite, as `trainyard up` starts it, with no limit on submissions."""

import io
import time
import zipfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cached_property
from pathlib import Path

import httpx2
import psutil
from sqlalchemy import func, select

from benchmarks import service
from benchmarks.platforms.platform import (
    SETTLES_S,
    AfterKill,
    Candidate,
    Rate,
    proportional_mib,
)
from core.database.database import Database
from core.tables.jobs import Job
from tests.running import Running, running_platform, wait_for

PROGRAM = "import time\nprint(time.time(), flush=True)\n"


class Trainyard:
    """A platform in a folder of its own."""

    def __init__(self, platform: Running) -> None:
        self.platform = platform

    def idle_mib(self) -> float:
        """Return the proportional set size of all its processes, in MiB."""
        time.sleep(SETTLES_S)
        return proportional_mib([psutil.Process(self.platform.up_pid())])

    def seconds_to_start(self) -> float:
        """Submit a program for a sandbox; return the seconds until its first line runs."""
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w") as file:
            file.writestr("train.py", PROGRAM)
        with self.platform.http() as http:
            headers = {"Content-Type": "application/zip"}
            code = http.post("/v1/code", content=archive.getvalue(), headers=headers)
            began = time.time()
            body = {
                "name": "beside",
                "script": {
                    "entry": "train.py",
                    "code": code.raise_for_status().json()["sha256"],
                    "launcher": "python",
                },
                "resources": {"wall_time": "20min"},
            }
            job = http.post("/v1/jobs", json=body).raise_for_status().json()["id"]

            def started() -> float | None:
                lines = http.get(f"/v1/jobs/{job}/logs").raise_for_status().json()["lines"]
                said = (str(line["text"]).strip() for line in lines)
                return next((float(one) for one in said if one.replace(".", "").isdigit()), None)

            started_at = wait_for(started, what="a start", every_s=0.1)
            self._wait_for_end(http, job)
        return started_at - began

    def submissions(self, clients: int, seconds: float) -> Rate:
        """Submit jobs that can't start; return the acknowledged ones per second."""
        per_s, p99_ms, _ = service.submissions(self._drained, seconds, clients)
        return Rate(per_s, p99_ms)

    def points(self, lines: int, clients: int, seconds: float) -> float:
        """Store metrics, `lines` of 8 keys a call; return the points per second."""
        assert clients == service.CLIENTS
        return service.metric_points(
            self._served, seconds, self._attempt, lines=lines, first_rank=lines * clients
        )

    def chart_ms(self, points: int) -> float:
        """Store a curve; return the milliseconds to read it, reduced to 1,000 points."""
        return service.long_chart(self._served, self._attempt, points)

    def after_kill(self, clients: int, seconds: float) -> AfterKill:
        """Submit jobs, kill the server with SIGKILL, start it again, count what it knows."""
        drained, before = self._drained, self._known()
        _, _, acknowledged = service.submissions(drained, seconds, clients)
        self.platform.process("api").kill()
        wait_for(self._answers, what="the API")
        return AfterKill(acknowledged, self._known() - before)

    @cached_property
    def _served(self) -> service.ServedApi:
        url = self.platform.data.database_url
        with closing(Database(url)) as database:
            return service.with_clients(database, self.platform.port, url, self.platform.token)

    @cached_property
    def _drained(self) -> service.ServedApi:
        service.drain(self._served)
        return self._served

    @cached_property
    def _attempt(self) -> dict[str, object]:
        return service.running_attempt(self._served)

    def _known(self) -> int:
        with (
            closing(Database(self.platform.data.database_url)) as database,
            database.read() as all_,
        ):
            return all_.scalar(select(func.count()).select_from(Job)) or 0

    def _answers(self) -> bool:
        try:
            return httpx2.get(f"{self.platform.url}/readyz", timeout=5).is_success
        except httpx2.TransportError:
            return False

    @staticmethod
    def _wait_for_end(http: httpx2.Client, job: str) -> None:
        def ended() -> bool:
            return http.get(f"/v1/jobs/{job}").json()["state"] in ("succeeded", "failed")

        wait_for(ended, what="the job's end")


@contextmanager
def running(_folder: Path) -> Iterator[Trainyard]:
    """Start a platform; yield it once its node is ready; end it."""
    with running_platform(service.NO_LIMITS, forked=False) as platform:
        yield Trainyard(platform)


TRAINYARD = Candidate("Trainyard", lambda: "", running)
