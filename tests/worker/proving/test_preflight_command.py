"""`trainyard preflight`, as a process."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress

import psutil
import pytest

from strategies.plan.trust.preflight_report import Report, Verdict
from tests.running import wait_for

pytestmark = pytest.mark.gloo
COMMAND = [
    sys.executable,
    "-c",
    "import sys; from worker.proving.preflight import run; "
    "sys.exit(run(ranks=2, quick='quick' in sys.argv, as_json=True))",
]


@pytest.mark.slow
def test_healthy_ranks_are_reported_as_json_and_exit_with_0() -> None:
    env = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    found = subprocess.run(
        [*COMMAND, "quick"], capture_output=True, text=True, check=False, env=env
    )
    assert found.returncode in (Verdict.HEALTHY, Verdict.SLOW_RANK), found
    report = Report.model_validate(json.loads(found.stdout))
    assert len(report.timings) == 8
    assert all(row.right for row in report.timings)
    assert report.missing is None
    assert report.transport == "gloo over TCP (lo)"
    assert found.stderr == ""


@pytest.mark.slow
@pytest.mark.parametrize("dead", [0, 1])
def test_a_killed_rank_is_named_by_the_one_that_is_left(dead: int) -> None:
    """Also rank 0: under torchrun the list of the ranks is kept by torchrun."""
    with subprocess.Popen(COMMAND, stdout=subprocess.PIPE, text=True) as command:
        wait_for(
            lambda: any(has_met_others(rank) for rank in ranks_of(command.pid, dead)),
            what="ranks that have met",
            within_s=120,
        )
        for rank in ranks_of(command.pid, dead):
            rank.send_signal(signal.SIGKILL)
        output, _ = command.communicate(timeout=120)
    assert command.returncode == Verdict.RANKS_MISSING
    report = Report.model_validate_json(output)
    assert report.missing is not None
    assert report.missing.ranks == [dead]
    assert report.missing.why.startswith(f"rank {dead} (")


def ranks_of(pid: int, rank: int) -> Iterator[psutil.Process]:
    """The processes below `pid` that are this rank."""
    with suppress(psutil.NoSuchProcess):
        for process in psutil.Process(pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                if process.environ().get("RANK") == str(rank):
                    yield process


def has_met_others(rank: psutil.Process) -> bool:
    """Whether it is connected to the store and to another rank."""
    with suppress(psutil.NoSuchProcess):
        connections = rank.net_connections(kind="tcp")
        return sum(one.status == psutil.CONN_ESTABLISHED for one in connections) >= 2
    return False
