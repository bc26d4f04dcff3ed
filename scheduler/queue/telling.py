"""Choice of the changed reasons that are worth writing now. Pure.

On a large cluster a single start moves the predicted start of every job behind it. Sentences about
the far future are then written less often; those of another kind, and those about the next minutes,
at once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from scheduler.queue.sentences import WaitingReason
from scheduler.snapshot import WaitingJob

FEW = 200  # changed sentences are all written
SHARE = 60  # of the wait for a start, after which its sentence is written again
LONGEST = timedelta(minutes=5)


@dataclass(frozen=True)
class JobReason:
    """A waiting job and the reason that its owner is told."""

    job: WaitingJob
    reason: WaitingReason


def worth_telling(
    waiting: Sequence[JobReason], told_at: Mapping[str, datetime], now: datetime
) -> list[JobReason]:
    """Return the reasons to write now; `told_at` maps job id -> time of the last one."""
    changed = [one for one in waiting if one.job.told != one.reason]
    if len(changed) <= FEW:
        return changed
    return [one for one in changed if _is_due(one, told_at.get(one.job.id), now)]


def _is_due(one: JobReason, told_at: datetime | None, now: datetime) -> bool:
    code, _, _ = one.job.told
    start = one.reason.predicted_start
    if told_at is None or code != one.reason.code:
        return True
    return now - told_at >= (LONGEST if start is None else min(LONGEST, (start - now) / SHARE))
