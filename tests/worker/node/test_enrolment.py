"""How a machine becomes a node, and what it says it has."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.worker.fake_api import ENROL_TOKEN, FakeApi
from worker.agent.inventory import take_inventory
from worker.agent.telemetry import TelemetrySource
from worker.gpus.node_gpus import NodeGpus
from worker.node.enrol import IdentityFile
from worker.preparing.fetching import FetchRate
from worker.ranks.launch import clean_environment, free_port
from worker.scripts.sandbox import SandboxSupport

NO_SANDBOX = SandboxSupport(None, "none can be built")


def start(api: FakeApi, data: Path, *arguments: str, **other: str) -> subprocess.Popen[str]:
    environment = {
        **{name: value for name, value in os.environ.items() if "TRAINYARD" not in name},
        "TRAINYARD_API_URL": api.url,
        "TRAINYARD_REDIS_URL": f"unix://{data}/none.sock?db=0",
        "TRAINYARD_DATA": str(data),
        "TRAINYARD_WARM_LAUNCHER": "false",
        **other,
    }
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "worker.main", *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_a_node_enrols_once_and_is_known_afterwards(api: FakeApi, tmp_path: Path) -> None:
    data = tmp_path / "node"
    for arguments in (("--enrol", ENROL_TOKEN), ()):
        heard = len(api.heartbeats)
        worker = start(api, data, *arguments)
        api.wait_for(lambda heard=heard: len(api.heartbeats) > heard)  # type: ignore[misc]
        worker.terminate()
        output, _ = worker.communicate(timeout=30)
        assert worker.returncode == 0, output
    assert len(api.enrolments) == 1
    assert api.enrolments[0].inventory.cores >= 1
    identity = IdentityFile.model_validate_json((data / "identity.json").read_bytes())
    assert identity.name == "n1"
    assert stat.S_IMODE((data / "identity.json").stat().st_mode) == 0o600


def test_a_token_that_is_refused_is_said_plainly(api: FakeApi, tmp_path: Path) -> None:
    worker = start(api, tmp_path / "node", TRAINYARD_ENROL_TOKEN="x" * 24)
    output, _ = worker.communicate(timeout=30)
    assert worker.returncode == 1
    assert "The API refused the enrolment token (unknown token)." in output
    assert not (tmp_path / "node" / "identity.json").exists()


def test_a_node_without_identity_and_token_says_what_to_do(api: FakeApi, tmp_path: Path) -> None:
    worker = start(api, tmp_path / "node")
    output, _ = worker.communicate(timeout=30)
    assert worker.returncode == 1
    assert "trainyard admin enrol" in output


@pytest.mark.slow
def test_a_node_waits_for_an_api_that_is_not_there_yet(api: FakeApi, tmp_path: Path) -> None:
    api.down = True
    worker = start(api, tmp_path / "node", "--enrol", ENROL_TOKEN)
    assert worker.stdout is not None
    assert "api_unreachable" in worker.stdout.readline()
    api.down = False
    api.wait_for(lambda: api.heartbeats)
    worker.terminate()
    worker.communicate(timeout=90)
    assert worker.returncode == 0


def test_missing_settings_are_named(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if "TRAINYARD" not in name}
    done = subprocess.run(
        [sys.executable, "-P", "-m", "worker.main"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2
    assert "api_url" in done.stderr


def test_the_inventory_counts_cores_unless_told(tmp_path: Path) -> None:
    inventory = take_inventory([], None, NO_SANDBOX)
    assert inventory.slots == inventory.cores
    assert inventory.memory_gib > 0.1
    assert inventory.torch
    assert take_inventory([], 7, NO_SANDBOX).slots == 7
    assert inventory.job_memory_gib is None
    assert "job_memory_gib" not in inventory.model_dump()  # an older API refuses what it never knew
    limited = take_inventory([], None, NO_SANDBOX, job_memory_bytes=3 << 29)
    assert limited.job_memory_gib == 1.5
    gpus = NodeGpus(tmp_path / "gpus.json", limit=None, wake=lambda: None)
    source = TelemetrySource(tmp_path, gpus, FetchRate())
    telemetry = source.measure()
    gpus.close()
    assert 0 <= telemetry.cpu_pct <= 100 * os.cpu_count()  # type: ignore[operator]
    assert telemetry.disk_free_gib > 0


def test_a_training_inherits_no_secret() -> None:
    given = {
        "PATH": "/bin",
        "HOME": "/root",
        "TRAINYARD_REDIS_URL": "redis://:secret@host",
        "TRAINYARD_ENROL_TOKEN": "secret",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "NCCL_DEBUG": "INFO",
        "LD_PRELOAD": "/x.so",
    }
    assert clean_environment(given) == {
        "PATH": "/bin",
        "HOME": "/root",
        "NCCL_DEBUG": "INFO",
        "PYTHONSAFEPATH": "1",
    }


def test_ports_are_not_those_that_clients_are_given() -> None:
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    ports = {free_port() for _ in range(20)}
    assert len(ports) > 1
    assert not any(low <= port <= high for port in ports)
