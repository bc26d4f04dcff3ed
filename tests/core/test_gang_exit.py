"""Who is to blame where ranks on several nodes end: the guilty, not those that lost them."""

import pytest

from core.jobs.gang_exit import PartEnd, judge_together
from core.states import Outcome
from core.wire.messages import ExitRecord, RankExit


def end(
    outcome: Outcome, *, node: int = 0, guilt: int | None = None, duration_s: float = 10.0
) -> PartEnd:
    return PartEnd(
        ExitRecord(
            job_id="job_a",
            epoch=1,
            boot_id="b",
            outcome=outcome,
            reason=f"Node {node}: {outcome}.",
            guilt=guilt,
            ranks=[RankExit(rank=node, code=0 if outcome is Outcome.SUCCEEDED else 1)],
            duration_s=duration_s,
        )
    )


DONE = end(Outcome.SUCCEEDED)
LOST = PartEnd(None, lost="north-02 was restarted while the attempt ran.")
VICTIM = end(Outcome.USER_ERROR, guilt=3)


@pytest.mark.parametrize(
    ("ends", "asked", "outcome", "words"),
    [
        ([DONE, end(Outcome.SUCCEEDED, node=1)], None, Outcome.SUCCEEDED, "Node 0"),
        ([VICTIM, end(Outcome.KILLED, node=1, guilt=0)], None, Outcome.KILLED, "Node 1"),
        (
            [end(Outcome.PREEMPTED), end(Outcome.OUT_OF_MEMORY, node=1, guilt=0)],
            None,
            Outcome.OUT_OF_MEMORY,
            "Node 1",
        ),
        ([VICTIM, LOST], None, Outcome.NODE_LOST, "restarted"),
        ([VICTIM, end(Outcome.USER_ERROR, node=1, guilt=3)], None, Outcome.STALLED, "Node 0"),
        # What is trained lies on the first node: one that leaves badly afterwards harms nothing.
        ([DONE, end(Outcome.STALLED, node=1, guilt=2)], None, Outcome.SUCCEEDED, "Node 0"),
        ([DONE, LOST], None, Outcome.NODE_LOST, "restarted"),
        # A wish to stop counts for all, though the second node had not heard of it yet.
        ([end(Outcome.PAUSED), end(Outcome.KILLED, node=1)], Outcome.PAUSED, Outcome.PAUSED, "0"),
        ([end(Outcome.LEASE_ENDED), end(Outcome.KILLED)], None, Outcome.LEASE_ENDED, "Node 0"),
        ([DONE, end(Outcome.PAUSED, node=1)], Outcome.PAUSED, Outcome.SUCCEEDED, "Node 0"),
    ],
)
def test_the_outcome_of_all_parts(
    ends: list[PartEnd], asked: Outcome | None, outcome: Outcome, words: str
) -> None:
    judged = judge_together(ends, asked=asked)
    assert judged.outcome is outcome
    assert words in judged.message
    if judged.record is not None:
        assert judged.record.outcome is outcome
        assert len(judged.record.ranks) == sum(end.record is not None for end in ends)


def test_an_attempt_on_one_node_ends_as_its_node_says() -> None:
    only = end(Outcome.USER_ERROR, guilt=3)
    judged = judge_together([only], asked=Outcome.CANCELLED)
    assert (judged.outcome, judged.record) == (Outcome.USER_ERROR, only.record)
