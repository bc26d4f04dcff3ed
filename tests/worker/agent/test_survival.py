"""What is killed, and what goes on: worker, shim, torchrun, rank, node."""

import os
import signal

import psutil
import pytest

from core.spec.spec import Launcher
from core.states import Outcome
from tests.worker.fake_api import FakeApi
from tests.worker.nodes import Node, gone, make_order, wait_for
from worker.node.memory import own_groups
from worker.node.process_tree import group_of

either_launcher = pytest.mark.parametrize(
    "launcher", [Launcher.WARM, pytest.param(Launcher.TORCHRUN, marks=pytest.mark.slow)]
)


@either_launcher
def test_kill_9_of_the_worker_leaves_the_ranks_alone_and_the_next_one_adopts_them(
    api: FakeApi, node: Node, launcher: Launcher
) -> None:
    node.behave(step_s=0.05, hold_after_step=90)
    key = api.order(make_order(steps=100, launcher=launcher))
    node.start()
    api.wait_for_step(key, 10)
    ranks = [node.rank_pid(key, rank) for rank in (0, 1)]
    before = node.processes(key)
    assert before >= set(ranks)
    node.kill()
    wait_for(lambda: node.attempt(key).last_step() == 90)
    node.start()
    api.wait_for_step(key, 90)
    assert node.processes(key) == before
    node.let_go_on()
    record = api.wait_for_exit(key)
    assert record.outcome is Outcome.SUCCEEDED, record
    assert [node.rank_pid(key, rank) for rank in (0, 1)] == ranks
    assert api.steps(key) == list(range(1, 101))


@pytest.mark.slow
def test_what_happened_while_no_worker_was_there_is_reported_as_it_was(
    api: FakeApi, node: Node
) -> None:
    node.behave(step_s=0.05, fail={"rank": 1, "step": 30, "kind": "exit"})
    key = api.order(make_order(steps=100))
    node.start()
    api.wait_for_step(key, 5)
    node.kill()
    wait_for(node.attempt(key).exit.exists)
    node.start()
    record = api.wait_for_exit(key)
    assert record.outcome is Outcome.USER_ERROR
    assert (record.culprit_rank, record.code) == (1, 7)
    assert record.reason.startswith("Rank 1 on n1 failed with exit code 7 at step ")
    assert api.steps(key) == list(range(1, len(api.steps(key)) + 1))


@either_launcher
def test_kill_9_of_the_shim_ends_the_ranks_too(
    api: FakeApi, node: Node, launcher: Launcher
) -> None:
    node.behave(step_s=0.05, ignore_sigterm=True, ignore_peers=True)
    key = api.order(make_order(steps=10_000, launcher=launcher))
    node.start()
    api.wait_for_step(key, 5)
    pids = node.processes(key)
    name = group_of(node.attempt(key).path)
    groups = {place / name for part in ("memory", "pids") for place in own_groups(part)}
    os.kill(node.shim_pid(key), signal.SIGKILL)
    record = api.wait_for_exit(key)
    assert record.outcome is Outcome.SHIM_LOST
    assert all(gone(pid) for pid in pids)
    assert node.processes(key) == set()
    assert not [group for group in groups if group.exists()], "its cgroups have gone with it"


@pytest.mark.slow
def test_kill_9_of_the_shim_while_no_worker_is_there_is_found_out_later(
    api: FakeApi, node: Node
) -> None:
    node.behave(step_s=0.05)
    key = api.order(make_order(steps=10_000))
    node.start()
    api.wait_for_step(key, 5)
    ranks = [node.rank_pid(key, rank) for rank in (0, 1)]
    node.kill()
    os.kill(node.shim_pid(key), signal.SIGKILL)
    wait_for(lambda: all(gone(pid) for pid in ranks))  # by the kernel: nobody else is there
    node.start()
    assert api.wait_for_exit(key).outcome is Outcome.SHIM_LOST


@pytest.mark.slow
def test_kill_9_of_torchrun_leaves_no_rank_behind(api: FakeApi, node: Node) -> None:
    node.behave(step_s=0.05, ignore_sigterm=True)
    key = api.order(make_order(steps=10_000, launcher=Launcher.TORCHRUN))
    node.start()
    api.wait_for_step(key, 5)
    pids = node.trainers(key)
    torchrun = psutil.Process(node.shim_pid(key)).children()[0]
    assert "torch.distributed.run" in torchrun.cmdline()
    torchrun.kill()
    record = api.wait_for_exit(key)
    assert record.outcome is Outcome.KILLED
    assert record.signal == 9
    assert record.reason.startswith("The launcher on n1 was killed by signal 9 (SIGKILL) at step ")
    assert all(gone(pid) for pid in pids)


@either_launcher
def test_kill_9_of_a_rank_names_the_rank_and_the_signal(
    api: FakeApi, node: Node, launcher: Launcher
) -> None:
    node.behave(step_s=0.05)
    key = api.order(make_order(steps=10_000, launcher=launcher))
    node.start()
    api.wait_for_step(key, 5)
    pids = node.trainers(key)
    os.kill(node.rank_pid(key, 1), signal.SIGKILL)
    record = api.wait_for_exit(key)
    assert (record.outcome, record.culprit_rank, record.signal) == (Outcome.KILLED, 1, 9), record
    step = api.steps(key)[-1]
    assert record.reason == f"Rank 1 on n1 was killed by signal 9 (SIGKILL) at step {step}."
    assert all(gone(pid) for pid in pids)


@pytest.mark.slow  # torchrun waits for it
def test_a_rank_that_fails_while_the_other_ignores_sigterm_ends_in_seconds(
    api: FakeApi, node: Node
) -> None:
    node.behave(
        step_s=0.05,
        ignore_sigterm=True,
        ignore_peers=True,
        fail={"rank": 1, "step": 10, "kind": "exception"},
    )
    key = api.order(make_order(steps=10_000, launcher=Launcher.TORCHRUN))
    node.start()
    record = api.wait_for_exit(key, within_s=45)
    assert (record.outcome, record.culprit_rank) == (Outcome.USER_ERROR, 1), record
    assert "Failure: fell over as asked" in record.reason
    assert "fell over as asked" in "\n".join(record.last_lines)
    assert record.duration_s < 30


def test_the_victim_of_a_failure_is_not_blamed(api: FakeApi, node: Node) -> None:
    node.behave(fail={"rank": 1, "step": 10, "kind": "exception"})
    key = api.order(make_order(steps=10_000))
    node.start()
    record = api.wait_for_exit(key)
    assert (record.outcome, record.culprit_rank) == (Outcome.USER_ERROR, 1), record


@pytest.mark.slow
def test_a_shim_that_hangs_past_its_deadline_is_ended_by_the_agent(
    api: FakeApi, node: Node
) -> None:
    node.behave(step_s=0.05)
    key = api.order(make_order(steps=10_000))
    node.start(patience={"worker.agent.decide.OVERDUE_S": 0.5})
    api.wait_for_step(key, 5)
    pids = node.processes(key)
    os.kill(node.shim_pid(key), signal.SIGSTOP)
    api.order(make_order(steps=10_000, stop_in_s=0.0, kill_after_s=0.5))
    record = api.wait_for_exit(key)
    assert record.outcome is Outcome.LEASE_ENDED
    assert all(gone(pid) for pid in pids)


def test_a_restarted_machine_loses_its_attempts_and_starts_none_of_them_again(
    api: FakeApi, node: Node
) -> None:
    key = api.order(make_order(steps=10_000))
    node.start()
    api.wait_for_step(key, 5)
    node.kill()
    for pid in node.processes(key):
        os.kill(pid, signal.SIGKILL)
    node.boot_id = "another-boot"
    node.start()
    record = api.wait_for_exit(key)
    assert record.outcome is Outcome.NODE_LOST
    assert record.boot_id != "another-boot"
    last = api.last()
    assert last is not None
    assert last.boot_id == "another-boot"


def test_sigterm_ends_the_worker_soon_and_leaves_the_ranks(api: FakeApi, node: Node) -> None:
    key = api.order(make_order(steps=10_000))
    node.start()
    api.wait_for_step(key, 5)
    before = node.processes(key)
    assert node.stop() == 0
    assert node.processes(key) == before
    node.start()
    api.wait_for_step(key, len(api.steps(key)) + 5)
    assert node.processes(key) == before


def test_a_second_worker_on_the_same_data_says_so(api: FakeApi, node: Node) -> None:
    node.start()
    api.wait_for(api.last)
    first = node.process
    node.start()
    assert node.process is not None
    assert node.process.wait(timeout=30) == 3
    node.process = first
    assert "Another worker is already running on" in node.log.read_text()


@pytest.mark.slow
def test_the_warm_process_comes_back_after_kill_9(api: FakeApi, node: Node) -> None:
    node.start()
    api.wait_for(api.last)
    assert node.process is not None
    worker = psutil.Process(node.process.pid)

    def warm() -> psutil.Process | None:
        for child in worker.children():
            if child.name() == "ty-warm" or "worker.warm" in child.cmdline():  # forked or new
                return child
        return None

    first = wait_for(warm)
    first.kill()
    key = api.order(make_order(steps=10))
    assert api.wait_for_exit(key).outcome is Outcome.SUCCEEDED
    observed = api.observed(key)
    assert observed is not None
    assert observed.launcher is Launcher.WARM
    assert wait_for(warm).pid != first.pid
