"""What ranks are told of their place: GPUs, global ranks, where all meet, threads, interface."""

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest

from core.spec.spec import Launcher
from core.wire.messages import Fabric, Rendezvous
from worker.agent.spawners import Spawners
from worker.node.attempts import Attempt, StartFile
from worker.preparing.peers import find_peers
from worker.ranks.launch import (
    HUGE_PAGES,
    MASTER,
    TUNABLES,
    TorchrunLauncher,
    meeting_point,
    rank_environment,
)


def start(**changes: object) -> StartFile:
    fields: dict[str, object] = {
        "job_id": "job_a",
        "epoch": 1,
        "node": "n1",
        "trainer": "strategies.train.main",
        "launcher": Launcher.TORCHRUN,
        "ranks": 2,
        "threads": 3,
    }
    return StartFile.model_validate(fields | changes)


SECOND = {
    "nodes": 2,
    "position": 1,
    "rendezvous": Rendezvous(address="10.0.0.1", port=20_000),
    "interface": "eth7",
}


@pytest.fixture
def attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Attempt:
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "NCCL_IB_HCA"):
        monkeypatch.delenv(name, raising=False)
    return Attempt(tmp_path / "job_a.1")


def test_ranks_see_the_gpus_of_their_slots_alone(attempt: Attempt) -> None:
    found = rank_environment(attempt, start(gpus=["GPU-c", "GPU-d"]))
    assert found["CUDA_VISIBLE_DEVICES"] == "GPU-c,GPU-d"
    assert found["OMP_NUM_THREADS"] == "3"
    assert found["KINETO_LOG_LEVEL"] == "6", "the profiler's own lines are not the job's"
    assert rank_environment(attempt, start())["CUDA_VISIBLE_DEVICES"] == "", (
        "none, also where some are"
    )


def test_ranks_and_the_process_that_forks_them_ask_for_huge_pages(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(TUNABLES, raising=False)
    spawners = Spawners("strategies.train.main", warm_allowed=True)
    assert rank_environment(attempt, start())[TUNABLES] == HUGE_PAGES
    assert spawners.warm.environment[TUNABLES] == HUGE_PAGES
    assert TUNABLES not in spawners.plain.environment, "it computes nothing"
    monkeypatch.setenv(TUNABLES, "glibc.malloc.arena_max=2")
    assert rank_environment(attempt, start())[TUNABLES] == "glibc.malloc.arena_max=2"


def test_the_variable_gives_large_allocations_huge_pages() -> None:
    given = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not given.exists() or "[madvise]" not in given.read_text():
        pytest.skip("this kernel gives huge pages to all, or to none")
    if tuple(map(int, os.confstr("CS_GNU_LIBC_VERSION").split()[1].split("."))) < (2, 35):
        pytest.skip("this glibc does not ask for huge pages")
    program = (
        "held = bytearray(1 << 26)\n"
        "held[:] = b'x' * len(held)\n"
        "rollup = open('/proc/self/smaps_rollup').read()\n"
        "print(rollup.split('AnonHugePages:')[1].split()[0])\n"
    )

    def huge_kib(environment: dict[str, str]) -> int:
        command = [sys.executable, "-c", program]
        return int(subprocess.run(command, env=environment, capture_output=True, check=True).stdout)

    assert huge_kib({}) == 0
    assert huge_kib({TUNABLES: HUGE_PAGES}) >= 32 * 1024, "the kernel may lack some of them"


def test_on_one_node_ranks_meet_on_loopback(attempt: Attempt) -> None:
    alone = start()
    assert rank_environment(attempt, alone)["GLOO_SOCKET_IFNAME"] == "lo"
    address, port = meeting_point(alone)
    assert (address, port > 0, list(alone.global_ranks)) == (MASTER, True, [0, 1])


def test_on_the_second_node_ranks_meet_on_the_first(attempt: Attempt) -> None:
    second = start(**SECOND)
    environment = rank_environment(attempt, second)
    assert environment["GLOO_SOCKET_IFNAME"] == "eth7"
    assert environment["NCCL_SOCKET_IFNAME"] == "=eth7"
    assert (list(second.global_ranks), meeting_point(second)) == ([2, 3], ("10.0.0.1", 20_000))
    command = TorchrunLauncher(attempt, second, None).command(*meeting_point(second))
    told = dict(itertools.pairwise(command))
    assert (told["--nnodes"], told["--node-rank"], told["--nproc-per-node"]) == ("2", "1", "2")
    assert (told["--master-addr"], told["--master-port"]) == ("10.0.0.1", "20000")


def test_nccl_uses_the_adapters_of_the_node_class(attempt: Attempt) -> None:
    fabric = Fabric(interface="ib0", adapters="mlx5_0,mlx5_1:1")
    meeting = Rendezvous(address="10.0.0.1", port=20_000, fabric=fabric)
    found = rank_environment(attempt, start(**{**SECOND, "rendezvous": meeting}))
    assert found["NCCL_IB_HCA"] == "=mlx5_0,mlx5_1:1", "these exactly, not mlx5_10 too"
    assert "NCCL_IB_HCA" not in rank_environment(attempt, start())


def test_what_is_set_for_the_machine_holds(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0")
    assert rank_environment(attempt, start(**SECOND))["GLOO_SOCKET_IFNAME"] == "ib0"


def test_a_node_is_reached_where_it_reaches_the_api() -> None:
    assert find_peers("", "http://127.0.0.1:8471").address == "127.0.0.1"
    assert find_peers("", "http://127.0.0.1:8471").interface == "lo"
    assert find_peers("127.0.0.1", "http://nowhere.invalid").interface == "lo"
