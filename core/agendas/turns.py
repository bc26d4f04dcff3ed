"""Turns of the waiting jobs of an agenda. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from core.agendas.agenda import (
    HANDOVER,
    Standing,
    standing_of,
)
from core.states import LIVE_JOB, JobState
from core.tables.kinds import OnFailure


@dataclass(frozen=True)
class AgendaMember:
    """A job of an agenda, as the scheduler sees it."""

    job_id: str
    name: str
    state: JobState
    reason_code: str
    left_s: float
    """Seconds left of its wall time."""


@dataclass(frozen=True)
class Turn:
    """Turn of a waiting job in its agenda."""

    agenda: str
    """Name of the agenda."""
    ahead: tuple[str, ...]
    """Ids of the jobs that it waits for; empty: it is its turn."""
    ahead_names: tuple[str, ...] = ()
    waiting_ahead_s: float = 0.0
    """Seconds at most that those of them that wait take, with the hand-over after each."""
    called_off_by: str | None = None
    """Name of the failed job because of which it is not to run at all."""


def turns(
    agenda: str, members: Sequence[AgendaMember], *, side_by_side: bool, on_failure: OnFailure
) -> dict[str, Turn]:
    """Return the turn of each job that is queued, by its id.

    One after the other: a job waits for those before it that have not ended, and for any of those
    behind it that run already, because it was paused or queued again. Side by side: for those
    before it that have not started. A job that its owner has paused is not waited for.
    """
    failed = None
    if on_failure is OnFailure.STOP:
        standings = ((m.name, standing_of(m.state, m.reason_code)) for m in members)
        failed = next((name for name, how in standings if how is Standing.FAILED), None)
    found = {}
    for index, member in enumerate(members):
        if member.state is not JobState.QUEUED:
            continue
        before = [m for m in members[:index] if m.state in (JobState.QUEUED, *LIVE_JOB)]
        waiting = [m for m in before if m.state is JobState.QUEUED]
        behind = [m for m in members[index + 1 :] if m.state in LIVE_JOB]
        is_turn = side_by_side and not waiting
        ahead = [] if is_turn else before if side_by_side else before + behind
        found[member.job_id] = Turn(
            agenda=agenda,
            ahead=tuple(m.job_id for m in ahead),
            ahead_names=tuple(m.name for m in ahead),
            waiting_ahead_s=sum(m.left_s + HANDOVER.total_seconds() for m in waiting),
            called_off_by=failed,
        )
    return found
