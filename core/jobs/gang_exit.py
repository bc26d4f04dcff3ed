"""Judgement of the end of an attempt over several nodes, from the ends of all its parts. Pure.

Each node's shim has judged its own ranks. When a rank dies, those of the other nodes fail because
of it, perhaps sooner to be heard; so every part's failure is weighed (`ExitRecord.guilt`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from core.states import Outcome
from core.wire.messages import ExitRecord

VICTIM, NOT_GUILTY = 3, 9


@dataclass(frozen=True)
class PartEnd:
    """End of one part: its node's record, or the sentence with which it was declared lost."""

    record: ExitRecord | None
    lost: str | None = None

    @property
    def succeeded(self) -> bool:
        """True if its ranks have trained to the end."""
        return self.record is not None and self.record.outcome is Outcome.SUCCEEDED

    @property
    def guilt(self) -> int:
        """Rank of its guilt; smaller is more guilty."""
        if self.record is None:
            return 0 if self.lost else NOT_GUILTY
        return NOT_GUILTY if self.record.guilt is None else self.record.guilt


@dataclass(frozen=True)
class GangExit:
    """The outcome of the whole attempt, with a sentence for its owner."""

    outcome: Outcome
    message: str
    record: ExitRecord | None
    """Record for the whole attempt; None where nobody saw the end that counts."""


def judge_together(ends: Sequence[PartEnd], *, asked: Outcome | None) -> GangExit:
    """Judge an attempt from the ends of its parts, the first node's first.

    `asked` is the reason why its owner or the platform asked it to stop, if either did.
    """
    first = ends[0]
    if len(ends) == 1 and first.record is not None:
        return GangExit(first.record.outcome, first.record.reason, first.record)
    records = [end.record for end in ends if end.record is not None]
    culprit = min(ends, key=lambda end: end.guilt)
    if first.succeeded and culprit.guilt > 1:
        culprit = first  # the result is on the first node: the others were only late to exit
    elif asked is not None and first.record is not None:
        culprit = first
    elif culprit.guilt == NOT_GUILTY:
        culprit = next((end for end in ends if not end.succeeded and end.record), first)
    if culprit.record is None:
        return GangExit(Outcome.NODE_LOST, culprit.lost or "Its end was not observed.", None)
    told = culprit.record
    outcome = told.outcome
    if outcome is not Outcome.SUCCEEDED and asked is not None:
        outcome = asked
    elif culprit.guilt == VICTIM:
        outcome = Outcome.STALLED  # each says the others are gone: the network failed
    whole = told.model_copy(
        update={
            "outcome": outcome,
            "ranks": sorted(
                (rank for record in records for rank in record.ranks), key=lambda r: r.rank
            ),
            "memory": [rank for record in records for rank in record.memory],
            "duration_s": max(record.duration_s for record in records),
            "result": first.record.result if first.record is not None else told.result,
        }
    )
    return GangExit(outcome, told.reason, whole)
