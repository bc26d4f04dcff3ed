"""Two owners on one node of two CPU slots: one is hostile, the other loses nothing."""

import json
import os
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from core.spec.spec import Launcher
from core.states import Outcome, Sharing
from tests.worker.fake_api import FakeApi
from tests.worker.nodes import Node, make_order, wait_for
from tests.worker.script_orders import output_of, script_order
from worker.node.attempts import Key
from worker.node.cores import divide
from worker.node.memory import MIB, MemoryWatch
from worker.node.sharing import find_sharing_host

PROGRAM = (Path(__file__).parent / "neighbours.py").read_text()
FORKS = """
import os
children = 0
try:
    while True:
        if os.fork() == 0:
            os.setsid()
            while True:
                pass
        children += 1
except OSError as error:
    print("after", children, error.strerror, flush=True)
"""
FILLS_MEMORY = "held = []\nfor _ in range(750):\n    held.append(b'x' * (4 << 20))\n"
FILLS_SHM = """
with open("/dev/shm/all", "wb") as file:
    for _ in range(4096):
        file.write(bytes(1 << 20))
"""
FILLS_TMP = """
import time
for number in range(10_000):
    with open(f"/tmp/{number}", "wb") as file:
        file.write(bytes(1 << 20))
    time.sleep(0.01)
"""
ATTACKS = {"forks": FORKS, "memory": FILLS_MEMORY, "shm": FILLS_SHM, "tmp": FILLS_TMP}
PROCESSES = 60
HIDE_CPUSET = ("unshare", "--mount", "sh", "-c",
               'umount -l /sys/fs/cgroup/cpuset 2>&-; exec "$@"', "sh")  # fmt: skip
HIDE_CGROUPS = ("unshare", "--mount", "sh", "-c",
                'umount -l -R /sys/fs/cgroup && exec "$@"', "sh")  # fmt: skip
SETTINGS = {
    "TRAINYARD_SLOTS": "2",
    "TRAINYARD_JOB_MEMORY_GIB": "0.3",
    "TRAINYARD_SCRIPT_DISK_GIB": "0.06",
    "TRAINYARD_SCRIPT_PROCESSES": str(PROCESSES),
}


@pytest.fixture
def shared(node: Node) -> Callable[..., None]:
    """Starts a worker of two slots, if this machine has the cores for them."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("two slots need two cores")

    def start(within: tuple[str, ...] = ()) -> None:
        if within and (os.geteuid() != 0 or shutil.which("unshare") is None):
            pytest.skip("only root can take this machine's cgroups away from a worker")
        node.start(within=within, **SETTINGS)

    return start


def full_sharing(api: FakeApi) -> None:
    beat = api.wait_for(api.last)
    if beat.inventory.sharing is not Sharing.FULL:
        pytest.skip(f"this machine cannot keep scripts apart: {beat.inventory.no_sharing}")


def told(api: FakeApi, job: str) -> dict[str, Any]:
    """What a program has found, as it has printed at its end."""
    said = output_of(api, job)
    end = api.exit_of(Key(job, 1))
    assert "{" in said, (said, end and end.reason)
    found: dict[str, Any] = json.JSONDecoder().raw_decode(said, said.index("{"))[0]
    return found


def cpus_of(slot: int) -> list[int]:
    return list(divide(find_sharing_host(Sharing.RECIPES).cores, 2)[slot])


@pytest.mark.parametrize(
    "within",
    [
        pytest.param((), id="cpuset"),
        pytest.param(HIDE_CPUSET, id="affinity", marks=pytest.mark.slow),
    ],
)
def test_a_hostile_neighbour_reads_nothing_and_takes_nothing(
    api: FakeApi, node: Node, shared: Callable[..., None], within: tuple[str, ...]
) -> None:
    shared(within)
    full_sharing(api)
    secret = uuid.uuid4().hex
    kept = api.order(
        script_order(
            api, PROGRAM, "job_kept", arguments=["keep", secret], slots=[0], slots_of_node=2
        )
    )
    port = api.wait_for(lambda: (said := output_of(api, "job_kept")).startswith("port") and said)
    words = ["spy", secret[::-1], port.split()[1]]
    beside: dict[str, Any] = {"slots": [1], "slots_of_node": 2}
    spies = api.order(script_order(api, PROGRAM, "job_spies", arguments=words, **beside))
    attacks = {
        name: api.order(script_order(api, source, f"job_{name}", **beside))
        for name, source in ATTACKS.items()
    }
    ends = {name: api.wait_for_exit(key) for name, key in {**attacks, "spies": spies}.items()}
    (node.attempt(kept).path / "sandbox/run/finish").touch()
    record = api.wait_for_exit(kept)
    assert record.outcome is Outcome.SUCCEEDED, record
    mine, found = told(api, "job_kept"), told(api, "job_spies")
    assert (mine["lost"], mine["asked"]) == ([], 0)
    assert mine["steps"] > 0
    assert (found["read"], found["segments"]) == ([], 0)
    assert (found["others"], found["ports"]) == ([], [])
    assert (mine["cpus"], found["cpus"]) == (cpus_of(0), cpus_of(1))
    denied = "affinity is denied" in output_of(api, "job_spies")
    assert denied or not within
    assert "temporarily unavailable" in output_of(api, "job_forks")
    assert int(output_of(api, "job_forks").split()[1]) <= PROCESSES // 2
    ended = {name: end.outcome for name, end in ends.items()}
    assert ended["memory"] is Outcome.OUT_OF_MEMORY, ends["memory"]
    assert ended["shm"] in (Outcome.OUT_OF_MEMORY, Outcome.USER_ERROR), ends["shm"]
    assert ended["tmp"] is Outcome.USER_ERROR, ends["tmp"]
    assert "0.03 GiB of disk" in ends["tmp"].reason


@pytest.mark.slow
def test_a_script_does_not_start_beside_others_where_its_memory_has_no_limit(
    api: FakeApi, node: Node, shared: Callable[..., None]
) -> None:
    shared(HIDE_CGROUPS)
    inventory = api.wait_for(api.last).inventory
    assert inventory.sharing is Sharing.RECIPES
    assert "no memory cgroup" in inventory.no_sharing
    source = "print('started')"
    part = script_order(api, source, "job_part", slots=[1], slots_of_node=2)
    refused = api.wait_for_exit(api.order(part))
    assert refused.outcome is Outcome.START_FAILED
    assert "no memory cgroup can be made" in refused.reason
    assert "started" not in output_of(api, "job_part")
    alone = api.wait_for_exit(api.order(script_order(api, source, "job_whole", slots=[1])))
    assert alone.outcome is Outcome.SUCCEEDED, alone


def test_a_part_of_a_node_that_cannot_be_divided_any_more_is_not_begun(
    api: FakeApi, node: Node, shared: Callable[..., None]
) -> None:
    shared()
    slots = 1 + (os.cpu_count() or 1)
    record = api.wait_for_exit(api.order(make_order(ranks=1, slots=[0], slots_of_node=slots)))
    assert record.outcome is Outcome.START_FAILED
    assert f"cores cannot be divided among {slots} slots" in record.reason


def affinities(node: Node) -> list[set[int]]:
    """The processors of each thread of the worker."""
    assert node.process is not None
    threads = os.listdir(f"/proc/{node.process.pid}/task")
    return [os.sched_getaffinity(int(thread)) for thread in threads]


@pytest.mark.parametrize(
    "launcher", [Launcher.WARM, pytest.param(Launcher.TORCHRUN, marks=pytest.mark.slow)]
)
def test_a_recipe_stays_on_the_cores_of_its_slots_and_the_worker_leaves_them(
    api: FakeApi, node: Node, shared: Callable[..., None], launcher: Launcher
) -> None:
    shared()
    node.behave(step_s=60)
    order = make_order(ranks=1, launcher=launcher, slots=[1], slots_of_node=2)
    key = api.order(order)
    assert sorted(os.sched_getaffinity(node.rank_pid(key, 0))) == cpus_of(1)
    wait_for(lambda: {*cpus_of(0)} in affinities(node), within_s=20)
    whole = api.order(make_order("job_whole", ranks=1, launcher=launcher, slots=[0]))
    assert os.sched_getaffinity(node.rank_pid(whole, 0)) == os.sched_getaffinity(0)
    start = node.attempt(key).start()
    assert start is not None
    assert (start.threads, start.share is not None) == (1, True)


# ------------------------------------------------------------------------------------------ memory


@pytest.fixture
def quiet_group(tmp_path: Path) -> Path:
    """A cgroup in which nobody was killed."""
    (tmp_path / "memory.events").write_text("low 0\noom 0\noom_kill 0\n")
    return tmp_path


def test_a_neighbour_that_is_killed_for_its_memory_is_not_told_as_one_s_own_end(
    quiet_group: Path,
) -> None:
    since_before_any = -1  # so that the machine has killed somebody since
    alone = MemoryWatch(MIB, None, processes=list, kills_before=since_before_any)
    beside = MemoryWatch(MIB, quiet_group, processes=list, kills_before=since_before_any)
    assert (alone.others_were_killed(), beside.others_were_killed()) == (True, False)
    (quiet_group / "memory.events").write_text("low 0\noom 1\noom_kill 1\n")
    assert beside.others_were_killed()
