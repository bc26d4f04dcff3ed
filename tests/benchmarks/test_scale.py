"""The parts of `make scale`: nodes that take and end jobs, doorbells, kills, the truth."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
import uvloop

from benchmarks.course.houses import standing
from benchmarks.course.outcomes import Outcome
from benchmarks.course.records import Records
from benchmarks.course.wire import Line
from benchmarks.nodes import FakeAttempt, FakeNode, Pace
from benchmarks.scale import faults
from benchmarks.scale.__main__ import Run, Size, describe
from core.process.cycle_numbers import CycleNumbers

SMALL = Size(nodes=40, jobs=120, people=20, seconds=10.0, watched_s=20.0)


@pytest.mark.slow
@pytest.mark.xdist_group("platform")
@pytest.mark.timeout(600)
def test_a_small_cluster_loses_nothing_when_its_parts_are_killed() -> None:
    with standing("postgresql") as house:
        outcome, recoveries, grown = uvloop.run(Run(house, SMALL, settles_s=5.0).play())
    facts = {fact.what: fact for fact in outcome.facts}
    for what in (
        "submissions acknowledged and lost",
        "slots given twice, seen by the nodes",
        "curves with a gap",
        "broken invariants",
    ):
        assert facts[what].met, facts[what]
    assert float(facts["starts"].value.removesuffix("/s")) > 0.2
    assert len(recoveries) == 3
    assert all(one.whole_s < faults.DEADLINE_S for one in recoveries)
    assert "| `events` |" in grown
    assert _has_waits(outcome, "free node's next job", "submit", "book", "page of a job")


def _has_waits(outcome: Outcome, *names: str) -> bool:
    return all(outcome.records.waits[name] for name in names)


class ScriptedNode(FakeNode):
    """Node whose messages are kept; `away` of each kind are lost before one is answered."""

    def __init__(self, **away: int) -> None:
        line = Line("127.0.0.1", 9, {})
        super().__init__("A1-00001", 8, "secret", line, Records(), Pace(step_s=0.001))
        self.away = away
        self.told: list[tuple[str, dict[str, Any]]] = []

    async def tell(self, kind: str, message: dict[str, object]) -> dict[str, object] | None:
        self.told.append((kind, json.loads(json.dumps(message))))
        if self.away.get(kind, 0) > 0:
            self.away[kind] -= 1
            return None
        if kind == "metrics":
            return {"next_line": self.told[-1][1]["first_line"] + len(self.told[-1][1]["lines"])}
        return {"next_byte": self.told[-1][1]["first_byte"] + self.told[-1][1]["size"]}


def _order(job_id: str, *, slots: Sequence[int] = range(8), gang: object = None) -> dict[str, Any]:
    return {
        "job_id": job_id,
        "epoch": 1,
        "slots": list(slots),
        "spec": {"training": {"steps": 3}},
        "gang": gang,
        "stop": None,
    }


def test_a_node_sends_lines_again_until_they_are_acknowledged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("benchmarks.nodes.RESEND_S", 0.001)
    node = ScriptedNode(metrics=4, logs=1)
    attempt = FakeAttempt.ordered(node, _order("job_1"))
    attempt.hear(_order("job_1"))
    asyncio.run(attempt.report())
    batches = [told for kind, told in node.told if kind == "metrics"]
    assert [batch["first_line"] for batch in batches] == [0] * 5
    assert [line["step"] for line in batches[-1]["lines"]] == [1, 2, 3]
    output = [told for kind, told in node.told if kind == "logs"]
    assert output[0]["first_byte"] == output[1]["first_byte"] == 0
    first, second = (piece["content"] for piece in output[:2])
    assert second.startswith(first)
    assert second.count("\n") > first.count("\n") == 1
    observed = attempt.observed()
    assert observed["phase"] == "exited"
    assert observed["kept"] is True
    assert attempt.outcome == "succeeded"


def test_what_is_not_acknowledged_is_not_kept() -> None:
    attempt = FakeAttempt.ordered(ScriptedNode(metrics=100), _order("job_1"))
    attempt.unsent_lines.append({"step": 1})
    attempt.outcome = "succeeded"
    assert attempt.observed()["kept"] is False


def test_a_node_counts_slots_that_it_is_given_twice() -> None:
    node = ScriptedNode()

    async def follow() -> None:
        async with asyncio.TaskGroup() as group:
            for order in (
                _order("job_1", slots=(0, 1)),
                _order("job_2", slots=(2, 3)),
                _order("job_3", slots=(3, 4)),
            ):
                node._follow({"attempts": [order], "forget": []}, group)

    asyncio.run(follow())
    assert node.records.errors["node was given slots twice"] == 1
    assert len(node.running) == 3


def test_an_attempt_on_several_nodes_waits_until_all_are_ready() -> None:
    node = ScriptedNode()
    waiting = _order("job_1", gang={"position": 0, "start": False})

    async def live() -> str:
        attempt = FakeAttempt.ordered(node, waiting)
        attempt.hear(waiting)
        work = asyncio.create_task(attempt.report())
        await asyncio.sleep(0.02)
        phase = str(attempt.observed()["phase"])
        assert not node.told
        attempt.hear(_order("job_1", gang={"position": 0, "start": True}))
        await work
        return phase

    assert asyncio.run(live()) == "ready"
    told = [message for kind, message in node.told if kind == "metrics"]
    assert [line["step"] for message in told for line in message["lines"]] == [1, 2, 3]


def test_cycles_are_counted_between_two_looks() -> None:
    before, after = CycleNumbers(), CycleNumbers()
    for seconds in (1.0, 2.0):
        before.cycles.add(seconds)
        after.cycles.add(seconds)
    after.cycles.add(4.0)
    after.pauses.add(0.5)
    assert describe(before, after) == "cycle 4.00 s on average; pause 0.50 s on average; 1 cycles"
