"""A node finds out by trying which owners it can keep apart, and divides its cores among slots."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.states import Sharing
from tests.running import wait_for
from tests.worker.nodes import TREE
from worker.agent.own_cores import left_by
from worker.node.attempts import Share
from worker.node.cores import Core, divide, numa_of, read_cores
from worker.node.process_tree import Cgroup, group_of
from worker.node.resource_limits import ResourceLimits
from worker.node.sharing import SharingHost, judge_sharing

FOUR = tuple(Core((cpu,)) for cpu in range(4))
PROBE = """
import json
from core.states import Sharing
from worker.agent.own_cores import left_by
from worker.node.sharing import find_sharing_host
print(json.dumps(find_sharing_host(Sharing.FULL).bounds_memory))
"""
HIDE_CGROUPS = ("unshare", "--mount", "sh", "-c",
                'umount -l -R /sys/fs/cgroup && exec "$@"', "sh")  # fmt: skip
READ_ONLY = ("unshare", "--mount", "sh", "-c",
             'for at in /sys/fs/cgroup/* /sys/fs/cgroup; do mount -o remount,bind,ro $at 2>&-; '
             'done; exec "$@"', "sh")  # fmt: skip


# ------------------------------------------------------------------------------------------- cores


@given(
    cores=st.integers(1, 40),
    threads=st.sampled_from([1, 2]),
    slots=st.integers(1, 9),
    near=st.lists(st.sampled_from([None, 0, 1]), max_size=9),
)
def test_every_slot_gets_as_many_whole_cores_that_no_other_has(
    cores: int, threads: int, slots: int, near: list[int | None]
) -> None:
    machine = [
        Core(tuple(core + cores * thread for thread in range(threads)), numa=core * 2 // cores)
        for core in range(cores)
    ]
    shares = divide(machine, slots, near)
    if cores < slots:
        assert shares == []
        return
    given_out = [cpu for share in shares for cpu in share]
    assert len(given_out) == len(set(given_out))
    assert len({len(share) for share in shares}) == 1
    for core in machine:
        assert len({index for index, share in enumerate(shares) if set(core.cpus) & {*share}}) <= 1
    left = cores - len(given_out) // threads
    assert left >= (1 if cores >= 2 * slots else 0)
    assert left < slots + 1


def test_cores_of_a_slot_are_near_its_gpu() -> None:
    machine = [Core((core,), numa=core // 8) for core in range(16)]
    shares = divide(machine, 4, [1, 0, 1, 0])
    assert [{machine[cpu].numa for cpu in share} for share in shares] == [{1}, {0}, {1}, {0}]
    assert not any(0 in share for share in shares)  # the platform's


def test_hyperthreads_and_numa_nodes_are_read_from_the_kernel(tmp_path: Path) -> None:
    for cpu in range(4):
        topology = tmp_path / f"cpu{cpu}/topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(f"{cpu % 2},{cpu % 2 + 2}\n")
        (tmp_path / f"cpu{cpu}/node{cpu % 2}").mkdir()
    assert read_cores({0, 1, 2, 3}, tmp_path) == [Core((0, 2), 0), Core((1, 3), 1)]
    assert read_cores({1, 2, 7}, tmp_path) == [Core((1,), 1), Core((2,), 0), Core((7,), 0)]
    here = read_cores(os.sched_getaffinity(0))
    assert sorted(cpu for core in here for cpu in core.cpus) == sorted(os.sched_getaffinity(0))


def test_a_gpu_s_numa_node_is_found_by_its_address(tmp_path: Path) -> None:
    for name, text in (("0000:3b:00.0", "1\n"), ("0000:86:00.0", "-1\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "numa_node").write_text(text)
    addresses = ("00000000:3B:00.0", "00000000:86:00.0", "00000000:AF:00.0", "")
    assert [numa_of(each, tmp_path) for each in addresses] == [1, None, None, None]


def test_the_worker_works_where_no_share_is_and_anywhere_if_all_is_shared() -> None:
    shares = [Share(cpus=cpus, slots=1, slots_of_node=2) for cpus in ([1, 2], [3])]
    assert left_by(shares, range(5)) == {0, 4}
    assert left_by(shares[:1], range(5)) == {0, 3, 4}
    assert left_by([], range(5)) == {0, 1, 2, 3, 4}
    assert left_by(shares, [1, 2, 3]) == {1, 2, 3}


# ------------------------------------------------------------------------------------- what it can


@pytest.mark.parametrize(
    ("host", "slots", "no_sandbox", "instances", "sharing", "said"),
    [
        (SharingHost(FOUR, True), 4, "", False, Sharing.FULL, ""),
        (SharingHost(FOUR, True), 1, "", False, Sharing.NONE, "it has one slot"),
        (SharingHost(FOUR, True), 5, "", False, Sharing.NONE, "4 cores cannot be divided among 5"),
        (SharingHost(FOUR, False), 2, "", False, Sharing.RECIPES, "no memory cgroup can be made"),
        (SharingHost(FOUR, True), 2, "no bwrap", False, Sharing.RECIPES, "no sandbox: no bwrap"),
        (SharingHost(FOUR, True), 2, "", True, Sharing.RECIPES, "MIG mode have one device file"),
    ],
)
def test_a_node_shares_what_it_can_keep_apart_and_says_why_not_more(
    host: SharingHost, slots: int, no_sandbox: str, instances: bool, sharing: Sharing, said: str
) -> None:
    found = judge_sharing(host, slots=slots, no_sandbox=no_sandbox, has_instances=instances)
    assert found.sharing is sharing
    assert said in found.reason
    assert bool(found.reason) is (sharing is not Sharing.FULL)


@pytest.mark.parametrize("able", [SharingHost(FOUR, True), SharingHost(FOUR, False)])
def test_an_administrator_lowers_it_and_never_raises_it(able: SharingHost) -> None:
    order = list(Sharing)
    own = judge_sharing(able, slots=2, no_sandbox="", has_instances=False)
    for most in Sharing:
        host = SharingHost(able.cores, able.bounds_memory, most)
        found = judge_sharing(host, slots=2, no_sandbox="", has_instances=False)
        assert order.index(found.sharing) == min(order.index(most), order.index(own.sharing))


def probed(within: Sequence[str] = ()) -> bool:
    done = subprocess.run(
        [*within, sys.executable, "-P", "-c", PROBE],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (TREE, TREE / "client")))},
        capture_output=True,
        text=True,
        check=True,
    )
    return bool(json.loads(done.stdout))


def groups() -> set[Path]:
    """Groups of probes. Workers that other tests start make one, too, and remove it at once."""
    folders = os.walk("/sys/fs/cgroup")  # which leaves out what is gone
    return {
        Path(folder, name) for folder, names, _ in folders for name in names if name == "probe.1"
    }


@pytest.mark.parametrize("within", [HIDE_CGROUPS, READ_ONLY], ids=["hidden", "read-only"])
def test_a_memory_cgroup_is_tried_out_and_leaves_nothing_behind(within: Sequence[str]) -> None:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("only root can take this machine's cgroups away from a worker")
    if not probed():
        pytest.skip("this machine lets nobody make a memory cgroup")
    assert not probed(within)
    wait_for(lambda: not groups(), what="the group of the probe to be removed")


# ------------------------------------------------------------------------- cgroups of version 2


def fake_v2(tmp_path: Path) -> ResourceLimits:
    """The limits of an attempt in a tree that looks like version 2; the kernel is not asked."""
    attempt = tmp_path / "attempts" / "job_a.1"
    cgroup = Cgroup(tmp_path / "cgroups" / group_of(attempt))
    cgroup.ranks.mkdir(parents=True)
    return ResourceLimits(attempt, cgroup, 1000, 5000, processes=7, cpus=[2, 3, 6])


def test_limits_of_version_2_are_those_of_the_share(tmp_path: Path) -> None:
    limits = fake_v2(tmp_path)
    limits.set()
    assert limits.cgroup is not None
    ranks, node = limits.cgroup.ranks, limits.cgroup.path.parent
    written = {name: (ranks / name).read_text() for name in ("memory.max", "pids.max")}
    assert written == {"memory.max": "1000", "pids.max": "7"}
    assert (ranks / "cpuset.cpus").read_text() == "2,3,6"
    assert (node / "memory.max").read_text() == "5000"
    assert limits.may_set_affinity


def test_a_whole_node_is_confined_to_nothing(tmp_path: Path) -> None:
    limits = fake_v2(tmp_path)
    limits.cpus = ()
    before = os.sched_getaffinity(0)
    limits.set()
    limits.keep_apart(strictly=True)
    assert os.sched_getaffinity(0) == before
    assert "cpuset" not in limits.bounded
    assert limits.may_set_affinity
