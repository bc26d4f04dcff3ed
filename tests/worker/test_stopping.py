"""Orders to stop, deadlines, and what must not be left running."""

import os
import signal
from collections.abc import Callable

import pytest

from core.spec.spec import Launcher
from core.states import Outcome
from core.wire.messages import Request, StopOrder
from strategies.plan.run_directory import Action, Control, read_control
from tests.worker.fake_api import FakeApi
from tests.worker.nodes import Node, gone, make_order, wait_for


@pytest.mark.parametrize(
    "launcher", [Launcher.WARM, pytest.param(Launcher.TORCHRUN, marks=pytest.mark.slow)]
)
def test_an_ordered_stop_saves_a_checkpoint_first(
    api: FakeApi, node: Node, launcher: Launcher
) -> None:
    key = api.order(make_order(steps=10_000, launcher=launcher))
    node.start()
    api.wait_for_step(key, 13)
    pids = node.trainers(key)
    stop = StopOrder(reason=Outcome.PAUSED, grace_s=60)
    api.order(make_order(steps=10_000, launcher=launcher, stop=stop))
    record = api.wait_for_exit(key)
    assert record.outcome is Outcome.PAUSED
    assert record.result is not None
    step = record.result.step
    assert record.reason == f"Paused after step {step}, which is saved."
    assert all(gone(pid) for pid in pids)
    api.wait_for(lambda: (found := api.observed(key)) is not None and found.kept)
    assert (key, step) in api.checkpoints


def test_ranks_that_ignore_every_wish_are_killed_at_the_deadline_49(
    api: FakeApi, node: Node
) -> None:
    node.behave(ignore_sigterm=True, ignore_control=True)
    key = api.order(make_order(steps=100_000))
    node.start()
    api.wait_for_step(key, 1)
    pids = node.trainers(key)
    api.order(make_order(steps=100_000, stop_in_s=0.5, kill_after_s=1.0))
    record = api.wait_for_exit(key)
    assert record.outcome is Outcome.LEASE_ENDED
    assert "was killed" in record.reason
    assert all(gone(pid) for pid in pids)
    api.wait_for(lambda: api.heartbeats[-1].clean)  # so that the next lease may begin


def test_deadlines_are_kept_without_worker_and_api(api: FakeApi, node: Node) -> None:
    key = api.order(make_order(steps=100_000, every_steps=None))
    node.start()
    api.wait_for_step(key, 1)
    far = node.attempt(key).schedule()
    api.order(make_order(steps=100_000, every_steps=None, stop_in_s=5.0, checkpoint_in_s=3.0))
    wait_for(lambda: node.attempt(key).schedule() != far)
    node.kill()
    api.down = True
    wait_for(node.attempt(key).exit.exists)
    api.down = False
    node.start()
    record = api.wait_for_exit(key)
    assert record.outcome is Outcome.LEASE_ENDED
    assert record.result is not None
    api.wait_for(lambda: (found := api.observed(key)) is not None and found.kept)
    saved = [line["step"] for line in api.lines[key] if line.get("event") == "checkpoint_saved"]
    assert len(saved) == 2  # the one that the deadline asked for, and the one at the end
    assert saved[0] < saved[1] == record.result.step


@pytest.mark.parametrize(
    "launcher", [Launcher.WARM, pytest.param(Launcher.TORCHRUN, marks=pytest.mark.slow)]
)
def test_grandchildren_in_sessions_of_their_own_do_not_survive_a_stop(
    api: FakeApi, node: Node, launcher: Launcher
) -> None:
    node.behave(grandchild=True)
    key = api.order(make_order(steps=10_000, launcher=launcher))
    node.start()
    api.wait_for_step(key, 3)
    paths = [node.folder.path / f"grandchild-{rank}.pid" for rank in (0, 1)]
    wait_for(lambda: all(path.exists() and path.read_text() for path in paths))
    grandchildren = [int(path.read_text()) for path in paths]
    assert not any(gone(pid) for pid in grandchildren)
    stop = StopOrder(reason=Outcome.CANCELLED, grace_s=60)
    api.order(make_order(steps=10_000, launcher=launcher, stop=stop))
    assert api.wait_for_exit(key).outcome is Outcome.CANCELLED
    assert all(gone(pid) for pid in grandchildren)


def test_a_shim_that_is_told_to_leave_saves_and_is_continued_elsewhere(
    api: FakeApi, node: Node
) -> None:
    key = api.order(make_order(steps=10_000))
    node.start()
    api.wait_for_step(key, 3)
    os.kill(node.shim_pid(key), signal.SIGTERM)  # as when the machine is shut down
    record = api.wait_for_exit(key)
    assert record.outcome is Outcome.PREEMPTED
    assert record.result is not None
    assert record.result.checkpoint is not None


@pytest.mark.slow
def test_a_rank_that_hangs_in_its_teardown_does_not_spoil_a_finished_training(
    api: FakeApi, node: Node
) -> None:
    node.behave(linger=True)
    key = api.order(make_order(steps=5))
    node.start()
    record = api.wait_for_exit(key)
    assert record.outcome is Outcome.SUCCEEDED, record
    assert [rank.code for rank in record.ranks] == [0, -9]


def test_an_attempt_that_is_not_listed_is_stopped(api: FakeApi, node: Node) -> None:
    key = api.order(make_order(steps=10_000))
    node.start()
    api.wait_for_step(key, 3)
    pids = node.trainers(key)
    del api.orders[key]
    assert api.wait_for_exit(key).outcome is Outcome.CANCELLED
    assert all(gone(pid) for pid in pids)


def test_a_stop_before_the_start_starts_nothing(api: FakeApi, node: Node) -> None:
    stop = StopOrder(reason=Outcome.CANCELLED, grace_s=60)
    key = api.order(make_order(stop=stop))
    node.start()
    record = api.wait_for_exit(key)
    assert record.outcome is Outcome.CANCELLED
    assert record.reason == "The job was stopped before it started."
    assert not node.attempt(key).shim_file.exists()


@pytest.mark.slow
def test_an_epoch_that_is_over_is_not_started_again(api: FakeApi, node: Node) -> None:
    key = api.order(make_order(epoch=2, steps=5))
    node.start()
    api.wait_for_exit(key)
    api.wait_for(lambda: (found := api.observed(key)) is not None and found.kept)
    api.conclude(key)
    wait_for(lambda: not node.attempt(key).path.exists())
    old, same = api.order(make_order(epoch=1)), api.order(make_order(epoch=2))
    heard = len(api.heartbeats)
    api.wait_for(lambda: len(api.heartbeats) > heard + 3)
    assert not node.attempt(old).path.exists()
    assert not node.attempt(same).path.exists()
    newer = api.order(make_order(epoch=3, steps=5))
    assert api.wait_for_exit(newer).outcome is Outcome.SUCCEEDED


@pytest.mark.slow
def test_a_job_goes_on_at_a_node_whose_disk_never_saw_it(
    api: FakeApi, make_node: Callable[..., Node]
) -> None:
    first, second = make_node("first"), make_node("second")
    key = api.order(make_order(steps=60))
    first.behave(step_s=0.05)
    first.start()
    api.wait_for_step(key, 23)
    stop = StopOrder(reason=Outcome.PREEMPTED, grace_s=60)
    api.order(make_order(steps=60, stop=stop))
    api.wait_for_exit(key)
    api.wait_for(lambda: (found := api.observed(key)) is not None and found.kept)
    first.kill()
    api.conclude(key)
    step = max(step for _, step in api.checkpoints)
    assert step >= 23
    resume = {"step": step, "files": api.checkpoints[key, step]}
    again = api.order(make_order(epoch=2, steps=60, resume=resume))
    second.start()
    record = api.wait_for_exit(again)
    assert record.outcome is Outcome.SUCCEEDED, record
    assert api.steps(again) == list(range(step + 1, 61))
    assert os.listdir(second.attempt(again).resume_folder) == [f"step-{step:06d}"]


def test_a_damaged_checkpoint_is_not_resumed_from(api: FakeApi, node: Node) -> None:
    resume = {"step": 10, "files": [api.add_file("state.json", b"{}")]}
    key = api.order(make_order(resume=resume))
    node.start()
    record = api.wait_for_exit(key)
    assert record.outcome is Outcome.BAD_CHECKPOINT
    assert "manifest.json" in record.reason


@pytest.mark.slow
def test_a_dataset_that_the_store_does_not_have_is_a_failed_start_with_its_reason(
    api: FakeApi, node: Node
) -> None:
    dataset = api.add_file("text.txt", b"hello")
    api.files.clear()
    key = api.order(make_order(dataset=dataset))
    node.start()
    record = api.wait_for_exit(key)
    assert record.outcome is Outcome.START_FAILED
    assert record.reason == "The store refused text.txt: no such file"


def test_a_dataset_that_arrives_damaged_is_never_trained_on(api: FakeApi, node: Node) -> None:
    dataset = api.add_file("text.txt", b"hello")
    api.damage.add(dataset.sha256)
    key = api.order(make_order(dataset=dataset))
    node.start()
    record = api.wait_for_exit(key)
    assert record.outcome is Outcome.START_FAILED
    assert "SHA-256" in record.reason
    assert list(node.folder.cache.iterdir()) == []


@pytest.mark.slow
def test_a_port_that_was_taken_is_tried_again_with_another(api: FakeApi, node: Node) -> None:
    node.behave(start_error="The server socket has failed to listen: EADDRINUSE")
    key = api.order(make_order())
    node.start()
    record = api.wait_for_exit(key)
    assert record.outcome is Outcome.START_FAILED
    assert "another program has taken their port" in record.reason
    api.wait_for(lambda: (found := api.observed(key)) is not None and found.kept)
    assert api.logs[key, 0, "stdout"].count("rank 0 of 2 begins") == 3


def test_a_request_is_passed_on_once_for_each_number(api: FakeApi, node: Node) -> None:
    key = api.order(make_order(steps=100_000))
    node.start()
    api.wait_for_step(key, 1)
    control = node.attempt(key).control
    for number, action in ((1, "profile"), (2, "snapshot")):
        request = Request(number=number, action=action)  # type: ignore[arg-type]
        api.order(make_order(steps=100_000, request=request))
        wanted = Control(sequence=number, action=Action(action))
        wait_for(lambda wanted=wanted: read_control(control) == wanted)
    stop = StopOrder(reason=Outcome.CANCELLED, grace_s=60)
    request = Request(number=2, action="snapshot")
    api.order(make_order(steps=100_000, stop=stop, request=request))
    assert api.wait_for_exit(key).outcome is Outcome.CANCELLED
    asked = read_control(control)
    assert asked is None or asked.sequence == 3  # the stop, and nothing was asked for again
