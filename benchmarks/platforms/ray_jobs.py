"""Ray Jobs: one head node, in an environment of its own."""

import itertools
import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import httpx2
import psutil

from benchmarks.platforms.environments import install, program
from benchmarks.platforms.platform import (
    SETTLES_S,
    AfterKill,
    Candidate,
    Rate,
    connections,
    end,
    proportional_mib,
    rate_of,
)
from tests.running import own_port, wait_for

TOO_MANY_CPUS = 1000


class RayJobs:
    """A head node whose files lie in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port, self._numbers = folder, own_port(), itertools.count()
        self._start()

    def _start(self) -> None:
        with (self.folder / "out").open("ab") as output:
            self._head = subprocess.Popen(
                [
                    *(program("ray"), "start", "--head", "--block"),
                    *(f"--port={own_port()}", f"--dashboard-port={self.port}"),
                    *("--dashboard-host=127.0.0.1", f"--temp-dir={self.folder}"),
                    *("--disable-usage-stats", f"--num-cpus={os.cpu_count()}"),
                ],
                stdout=output,
                stderr=output,
                cwd=self.folder,
            )
        wait_for(self._answers, what="Ray's API", within_s=120)

    def stop(self) -> None:
        """End all of it."""
        end(self._head)

    def idle_mib(self) -> float:
        """Return the proportional set size of all its processes, in MiB."""
        time.sleep(SETTLES_S)
        return proportional_mib([psutil.Process(self._head.pid)])

    def seconds_to_start(self) -> float:
        """Submit a job; return the seconds until its first line of code runs."""
        began = time.time()
        answer = httpx2.post(
            f"http://127.0.0.1:{self.port}/api/jobs/",
            json={"entrypoint": "date +%s.%N"},
            timeout=60,
        ).raise_for_status()
        path = f"http://127.0.0.1:{self.port}/api/jobs/{answer.json()['submission_id']}/logs"

        def started() -> float | None:
            lines = httpx2.get(path, timeout=60).raise_for_status().json()["logs"].split()
            return next((float(line) for line in lines if line[:1].isdigit() and "." in line), None)

        return wait_for(started, what="a start", every_s=0.1) - began

    def submissions(self, clients: int, seconds: float) -> Rate:
        """Submit jobs that can't start; return the acknowledged ones per second."""
        rate, _ = self._submit_for(clients, seconds)
        return rate

    def points(self, lines: int, clients: int, seconds: float) -> None:
        """Return nothing: it keeps no metrics."""

    def chart_ms(self, points: int) -> None:
        """Return nothing: it keeps no metrics."""

    def after_kill(self, clients: int, seconds: float) -> AfterKill:
        """Submit jobs, kill the server with SIGKILL, start it again, count what it knows."""
        before = self._known()
        _, acknowledged = self._submit_for(clients, seconds)
        self.stop()
        self._start()
        return AfterKill(acknowledged, max(0, self._known() - before))

    def _submit_for(self, clients: int, seconds: float) -> tuple[Rate, int]:
        with connections(self.port, clients) as opened:

            def submit(client: int) -> None:
                body = {
                    "entrypoint": "true",
                    "submission_id": f"job-{client}-{next(self._numbers)}",
                    "entrypoint_num_cpus": TOO_MANY_CPUS,
                }
                opened[client].post("/api/jobs/", json.dumps(body).encode(), 200)

            return rate_of(submit, clients, seconds)

    def _known(self) -> int:
        answer = httpx2.get(f"http://127.0.0.1:{self.port}/api/jobs/", timeout=120)
        return len(answer.raise_for_status().json())

    def _answers(self) -> bool:
        assert self._head.poll() is None, (self.folder / "out").read_text()
        try:
            return httpx2.get(f"http://127.0.0.1:{self.port}/api/jobs/", timeout=5).is_success
        except httpx2.TransportError:
            return False


@contextmanager
def running(folder: Path) -> Iterator[RayJobs]:
    """Start a head node; yield it once its API answers; end it."""
    platform = RayJobs(folder)
    try:
        yield platform
    finally:
        platform.stop()


RAY_JOBS = Candidate("Ray Jobs", partial(install, "ray", "ray[default]"), running)
