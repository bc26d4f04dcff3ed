"""The real worker on a scripted NVML: enrolment, faults of GPUs and drivers, MIG, hand-over."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from core.spec.spec import Launcher
from core.states import GpuHealth, Outcome
from strategies.plan.hardware import Hardware
from strategies.train.trust.visible_gpus import has_kernels
from tests.worker.fake_api import ENROL_TOKEN, FakeApi
from tests.worker.gpu_nodes import A100, DOUBLE, GIB, GpuNode, a100, foreign_process, uuid_of
from tests.worker.nodes import TREE, make_order
from worker.gpus import node_gpus
from worker.gpus.links import Ends, link_groups
from worker.gpus.nvml import Device, Reading
from worker.gpus.readings import throttles
from worker.gpus.slots import assign_slots, merge, permitted

A100X4 = Hardware(class_name="a100x4", device="cuda", slots=4, memory_gib=GIB, model=A100)
OK = "healthy"


@pytest.fixture
def node(gpu_node: GpuNode) -> GpuNode:
    return gpu_node


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    with foreign_process() as process:
        yield process


def devices(*numbers: int) -> list[Device]:
    return [Device(uuid_of(n), A100, GIB, f"00000000:{0x10 + n:02X}:00.0", n) for n in numbers]


def seen_by_ranks(node: GpuNode, path: Path) -> set[str]:
    return {file.read_text() for file in path.glob("rank-*.devices")}


def test_a_node_of_four_gpus_enrols_with_their_uuids_and_runs_ranks_on_them(
    api: FakeApi, node: GpuNode
) -> None:
    node.folder.identity.unlink()
    node.start(TRAINYARD_ENROL_TOKEN=ENROL_TOKEN)
    api.wait_for(api.last)
    told = api.enrolments[0].inventory
    assert [gpu.uuid for gpu in told.gpus] == [uuid_of(n) for n in range(4)]
    assert [(gpu.index, gpu.pci_address[9:11]) for gpu in told.gpus] == [
        (0, "10"), (1, "11"), (2, "12"), (3, "13"),
    ]  # fmt: skip
    assert (told.slots, {gpu.health for gpu in told.gpus}) == (4, {GpuHealth.HEALTHY})
    key = api.order(make_order(hardware=A100X4, slots=[1, 3], launcher=Launcher.AUTO))
    assert api.wait_for_exit(key).outcome is Outcome.SUCCEEDED
    assert seen_by_ranks(node, node.attempt(key).path) == {f"{uuid_of(1)},{uuid_of(3)}"}


def test_a_lost_gpu_is_unfit_and_the_others_go_on_under_their_numbers(
    api: FakeApi, node: GpuNode
) -> None:
    node.start()
    node.wait_for_health(OK, OK, OK, OK)
    node.script(a100(0), a100(1, error="GPU_IS_LOST"), a100(2), a100(3))
    reasons = node.wait_for_health(OK, "lost", OK, OK)
    assert "Xid" in reasons[1]
    assert "reboot" in reasons[1]
    last = api.last()
    assert last is not None
    assert (last.telemetry.gpu_pct[1], last.telemetry.gpu_memory_used_gib[1]) == (None, None)
    assert last.telemetry.gpu_memory_used_gib[0] == pytest.approx(0.4)
    node.script(a100(0), a100(2), a100(3))  # after the driver was loaded again: NVML counts anew
    node.wait_for_health(OK, "lost", OK, OK)
    node.kill()  # a new worker keeps the slots too
    api.heartbeats.clear()
    node.start()
    node.wait_for_health(OK, "lost", OK, OK)
    key = api.order(make_order(hardware=A100X4, slots=[2, 3]))
    assert api.wait_for_exit(key).outcome is Outcome.SUCCEEDED
    assert seen_by_ranks(node, node.attempt(key).path) == {f"{uuid_of(2)},{uuid_of(3)}"}
    node.script(*(a100(number) for number in range(4)))
    node.wait_for_health(OK, OK, OK, OK)


def test_a_driver_mismatch_makes_gpus_unfit_and_no_cpu_node(api: FakeApi, node: GpuNode) -> None:
    node.start(warm=False)
    node.wait_for_health(OK, OK, OK, OK)
    node.script(error="LIB_RM_VERSION_MISMATCH")
    reasons = node.wait_for_health(*["driver"] * 4)
    assert "reload the nvidia kernel modules" in reasons[0]
    node.kill()
    api.heartbeats.clear()
    node.start(warm=False)
    node.wait_for_health(*["driver"] * 4)
    last = api.last()
    assert last is not None
    assert (len(last.inventory.gpus), last.inventory.slots) == (4, 4)


def test_a_node_whose_driver_is_broken_does_not_join_as_a_cpu_node(node: GpuNode) -> None:
    node.script(error="LIB_RM_VERSION_MISMATCH")
    node.start(warm=False)
    assert node.process is not None
    assert node.process.wait(timeout=60) == 1
    assert "driver/library version mismatch" in node.log.read_text()
    assert not node.api.heartbeats


@pytest.mark.parametrize(
    ("fault", "health", "words"),
    [
        ({"remap_pending": 1}, "repair_pending", "reset"),
        ({"remap_failed": 1}, "memory", "exchanged"),
        ({"retired_pending": 1}, "repair_pending", "reboot"),
        ({"ecc": 14}, "memory", "14 uncorrectable errors"),
        ({"mig": []}, "split", "nvidia-smi mig"),
    ],
)
def test_a_gpu_with_broken_memory_is_unfit(
    fault: dict[str, object], health: str, words: str, tmp_path: Path
) -> None:  # fmt: skip
    script = {"gpus": [a100(0), a100(1, **fault)]}
    found = read_script(script, tmp_path)
    assert found[0]["health"] is None
    assert found[1]["health"] == health
    assert words in str(found[1]["reason"])


def read_script(script: dict[str, object], folder: Path) -> list[dict[str, object]]:
    """What worker.gpus.nvml reads, in a process with the double."""
    path = folder / "nvml.json"
    path.write_text(json.dumps(script))
    ask = (
        "import json; from worker.gpus.nvml import Nvml\n"
        "found = Nvml().read().devices\n"
        "print(json.dumps([{'uuid': d.uuid, 'name': d.name, 'gib': d.memory_gib, 'minor': d.minor,"
        " 'health': d.fault and d.fault.health, 'reason': d.fault and d.fault.reason}"
        " for d in found]))"
    )
    here = Path(__file__).parents[1]
    search = os.pathsep.join(map(str, (here / "scripted_nvml", here.parents[1])))
    environment = {**os.environ, "PYTHONPATH": search, "TRAINYARD_TEST_NVML": str(path)}
    done = subprocess.run(
        [sys.executable, "-c", ask], env=environment, capture_output=True, text=True, check=True
    )
    found: list[dict[str, object]] = json.loads(done.stdout)
    return found


def test_instances_of_a_split_gpu_are_slots_of_their_own(api: FakeApi, node: GpuNode) -> None:
    parts = [
        {"uuid": f"MIG-{n}", "name": f"{A100} MIG 3g.20gb", "gib": 19.5, "ids": [n + 1, 0]}
        for n in range(2)
    ]
    node.script(a100(0, busy=12), a100(1, mig=parts, busy=97))
    node.start()
    node.wait_for_health(OK, OK, OK)
    last = api.last()
    assert last is not None
    assert last.telemetry.gpu_pct == [12.0, None, None], "NVML does not report an instance's use"
    told = [(gpu.uuid, gpu.name, gpu.memory_gib) for gpu in last.inventory.gpus]
    assert told[1:] == [(f"MIG-{n}", f"{A100} MIG 3g.20gb", 19.5) for n in range(2)]
    key = api.order(make_order(ranks=1, hardware=A100X4, slots=[2]))
    assert api.wait_for_exit(key).outcome is Outcome.SUCCEEDED
    assert seen_by_ranks(node, node.attempt(key).path) == {"MIG-1"}


# Edge case 50
def test_a_foreign_process_makes_its_gpu_dirty_until_it_ends(
    api: FakeApi, node: GpuNode, bystander: subprocess.Popen[bytes]
) -> None:
    node.script(a100(0), a100(1), a100(2, processes=[[bystander.pid, 30.2]]), a100(3))
    node.start(patience={"worker.gpus.node_gpus.RELEASE_S": 1.0})
    reasons = node.wait_for_health(OK, OK, "occupied", OK)
    for fact in (str(bystander.pid), "user ", "30 GiB"):
        assert fact in reasons[2]
    key = api.order(make_order(hardware=A100X4, slots=[2, 3]))
    record = api.wait_for_exit(key)
    assert record.outcome is Outcome.START_FAILED  # it is tried again elsewhere
    assert record.reason.startswith(f"GPU 2 is not fit for jobs. Process {bystander.pid}")
    key = api.order(make_order("job_b", hardware=A100X4, slots=[0, 1]))
    assert api.wait_for_exit(key).outcome is Outcome.SUCCEEDED
    node.script(*(a100(number) for number in range(4)))
    node.wait_for_health(OK, OK, OK, OK)


def test_memory_that_no_process_explains_makes_a_gpu_dirty(api: FakeApi, node: GpuNode) -> None:
    node.start(warm=False)
    node.wait_for_health(OK, OK, OK, OK)
    node.script(a100(0), a100(1), a100(2), a100(3, used_gib=25.0))
    reasons = node.wait_for_health(OK, OK, OK, "occupied")
    assert "25 GiB of its memory" in reasons[3]
    last = api.last()
    assert last is not None
    assert last.clean, "the node's other GPUs are as they were"


@pytest.mark.slow
def test_processes_of_a_running_job_and_of_a_display_are_not_foreign(
    api: FakeApi, node: GpuNode, bystander: subprocess.Popen[bytes]
) -> None:
    node.start()
    key = api.order(make_order(hardware=A100X4, slots=[0, 1], steps=100_000))
    api.wait_for_step(key, 1)
    ranks = [node.rank_pid(key, rank) for rank in range(2)]
    node.script(
        a100(0, processes=[[ranks[0], 20]]),
        a100(1, processes=[[ranks[1], 20]], used_gib=30.0),
        a100(2, graphics=[[bystander.pid, 3.0]]),
        a100(3, processes=[[bystander.pid, 2.0]]),
    )
    node.wait_for_health(OK, OK, OK, "occupied")


ECC = "CUDA error: uncorrectable ECC error encountered"


def test_a_gpu_that_failed_in_an_attempt_rests_in_the_heartbeat_that_tells_it(
    api: FakeApi, node: GpuNode
) -> None:
    node.behave(start_error=ECC)
    node.start()
    node.wait_for_health(OK, OK, OK, OK)
    record = api.wait_for_exit(api.order(make_order(hardware=A100X4, slots=[1, 2])))
    assert record.outcome is Outcome.GPU_FAILED, record
    told = next(beat for beat in api.heartbeats if any(one.exit for one in beat.attempts))
    health = [gpu.health for gpu in told.inventory.gpus]
    assert sorted(health[1:3]) == ["failed", OK], "the retry is placed on another one"
    assert (health[0], health[3]) == (OK, OK)
    reason = told.inventory.gpus[health.index(GpuHealth.FAILED)].reason
    assert reason.startswith("It failed in attempt 1 of job job_a")
    assert "rests for 10 minutes" in reason
    node.kill()
    api.heartbeats.clear()
    node.start()
    node.wait_for_health(*map(str, health))  # the next worker knows it too


@pytest.mark.parametrize(
    ("is_wrong", "health", "said"),
    [(False, GpuHealth.HEALTHY, ""), (True, GpuHealth.FAILED, "a product of matrices")],
)
def test_a_gpu_that_failed_is_offered_again_after_its_rest_if_it_computes(
    is_wrong: bool, health: GpuHealth, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_gpus.Nvml, "read", lambda _: Reading(devices(0, 1)))
    monkeypatch.setattr(node_gpus, "REST_S", 1e-9)
    monkeypatch.setenv("TRAINYARD_TEST_TORCH", json.dumps({"wrong": is_wrong}))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (DOUBLE, TREE, TREE / "client"))))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    answered = threading.Event()
    gpus = node_gpus.NodeGpus(tmp_path / "gpus.json", limit=None, wake=answered.set)
    gpus.note_failure(uuid_of(1), "attempt 1 of job job_a", seconds_ago=0.0)
    assert [gpu.health for gpu in gpus.look(held=(), roots=())] == [OK, "failed"]
    assert answered.wait(60)
    _, found = gpus.look(held=(), roots=())
    assert found.health is health
    assert said in found.reason


def test_slots_are_offered_only_if_torch_sees_the_gpu(api: FakeApi, node: GpuNode) -> None:
    node.start(warm=False, torch={"unseen": [uuid_of(3)]})
    reasons = node.wait_for_health(OK, OK, OK, "unseen")
    assert "does not see the GPU" in reasons[3]


@pytest.mark.slow
@pytest.mark.skipif(torch.version.cuda is not None, reason="needs a build of torch for CPUs")
def test_an_unknown_gpu_tells_its_measured_speeds(api: FakeApi, node: GpuNode) -> None:
    node.script(a100(0, name="A GPU of tomorrow"), a100(1))
    node.start(warm=False)
    node.wait_for_health(OK, OK)
    last = api.last()
    assert last is not None
    unknown, known = last.inventory.gpus
    assert unknown.speeds is not None
    assert unknown.speeds.source.startswith("measured on this node")
    assert known.speeds is None


def test_with_a_cpu_build_of_torch_no_gpu_is_offered(api: FakeApi, node: GpuNode) -> None:
    node.script(a100(0))
    node.start(warm=False, torch={"version": "2.13.0+cpu", "cuda": None})
    (reason,) = node.wait_for_health("unseen")
    assert "torch 2.13.0+cpu was built without CUDA" in reason
    assert "torch==2.13.0+cu130 --index-url" in reason


def test_with_a_driver_that_is_too_old_for_torch_no_gpu_is_offered(node: GpuNode) -> None:
    node.script(a100(0))
    node.start(
        warm=False,
        torch={"init": "The NVIDIA driver on your system is too old (found version 12040)"},
    )
    (reason,) = node.wait_for_health("driver")
    assert "found version 12040" in reason


def test_the_worker_takes_only_the_gpus_it_is_allowed(api: FakeApi, node: GpuNode) -> None:
    node.start(warm=False, CUDA_VISIBLE_DEVICES="1,3")
    node.wait_for_health(OK, OK)
    node.script(a100(0), a100(2), a100(3))  # number 1 is lost; CUDA's 1 is another GPU now
    node.wait_for_health("lost", OK)
    node.kill()
    api.heartbeats.clear()
    node.start(warm=False, CUDA_VISIBLE_DEVICES="1,3")
    node.wait_for_health("lost", OK)
    last = api.last()
    assert last is not None
    assert [gpu.uuid for gpu in last.inventory.gpus] == [uuid_of(1), uuid_of(3)]


@pytest.mark.parametrize(
    ("allowed", "expected"),
    [
        (None, [0, 1, 2, 3]),
        ("", []),
        ("-1", []),
        ("3,0", [3, 0]),
        (f"{uuid_of(2)}", [2]),
        ("GPU-00000001", [1]),
        ("0,9,1", [0]),  # as in CUDA: nothing after a device that is not there
    ],
)
def test_an_allow_list_is_read_as_cuda_reads_it(allowed: str | None, expected: list[int]) -> None:
    found = permitted(devices(2, 0, 3, 1), allowed)
    assert [one.minor for one in found] == expected


def test_the_setting_limits_the_slots(tmp_path: Path) -> None:
    found = assign_slots(tmp_path / "gpus.json", devices(0, 1, 2, 3), allowed=None, limit=3)
    assert [gpu.minor for gpu in found] == [0, 1, 2]


def test_an_exchanged_gpu_gets_the_slot_of_the_one_in_its_place() -> None:
    known = merge([], devices(0, 1, 2))
    new = Device("GPU-new", A100, GIB, known[1].pci_address, 1)
    assert [gpu.uuid for gpu in merge(known, [*devices(0, 2), new])] == [
        uuid_of(0), "GPU-new", uuid_of(2),
    ]  # fmt: skip
    added = Device("GPU-added", A100, GIB, "00000000:09:00.0", 7)
    assert [gpu.uuid for gpu in merge(known, [added, *devices(0, 2)])] == [
        *(uuid_of(n) for n in range(3)), "GPU-added",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("capability", "built_for", "runs"),
    [
        ((8, 0), ["sm_75", "sm_80"], True),
        ((8, 9), ["sm_80", "sm_90"], True),
        ((7, 0), ["sm_75", "sm_80"], False),
        ((9, 0), ["sm_80"], False),
        ((12, 1), ["sm_80", "compute_120"], True),
        ((10, 3), ["sm_100a"], True),
    ],
)
def test_code_runs_on_its_major_version_and_ptx_on_later_ones(
    capability: tuple[int, int], built_for: list[str], runs: bool
) -> None:
    assert has_kernels(capability, built_for) is runs


def test_telemetry_names_the_reason_of_a_throttle_and_counts_errors_of_links(
    api: FakeApi, node: GpuNode
) -> None:
    errors = {"links": ["00000000:C4:00.0"] * 2, "link_errors": [[1, 0, 2, 0], [0, 0, 0, 4]]}
    node.script(
        a100(0, busy=97, clock=1005, throttled=0x20, celsius=88, lanes=8, replays=5, **errors),
        a100(1),
    )
    node.start(warm=False)
    node.wait_for_health(OK, OK)
    last = api.last()
    assert last is not None
    hot, cool = last.telemetry.gpus
    assert (hot.clock_mhz, hot.max_clock_mhz, hot.throttled) == (1005, 1410, ["thermal slowdown"])
    assert (hot.temperature_c, hot.pcie_width, hot.max_pcie_width) == (88, 8, 16)
    assert (hot.power_w, hot.power_limit_w) == (65.4, 400.0)
    assert (hot.pcie_replays, hot.nvlink_errors) == (5, 7)
    assert (cool.throttled, cool.pcie_replays, cool.nvlink_errors) == ([], 0, None)
    assert last.telemetry.gpu_pct == [97.0, 0.0]


def test_a_general_slowdown_is_named_only_where_nothing_closer_is_known() -> None:
    assert throttles(0x8) == ["hardware slowdown"]
    assert throttles(0x48) == ["hardware thermal slowdown"]


def test_bridges_make_groups_and_a_switch_makes_none(api: FakeApi, node: GpuNode) -> None:
    place = [f"00000000:{0x10 + number:02X}:00.0" for number in range(4)]
    node.script(
        a100(0, links=[place[1].lower()] * 4), a100(1, links=[place[0]] * 4), a100(2), a100(3)
    )
    node.start(warm=False)
    node.wait_for_health(OK, OK, OK, OK)
    last = api.last()
    assert last is not None
    assert [gpu.link_group for gpu in last.inventory.gpus] == [0, 0, None, None]
    chain = [Ends(place[n], frozenset(place[n + 1 : n + 2])) for n in range(3)]
    assert link_groups([*chain, None]) == [0, 0, 0, None]
    switch = frozenset({"00000000:C4:00.0"})
    assert link_groups([Ends(one, switch) for one in place]) == [None] * 4


def test_uvm_is_loaded_once_by_nvidia_s_own_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sandboxed program may not, and a headless machine has it only after the first use."""
    device, program = tmp_path / "nvidia-uvm", tmp_path / "nvidia-modprobe"
    program.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\ntouch {device}\n')
    program.chmod(0o755)
    monkeypatch.setattr(node_gpus, "UVM", device)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for _ in range(2):
        node_gpus.load_uvm()
    assert (tmp_path / "asked").read_text() == "-u -c=0\n"
