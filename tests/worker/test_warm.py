"""The warm process on nodes with GPUs: what it proves before it forks, and what its ranks see."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from core.spec.spec import Launcher
from core.states import Outcome
from strategies.plan.hardware import Hardware
from strategies.plan.run_directory import RunDirectory
from tests.worker.fake_api import FakeApi
from tests.worker.gpu_nodes import GpuNode, uuid_of
from tests.worker.nodes import TREE, Node, make_order
from worker.agent import spawners as spawning
from worker.agent.spawners import (
    CODE_CHECK_AT_START_S,
    MAX_WARM_SPAWNS,
    SWITCHED_OFF,
    Spawners,
)
from worker.preparing import cache
from worker.warm import ForkRisk, driver_is_initialised

A100X4 = Hardware(
    class_name="a100x4", device="cuda", slots=4, memory_gib=39.6, model="NVIDIA A100-SXM4-40GB"
)
STUB = """
static int ready;
int cuInit(unsigned flags) { ready = 1; return 0; }
int cuDeviceGetCount(int *count) { *count = 4; return ready ? 0 : 3; }
"""
ASK = """
import ctypes, sys
from worker.warm import fork_risk
driver = ctypes.CDLL(sys.argv[1])
before = fork_risk()
driver.cuInit(0)
print(before, repr(fork_risk()))
"""


def test_ranks_on_gpus_are_forked_and_see_only_their_own(api: FakeApi, gpu_node: GpuNode) -> None:
    node = gpu_node
    node.start()
    key = api.order(make_order(hardware=A100X4, slots=[2, 3], launcher=Launcher.AUTO))
    assert api.wait_for_exit(key).outcome is Outcome.SUCCEEDED
    observed = api.observed(key)
    assert observed is not None
    assert observed.launcher is Launcher.WARM
    assert seen_by_ranks(node.attempt(key)) == [f"{uuid_of(2)},{uuid_of(3)}"] * 2


def test_ranks_on_the_cpu_of_a_gpu_node_see_no_gpu(api: FakeApi, gpu_node: GpuNode) -> None:
    gpu_node.start()
    key = api.order(make_order(slots=[2, 3], steps=5))
    assert api.wait_for_exit(key).outcome is Outcome.SUCCEEDED
    assert seen_by_ranks(gpu_node.attempt(key)) == ["", ""]


@pytest.mark.slow
def test_a_warm_process_that_may_have_used_cuda_forks_nothing_and_the_job_is_told(
    api: FakeApi, node: Node
) -> None:
    node.start(trainer="cuda_trainer")
    key = api.order(make_order(ranks=1, steps=2, launcher=Launcher.AUTO))
    assert api.wait_for_exit(key).outcome is Outcome.SUCCEEDED, node.log.read_text()
    observed = api.observed(key)
    assert observed is not None
    assert observed.launcher is Launcher.TORCHRUN
    told = (node.attempt(key).launcher_logs / "stderr.log").read_text()
    assert f"torchrun starts the ranks: {ForkRisk.CUDA.sentence}." in told
    assert ForkRisk.CUDA.sentence in node.log.read_text()


def test_the_driver_itself_says_whether_it_was_initialised(tmp_path: Path) -> None:
    """torch's CUDA builds load it when they are imported; only cuInit makes a fork unsafe."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler for a stand-in of the driver")
    library, source = tmp_path / "libcuda.so.1", tmp_path / "stub.c"
    source.write_text(STUB)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    found = subprocess.run(
        [sys.executable, "-c", ASK, library], cwd=TREE, capture_output=True, text=True, check=True
    )
    assert found.stdout == f"None {ForkRisk.CUDA!r}\n"


@pytest.mark.parametrize(
    ("libraries", "may_be"),
    [
        (["/lib/libc.so.6", "/venv/nvidia/libcudart.so.13", "/venv/torch/libtorch_cuda.so"], False),
        (["/lib/libc.so.6", "/nowhere/libcuda.so.580.65.06"], True),  # it cannot be asked
    ],
)
def test_a_driver_that_is_not_loaded_was_not_initialised(
    tmp_path: Path, libraries: list[str], may_be: bool
) -> None:
    maps = tmp_path / "maps"
    lines = [f"7f00-7f01 r-xp 00000000 fd:00 4242    {path}\n" for path in libraries]
    maps.write_text("".join([*lines, "7ffe-7fff rw-p 00000000 00:00 0\n"]))
    assert driver_is_initialised(maps) is may_be


@pytest.mark.slow
def test_torchrun_takes_the_place_of_a_warm_process_that_cannot_fork() -> None:
    off = Spawners("fake_trainer", warm_allowed=False)
    try:
        assert off.choose(Launcher.AUTO, spawns=0) == (Launcher.TORCHRUN, SWITCHED_OFF)
        assert off.choose(Launcher.TORCHRUN, spawns=0) == (Launcher.TORCHRUN, "")
    finally:
        off.close()
    silent = Spawners("fake_trainer", warm_allowed=True)
    try:
        launcher, reason = silent.choose(Launcher.AUTO, spawns=MAX_WARM_SPAWNS)
        assert launcher is Launcher.TORCHRUN
        assert "started no rank" in reason
    finally:
        silent.close()


@pytest.mark.slow
def test_both_processes_rest_while_no_attempt_comes(tmp_path: Path) -> None:
    both = (Launcher.WARM, Launcher.TORCHRUN)
    spawners = Spawners("fake_trainer", warm_allowed=True, rest_after_s=60)
    try:
        spawners.keep_ready()
        assert all(spawners.is_running(one) for one in both)
        spawners.wanted_at -= 61
        spawners.keep_ready()
        assert not any(spawners.is_running(one) for one in both)
        assert spawners.choose(Launcher.AUTO, spawns=0) == (Launcher.WARM, "")
        assert spawners.is_running(Launcher.WARM)
        spawners.wanted_at -= 61
        spawners.keep_ready()
        assert spawners.spawn(tmp_path, Launcher.TORCHRUN)
        assert all(spawners.is_running(one) for one in both)
    finally:
        spawners.close()


@pytest.mark.slow  # two processes that import torch
def test_an_attempt_after_a_change_of_the_code_gets_a_new_warm_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    code = iter(["old", "new"])
    monkeypatch.setattr(spawning, "fingerprint", lambda: next(code))
    spawners = Spawners("fake_trainer", warm_allowed=True)
    try:
        spawners.keep_ready()
        old = spawners.warm.process
        spawners.code_checked_at -= CODE_CHECK_AT_START_S + 1
        spawners.keep_ready()  # no attempt comes: no look yet
        assert spawners.warm.process is old
        assert spawners.choose(Launcher.AUTO, spawns=0) == (Launcher.WARM, "")
        assert spawners.warm.process is not old
    finally:
        spawners.close()


def test_compiled_kernels_are_kept_while_a_training_is_here_and_trimmed_as_datasets_are(
    api: FakeApi, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "SETTLED_S", -1.0)
    node.start()
    key = api.order(make_order(steps=5000))
    api.wait_for_step(key, 1)
    kernels = node.folder.kernels
    (kernels / "triton").mkdir()
    (kernels / "triton" / "kernel.cubin").write_bytes(bytes(1000))
    cache.trim(node.folder, max_bytes=0)
    assert kernels.exists(), "a rank may be compiling"
    del api.orders[key]
    api.wait_for_exit(key)
    cache.trim(node.folder, max_bytes=0)
    assert not kernels.exists()


def seen_by_ranks(directory: RunDirectory) -> list[str]:
    return [(directory.path / f"rank-{rank}.devices").read_text() for rank in range(2)]
