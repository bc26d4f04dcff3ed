"""The sandbox of a script that has failed, held for its owner on its node."""

import os
import signal

import pytest

from core.states import Outcome
from core.wire.messages import Request
from tests.worker.fake_api import FakeApi
from tests.worker.nodes import Node, wait_for
from tests.worker.script_orders import script_order

FAILS = "print('so far'); raise KeyError('no such column')"
LONG_S = 3600


@pytest.mark.slow
def test_it_ends_by_itself_and_the_failure_stands(api: FakeApi, node: Node) -> None:
    node.start(warm=False)
    key = api.order(script_order(api, FAILS, hold_on_failure_s=2))
    wait_for(node.attempt(key).held_file.exists)
    assert api.exit_of(key) is None
    assert node.processes(key)
    record = api.wait_for_exit(key)
    assert record.outcome is Outcome.USER_ERROR
    assert "KeyError: 'no such column'" in record.reason
    assert record.last_lines[0] == "so far"
    assert record.duration_s >= 2
    assert not node.processes(key)


@pytest.mark.slow
def test_it_is_released_before_its_time(api: FakeApi, node: Node) -> None:
    node.start(warm=False)
    order = script_order(api, FAILS, hold_on_failure_s=LONG_S)
    key = api.order(order)
    wait_for(node.attempt(key).held_file.exists)
    request = Request(number=1, action="release")
    api.orders[key] = order.model_copy(update={"request": request})
    assert api.wait_for_exit(key).outcome is Outcome.USER_ERROR


@pytest.mark.slow
def test_it_ends_with_its_lease(api: FakeApi, node: Node) -> None:
    node.start(warm=False)
    key = api.order(script_order(api, FAILS, hold_on_failure_s=LONG_S, stop_in_s=6))
    wait_for(node.attempt(key).held_file.exists)
    record = api.wait_for_exit(key, within_s=20)
    assert record.outcome is Outcome.USER_ERROR
    assert record.duration_s < 15


def test_the_failure_stands_where_the_supervision_of_the_hold_is_lost(
    api: FakeApi, node: Node
) -> None:
    node.start(warm=False)
    key = api.order(script_order(api, FAILS, hold_on_failure_s=LONG_S))
    wait_for(node.attempt(key).held_file.exists)
    shim = node.attempt(key).shim()
    assert shim is not None
    os.kill(shim.pid, signal.SIGKILL)
    record = api.wait_for_exit(key)
    assert record.outcome is Outcome.USER_ERROR
    assert "KeyError: 'no such column'" in record.reason
    assert not node.processes(key)


@pytest.mark.slow
def test_what_succeeds_or_is_stopped_is_not_held(api: FakeApi, node: Node) -> None:
    node.start(warm=False)
    well = api.order(script_order(api, "print('well')", "job_well", hold_on_failure_s=LONG_S))
    assert api.wait_for_exit(well).outcome is Outcome.SUCCEEDED
    stopped = api.order(
        script_order(
            api,
            "import time; time.sleep(100)",
            "job_stopped",
            hold_on_failure_s=LONG_S,
            stop_in_s=3,
        )
    )
    assert api.wait_for_exit(stopped).outcome is Outcome.LEASE_ENDED
