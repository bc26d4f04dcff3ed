"""The API away, the broker away or mad, and files that are garbage."""

import json
import time
from collections.abc import Callable

import pytest
import redis
from celery import Celery

from core.base.clock import boot_s
from core.states import Outcome
from core.wire.doorbell import LOOK, broker_url, queue_of
from core.wire.messages import StopOrder
from tests.worker.fake_api import FakeApi
from tests.worker.nodes import Node, make_order, wait_for


def test_training_goes_on_while_the_api_is_away_and_every_line_arrives_once(
    api: FakeApi, node: Node
) -> None:
    node.behave(step_s=0.02)
    key = api.order(make_order(steps=200))
    node.start()
    api.wait_for_step(key, 10)
    api.down = True
    stored = len(api.steps(key))
    wait_for(lambda: node.attempt(key).last_step() > stored + 40)
    assert len(api.steps(key)) <= stored + 20
    api.down = False
    assert api.wait_for_exit(key).outcome is Outcome.SUCCEEDED
    api.wait_for(lambda: (found := api.observed(key)) is not None and found.kept)
    assert api.steps(key) == list(range(1, 201))


@pytest.mark.slow
def test_answers_that_are_lost_on_the_way_double_nothing(api: FakeApi, node: Node) -> None:
    key = api.order(make_order(steps=100))
    node.start()
    api.wait_for_step(key, 5)
    api.lose_answers = True
    stored = len(api.steps(key))
    wait_for(lambda: node.attempt(key).last_step() > stored + 20)
    api.lose_answers = False
    assert api.wait_for_exit(key).outcome is Outcome.SUCCEEDED
    api.wait_for(lambda: (found := api.observed(key)) is not None and found.kept)
    assert api.steps(key) == list(range(1, 101))
    assert api.logs[key, 0, "stdout"] == "rank 0 of 2 begins, ümläut\n"


@pytest.mark.slow
def test_orders_that_are_not_repeated_stand_until_others_come(api: FakeApi, node: Node) -> None:
    api.marks = True
    node.behave(step_s=0.02)
    key = api.order(make_order(steps=10_000, stop_in_s=600.0))
    node.start()
    api.wait_for_step(key, 5)
    seen = api.unchanged
    api.wait_for(lambda: api.unchanged > seen + 3)
    schedule = node.attempt(key).schedule()
    assert schedule is not None
    assert schedule.stop_at - boot_s() == pytest.approx(600, abs=60)
    api.wait_for(lambda: api.unchanged > seen + 5)
    assert node.attempt(key).schedule() == schedule  # it does not move with every look
    order = api.orders[key]
    stop = StopOrder(reason=Outcome.CANCELLED, grace_s=5.0)
    api.orders[key] = order.model_copy(update={"stop": stop})
    assert api.wait_for_exit(key).outcome is Outcome.CANCELLED


@pytest.mark.slow
def test_a_node_sends_heartbeats_as_slowly_as_the_api_asks_but_news_at_once(
    api: FakeApi, node: Node
) -> None:
    api.beat_after = "30"
    node.start()
    api.wait_for(api.last)
    first = len(api.heartbeats)
    time.sleep(1.2)  # four polls of the node's own setting
    assert len(api.heartbeats) == first
    api.beat_after = "soon"  # no number: the node's own setting holds
    node.stop()
    node.start()
    key = api.order(make_order(steps=5))
    api.wait_for(lambda: len(api.heartbeats) > first + 2)
    api.beat_after = "30"
    assert api.wait_for_exit(key, within_s=20).outcome is Outcome.SUCCEEDED


@pytest.mark.slow
def test_an_attempt_runs_from_end_to_end_with_the_api_away_in_the_middle(
    api: FakeApi, node: Node
) -> None:
    node.behave(step_s=0.05)
    key = api.order(make_order(steps=40))
    node.start()
    api.wait_for_step(key, 3)
    api.down = True
    wait_for(node.attempt(key).exit.exists)
    node.kill()
    node.start()
    api.down = False
    assert api.wait_for_exit(key).outcome is Outcome.SUCCEEDED
    api.wait_for(lambda: (found := api.observed(key)) is not None and found.kept)
    assert api.steps(key) == list(range(1, 41))
    assert {step for _, step in api.checkpoints} >= {40}


def test_a_doorbell_wakes_the_agent_and_forged_ones_change_nothing(
    api: FakeApi, make_node: Callable[..., Node], valkey_url: str
) -> None:
    node = make_node(redis_url=valkey_url)
    node.start(TRAINYARD_POLL_S="30")
    api.wait_for(api.last)
    broker = redis.Redis.from_url(valkey_url)
    bell = Celery(broker=broker_url(valkey_url))
    queue = queue_of("n1")
    broker.rpush(queue, b"garbage")
    bell.send_task("no.such.task", args=[1], queue=queue)
    for _ in range(20):
        bell.send_task(LOOK, queue=queue)
    key = api.order(make_order(steps=20))

    def rung() -> bool | None:
        """Ring again: the first rings may have come before the order."""
        bell.send_task(LOOK, queue=queue)
        return True if api.observed(key) else None

    api.wait_for(rung, within_s=25)
    assert api.wait_for_exit(key, within_s=25).outcome is Outcome.SUCCEEDED
    assert {(o.job_id, o.epoch) for beat in api.heartbeats for o in beat.attempts} == {key}
    assert node.process is not None
    assert node.process.poll() is None
    broker.flushall()
    broker.close()
    bell.close()


@pytest.mark.slow
def test_files_that_are_garbage_stop_nothing(api: FakeApi, node: Node) -> None:
    node.behave(step_s=0.05)
    key = api.order(make_order(steps=60))
    node.start()
    api.wait_for_step(key, 5)
    node.kill()
    attempt = node.attempt(key)
    for path in (
        attempt.schedule_file,
        attempt.shipped_file,
        attempt.kept_file,
        attempt.order_file,
        attempt.control,
        node.folder.path / "wiped.json",
    ):
        path.write_bytes(b"\x00garbage{")
    with attempt.metrics.open("ab") as file:
        file.write(b"no json\n[1, 2]\n\xff\xfe\n")
    node.start()
    record = api.wait_for_exit(key)
    assert record.outcome is Outcome.SUCCEEDED, record
    api.wait_for(lambda: (found := api.observed(key)) is not None and found.kept)
    steps = api.steps(key)
    assert steps == sorted(set(steps))
    assert set(range(1, 61)) - set(steps) <= set(range(60))  # one line may have met the garbage
    assert len(steps) >= 58


@pytest.mark.slow
def test_a_damaged_exit_record_is_not_believed(api: FakeApi, node: Node) -> None:
    node.behave(step_s=0.02, fail={"rank": 0, "step": 20, "kind": "exit"})
    key = api.order(make_order(steps=60))
    node.start()
    api.wait_for_step(key, 3)
    node.kill()
    wait_for(node.attempt(key).exit.exists)
    wait_for(lambda: not node.attempt(key).shim_lives())
    node.attempt(key).exit.write_text(json.dumps({"outcome": "succeeded"}))
    node.start()
    assert api.wait_for_exit(key).outcome is Outcome.SHIM_LOST
