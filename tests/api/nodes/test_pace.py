"""Pace of heartbeats: the API asks for fewer from each node as the nodes grow many."""

import pytest

from api.nodes import pace
from api.nodes.pace import NodeCount, pause_s
from core.states import NodeState
from core.tables.nodes import Node
from core.wire.messages import BEAT_AFTER
from tests.api.conftest import World
from tests.api.shapes import heartbeat


@pytest.mark.parametrize(
    ("nodes", "unreachable_after_s", "wanted_s"),
    [
        (0, 30, 0.0),
        (7, 30, 0.07),
        (300, 30, 3.0),
        (1000, 30, 10.0),
        (5000, 30, 10.0),
        (5000, 150, 50.0),
        (5000, 180, 50.0),
    ],
)
def test_the_nodes_together_send_a_hundred_and_three_may_be_missed(
    nodes: int, unreachable_after_s: float, wanted_s: float
) -> None:
    assert pause_s(nodes, unreachable_after_s, is_at_work=False) == pytest.approx(wanted_s)


@pytest.mark.parametrize(
    ("phases", "wanted_s"),
    [
        ([], 0.01),
        (["running"], 10.0),
        (["running", "running"], 10.0),
        (["running", "starting"], 0.01),
        (["running", "stopping"], 0.01),
    ],
)
def test_a_node_that_only_trains_has_the_longest_pause(
    world: World, phases: list[str], wanted_s: float
) -> None:
    attempts = [
        {"job_id": f"job_{number}", "epoch": 1, "phase": phase}
        for number, phase in enumerate(phases)
    ]
    answer = world.node.post("/v1/node/heartbeat", json=heartbeat(attempts=attempts))
    assert answer.status_code == 200
    assert float(answer.headers[BEAT_AFTER]) == pytest.approx(wanted_s)


def test_the_answer_to_a_heartbeat_says_when_the_next_one_is_wanted(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace, "BEATS_PER_S", 0.25)
    answer = world.node.post("/v1/node/heartbeat", json=heartbeat())
    assert answer.status_code == 200
    assert float(answer.headers[BEAT_AFTER]) == pytest.approx(4.0)


def test_nodes_are_counted_again_after_a_while_and_retired_ones_are_not(world: World) -> None:
    now = [0.0]
    number = NodeCount(clock=lambda: now[0])
    number.look(world.database)
    assert number.number == 1
    with world.database.write() as session:
        session.query(Node).one().state = NodeState.RETIRED
    number.look(world.database)
    assert number.number == 1
    now[0] += pace.COUNTED_EVERY_S
    number.look(world.database)
    assert number.number == 0
