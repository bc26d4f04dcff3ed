"""MLflow's tracking server on SQLite, in an environment of its own."""

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
    KEYS,
    SETTLES_S,
    Candidate,
    connections,
    end,
    median_ms,
    proportional_mib,
    rate_of,
)
from tests.running import own_port, wait_for

MOST_A_CALL = 1000
"""Metrics in one call, a limit of MLflow."""


class MlflowServer:
    """One server process, as little as it runs with."""

    def __init__(self, folder: Path) -> None:
        self.port = own_port()
        self._url = f"http://127.0.0.1:{self.port}"
        self._log = folder / "out"
        with self._log.open("ab") as output:
            self._server = subprocess.Popen(
                [
                    *(program("mlflow"), "server", "--workers=1"),
                    *(f"--port={self.port}", "--host=127.0.0.1"),
                    f"--backend-store-uri=sqlite:///{folder / 'mlflow.db'}",
                    f"--default-artifact-root={folder / 'artifacts'}",
                ],
                stdout=output,
                stderr=output,
                cwd=folder,
                env={**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
            )
        wait_for(self._answers, what="MLflow's server", within_s=120)

    def stop(self) -> None:
        """End all of it."""
        end(self._server)

    def idle_mib(self) -> float:
        """Return the proportional set size of all its processes, in MiB."""
        time.sleep(SETTLES_S)
        return proportional_mib([psutil.Process(self._server.pid)])

    def seconds_to_start(self) -> None:
        """Return nothing: it runs no jobs."""

    def submissions(self, clients: int, seconds: float) -> None:
        """Return nothing: it runs no jobs."""

    def after_kill(self, clients: int, seconds: float) -> None:
        """Return nothing: it runs no jobs."""

    def points(self, lines: int, clients: int, seconds: float) -> float:
        """Store metrics, `lines` of 8 keys a call; return the points per second."""
        runs, steps = [self._run() for _ in range(clients)], itertools.count()
        with connections(self.port, clients) as opened:

            def store(client: int) -> None:
                first = next(steps) * lines
                metrics = [
                    {"key": key, "value": 1.25, "step": first + line, "timestamp": 1}
                    for line in range(lines)
                    for key in KEYS
                ]
                body = {"run_id": runs[client], "metrics": metrics}
                path = "/api/2.0/mlflow/runs/log-batch"
                opened[client].post(path, json.dumps(body).encode(), 200)

            rate, _ = rate_of(store, clients, seconds)
        return rate.per_s * lines * len(KEYS)

    def chart_ms(self, points: int) -> float:
        """Store a curve; return the milliseconds to read it, reduced to 1,000 points."""
        run = self._run()
        with httpx2.Client(base_url=self._url, timeout=120) as http:
            for first in range(0, points, MOST_A_CALL):
                metrics = [
                    {"key": "curve", "value": float(step % 97), "step": step, "timestamp": 1}
                    for step in range(first, first + MOST_A_CALL)
                ]
                body = {"run_id": run, "metrics": metrics}
                http.post("/api/2.0/mlflow/runs/log-batch", json=body).raise_for_status()

            def read() -> None:
                answer = http.get(
                    "/ajax-api/2.0/mlflow/metrics/get-history-bulk-interval",
                    params={"run_ids": run, "metric_key": "curve", "max_results": 1000},
                )
                assert len(answer.raise_for_status().json()["metrics"]) >= 1000

            return median_ms(read)

    def _run(self) -> str:
        answer = httpx2.post(
            f"{self._url}/api/2.0/mlflow/runs/create", json={"experiment_id": "0"}, timeout=60
        )
        return str(answer.raise_for_status().json()["run"]["info"]["run_id"])

    def _answers(self) -> bool:
        assert self._server.poll() is None, self._log.read_text()
        try:
            return httpx2.get(f"{self._url}/health", timeout=5).is_success
        except httpx2.TransportError:
            return False


@contextmanager
def running(folder: Path) -> Iterator[MlflowServer]:
    """Start a server; yield it once it answers; end it."""
    platform = MlflowServer(folder)
    try:
        yield platform
    finally:
        platform.stop()


MLFLOW = Candidate("MLflow", partial(install, "mlflow", "mlflow"), running)
