"""The demo on a node of four A100: everything of the platform is real but the GPUs themselves."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml

from standalone.demo import EXAMPLE
from tests.running import Running, running_platform, wait_for
from tests.spine.jobs import attempts, get, spec, submit, wait_for_end
from tests.worker.gpu_nodes import A100, DOUBLE, a100, foreign_process, uuid_of, write_script
from tests.worker.nodes import HERE, TREE

pytestmark = [pytest.mark.gloo, pytest.mark.slow]
STEPS = 20


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What NVML shows: four GPUs, until a test says otherwise."""
    path = tmp_path_factory.mktemp("nvml") / "nvml.json"
    write_script(path, *(a100(number) for number in range(4)))
    return path


@pytest.fixture(scope="module")
def platform(script: Path) -> Iterator[Running]:
    folders = (DOUBLE, HERE, TREE, TREE / "client")
    environment = {
        "PYTHONPATH": os.pathsep.join(map(str, folders)),
        "TRAINYARD_TEST_NVML": str(script),
        "TRAINYARD_TEST_TORCH": "{}",
    }
    up = [sys.executable, "-P", str(Path(__file__).parent / "gpu_platform.py")]
    with running_platform(environment, up) as running:
        yield running


@pytest.fixture
def client(platform: Running) -> Iterator[httpx2.Client]:
    with platform.http() as http:
        yield http


@pytest.fixture
def bystander() -> Iterator[int]:
    with foreign_process() as process:
        yield process.pid


def gpus(client: httpx2.Client) -> list[dict[str, Any]]:
    [node] = client.get("/v1/nodes").raise_for_status().json()["data"]
    return list(node["inventory"]["gpus"])


def given(platform: Running, job: str, ranks: int) -> list[str]:
    """The GPUs that each rank of a job's first attempt was given."""
    return [(platform.data.node / f"{job}.1-{rank}.devices").read_text() for rank in range(ranks)]


def test_the_demo_takes_the_four_gpus_of_its_node(platform: Running, client: httpx2.Client) -> None:
    assert [(gpu["uuid"], gpu["name"], gpu["health"]) for gpu in gpus(client)] == [
        (uuid_of(number), A100, "healthy") for number in range(4)
    ]
    demo = yaml.safe_load(EXAMPLE.read_text())
    demo["training"]["steps"], demo["checkpoint"]["every_steps"] = STEPS, STEPS // 2
    job = submit(client, demo)
    ended = wait_for_end(client, job)
    assert (ended["state"], ended["step"]) == ("succeeded", STEPS), ended["reason"]
    assert ended["result"]["loss_last"] < ended["result"]["loss_first"]
    plan = ended["plan"]
    assert (plan["device"], plan["ranks_per_node"]) == ("cuda", 4)
    assert given(platform, job, 4) == [",".join(uuid_of(number) for number in range(4))] * 4
    saved = client.get(f"/v1/jobs/{job}/checkpoints").raise_for_status().json()["data"]
    assert [one["step"] for one in saved] == [STEPS, STEPS // 2]


def test_a_gpu_that_somebody_else_uses_is_left_out_and_comes_back(
    platform: Running, client: httpx2.Client, script: Path, bystander: int
) -> None:
    busy = a100(2, processes=[[bystander, 7.5]])
    write_script(script, a100(0), a100(1), busy, a100(3))
    wait_for(lambda: gpus(client)[2]["health"] == "occupied", what="the foreign process")
    assert gpus(client)[2]["reason"].startswith(f"Process {bystander} (python")
    whole = submit(client, spec(steps=STEPS, ranks=4))
    part = submit(client, spec(steps=STEPS, ranks=2))
    assert wait_for_end(client, part)["state"] == "succeeded"
    assert uuid_of(2) not in given(platform, part, 1)[0]
    waiting = get(client, whole)
    assert waiting["state"] == "queued"
    assert "GPU 2" in waiting["reason"]
    write_script(script, *(a100(number) for number in range(4)))
    ended = wait_for_end(client, whole)
    assert (ended["state"], len(attempts(client, whole))) == ("succeeded", 1), ended["reason"]
