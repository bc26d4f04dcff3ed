"""A job that fills the memory is ended at its bound, is told so, and takes nobody along."""

import os
import re
import shutil
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest

from core.spec.spec import Launcher
from core.states import Desired, JobState, Outcome, job_after
from core.wire.messages import ExitRecord
from tests.worker.fake_api import FakeApi
from tests.worker.nodes import Node, make_order
from tests.worker.script_orders import output_of, script_order
from worker.node.memory import GIB, MIB, Machine
from worker.node.process_tree import attempts_of_processes
from worker.scripts.sandbox import Level, why_not

BOUND = 0.3  # GiB
# Without end, but for what this machine may need itself.
FILLS = "held = []\nfor _ in range(750):\n    held.append(b'x' * (4 << 20))\n"
IN_A_CHILD = f"""
import subprocess, sys, time
child = subprocess.run([sys.executable, "-c", {FILLS!r}])
print("the child ended with", child.returncode, flush=True)
time.sleep(600)
"""
OF_PYTHONS_OWN = "def load():\n    return bytearray(1 << 60)\nload()\n"
HIDE_CGROUPS = ("unshare", "--mount", "sh", "-c",
                'umount -l -R /sys/fs/cgroup && exec "$@"', "sh")  # fmt: skip
USED = re.compile(r"it used ([\d.,]+) of ([\d.,]+) MiB")


@pytest.fixture(params=["cgroups", "counted"])
def start(request: pytest.FixtureRequest, node: Node) -> Callable[..., None]:
    """Starts the worker with a small bound, held by cgroups or by the shim's own counting."""
    without = request.param == "counted"
    if without and (os.geteuid() != 0 or shutil.which("unshare") is None):
        pytest.skip("only root can hide this machine's cgroups from a worker")

    def started(**settings: str) -> None:
        within = HIDE_CGROUPS if without else ()
        node.start(within=within, TRAINYARD_JOB_MEMORY_GIB=str(BOUND), **settings)

    return started


def ended(api: FakeApi, node: Node, record: ExitRecord) -> None:
    """It ran out of memory, was told how much it had, and nothing of it is left."""
    said = (node.log.read_text()[-2000:], output_of(api))
    assert record.outcome is Outcome.OUT_OF_MEMORY, (record, *said)
    found = USED.search(record.reason)
    assert found is not None, record
    used, bound = (float(number.replace(",", "")) for number in found.groups())
    assert bound == pytest.approx(BOUND * 1024, abs=0.1)
    # Counted by the shim it may get further between two looks; cgroups let nobody further.
    assert 0.9 * bound < used < 8 * bound, record
    assert not [pid for pid, _ in attempts_of_processes(node.folder.attempts) if is_rank(pid)]


def is_rank(pid: int) -> bool:
    """Whether it would be chosen before the platform's processes; a shim is one of these."""
    try:
        return Path(f"/proc/{pid}/oom_score_adj").read_text().strip() == "1000"
    except OSError:
        return False


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(FILLS, id="itself", marks=pytest.mark.slow),
        pytest.param(IN_A_CHILD, id="in a child"),
    ],
)
def test_a_script_that_fills_the_memory_is_ended_at_its_bound(
    api: FakeApi, node: Node, start: Callable[..., None], source: str
) -> None:
    start()
    record = api.wait_for_exit(api.order(script_order(api, source)))
    ended(api, node, record)
    assert "Keep less in memory at a time, or use a node with more memory." in record.reason


@pytest.mark.slow
@pytest.mark.parametrize("level", Level, ids=str)
def test_it_is_ended_in_either_sandbox(
    api: FakeApi, node: Node, start: Callable[..., None], level: Level
) -> None:
    reason = why_not(level)
    if reason:
        pytest.skip(f"no sandbox of this level here: {reason}")
    start(TRAINYARD_SANDBOX=str(level))
    ended(api, node, api.wait_for_exit(api.order(script_order(api, FILLS))))


@pytest.mark.parametrize(
    "start", ["cgroups", pytest.param("counted", marks=pytest.mark.slow)], indirect=True
)
def test_a_training_that_fills_the_memory_is_told_what_its_plan_had_said(
    api: FakeApi, node: Node, start: Callable[..., None]
) -> None:
    node.behave(fill_memory_at_step=3)
    start()
    order = make_order(launcher=Launcher.WARM)
    record = api.wait_for_exit(api.order(order))
    ended(api, node, record)
    planned = f"{order.plan.needed_gib:.2f} of {order.plan.capacity_gib:.2f} GiB for each rank"
    assert f"The plan expected {planned}" in record.reason
    assert "Use a smaller micro_batch_size" in record.reason


@pytest.mark.slow
def test_memory_that_python_refuses_is_out_of_memory_too(api: FakeApi, node: Node) -> None:
    node.start()
    record = api.wait_for_exit(api.order(script_order(api, OF_PYTHONS_OWN)))
    assert record.outcome is Outcome.OUT_OF_MEMORY, record
    assert "MemoryError" in record.reason


def test_it_is_not_started_again() -> None:
    assert job_after(Outcome.OUT_OF_MEMORY, Desired.RUN, 0) is JobState.FAILED


@pytest.mark.parametrize(
    ("total_gib", "available_gib", "wanted_gib", "bound_mib"),
    [
        (24, 23, None, 22_118),  # a tenth is kept
        (24, 10, None, 9_625),  # what others have, and room for them to grow by
        (24, 23, 18, 18_432),
        (24, 10, 18, 9_625),
        (2, 2, None, 1_536),  # a quarter of a small machine
        (24, 0.5, None, 256),  # it ends at once, and says so
    ],
)
def test_the_bound_leaves_room_for_the_platform_and_its_neighbours(
    total_gib: float, available_gib: float, wanted_gib: float | None, bound_mib: int
) -> None:
    here = Machine(round(total_gib * GIB), round(available_gib * GIB))
    wanted = None if wanted_gib is None else round(wanted_gib * GIB)
    assert here.bound(wanted) // MIB == bound_mib


def test_a_part_of_a_node_has_that_part_of_its_memory() -> None:
    here = Machine(24 * GIB, 23 * GIB)
    assert here.bound(None, Fraction(1, 4)) == int(here.for_jobs / 4)
    assert here.bound(GIB, Fraction(1, 4)) == GIB
    assert here.bound(None, Fraction(1)) == here.bound(None)
