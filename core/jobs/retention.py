"""Retention: the data that may be deleted, and why. Pure: `now` is an argument.

Only data of jobs that have ended: the data that a waiting, paused or running job has made or reads
is never touched, whatever the limits say. Limits by age come first. Then, where a person or a lab
holds more bytes than it may, checkpoints go, no more than necessary: first those that a later one
of the same job supersedes, then the last ones, each time those of the job that ended longest ago.
Artifacts, datasets, models and code are never deleted for their bytes: their owner decides which.
Datasets and models, which a person has named, have no age either; code, of which every submission
of a changed program leaves one more archive, goes when no job has used it for long.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from core.base.words import size_text

WARN_AT = 0.8  # of a limit in bytes
GIB = 1 << 30
CODE = "code"  # of scripts: many jobs may share an archive


class Thing(StrEnum):
    """Kind of data that a job leaves behind."""

    LOGS = "logs"
    METRICS = "metrics"
    CHECKPOINTS = "checkpoints"
    ARTIFACTS = "artifacts"


@dataclass(frozen=True)
class RetentionLimits:
    """Limits of age and size; None is for ever or unlimited."""

    ages: Mapping[Thing, timedelta | None]
    """Age after the end of the job at which each kind of data expires."""
    user_bytes: int | None = None
    lab_bytes: int | None = None


@dataclass(frozen=True)
class EndedJob:
    """A job that has ended, and the kinds of its data that are still there."""

    job_id: str
    ended_at: datetime
    has: frozenset[Thing]


@dataclass(frozen=True)
class StoredCheckpoint:
    """A checkpoint of a job that has ended."""

    id: str
    job_id: str
    user_id: str
    size: int
    ended_at: datetime
    is_last: bool
    """True if no checkpoint of its job is further."""


@dataclass(frozen=True)
class ExpiredData:
    """Data of one job whose time is over, and the sentence for its owner."""

    job_id: str
    thing: Thing
    why: str


@dataclass(frozen=True)
class Surplus:
    """A checkpoint to delete, and the sentence for its owner."""

    checkpoint: StoredCheckpoint
    why: str


@dataclass(frozen=True)
class Holder:
    """A person or a lab, and the bytes kept for it."""

    name: str
    user_ids: frozenset[str]
    used: int
    limit: int


def expired(
    jobs: Iterable[EndedJob], limits: RetentionLimits, now: datetime
) -> Iterator[ExpiredData]:
    """Yield the data that is older than its limit of age."""
    for job in jobs:
        for thing in Thing:
            age = limits.ages.get(thing)
            if age is None or thing not in job.has or job.ended_at + age > now:
                continue
            yield ExpiredData(
                job.job_id,
                thing,
                f"The job ended {(now - job.ended_at).days} days ago; {thing} are kept for "
                f"{age.days}.",
            )


def surplus(holders: Sequence[Holder], checkpoints: Collection[StoredCheckpoint]) -> list[Surplus]:
    """Return the checkpoints to delete until all are within their limits or no more may go.

    A deleted one makes room for all who hold it, its owner and their labs, so the bytes of each
    holder are counted anew every time. People come before labs: a checkpoint that a person has to
    give up makes room in the lab too. At last, those that need not have gone stay.
    """
    excess = {holder: holder.used - holder.limit for holder in holders}
    users = {checkpoint.user_id for checkpoint in checkpoints}
    holding = {user: [h for h in holders if user in h.user_ids] for user in users}
    in_turn = sorted(checkpoints, key=lambda c: (c.is_last, c.ended_at, c.id))
    going: dict[str, Surplus] = {}
    for holder in sorted(holders, key=lambda each: len(each.user_ids)):
        why = (
            f"{holder.name} holds {size_text(holder.used)}; the limit is {size_text(holder.limit)}."
        )
        for checkpoint in in_turn:
            if excess[holder] <= 0:
                break
            if checkpoint.user_id not in holder.user_ids or checkpoint.id in going:
                continue
            going[checkpoint.id] = Surplus(checkpoint, why)
            for each in holding[checkpoint.user_id]:
                excess[each] -= checkpoint.size
    for checkpoint in [one.checkpoint for one in reversed(going.values())]:
        if all(excess[each] + checkpoint.size <= 0 for each in holding[checkpoint.user_id]):
            del going[checkpoint.id]
            for each in holding[checkpoint.user_id]:
                excess[each] += checkpoint.size
    return list(going.values())


def warning(holder: Holder) -> str | None:
    """Return the sentence for a holder near its limit or over it, else None."""
    if holder.used < WARN_AT * holder.limit:
        return None
    held = f"{holder.name} holds {size_text(holder.used)} of {size_text(holder.limit)}."
    if holder.used <= holder.limit:
        return (
            f"{held} Beyond the limit, the checkpoints of the jobs that ended first are "
            "deleted. Download the files that you want to keep, or delete datasets, models "
            "and code that you no longer need."
        )
    return (
        f"{held} Checkpoints of ended jobs are deleted until the rest is within the limit. "
        "Until then nothing can be uploaded or submitted."
    )
