"""Condition that all that a job leaves behind is here."""

from sqlalchemy import ColumnElement, exists

from core.states import AttemptState
from core.tables.jobs import Attempt, Job


def has_handed_over() -> ColumnElement[bool]:
    """Return the condition that the newest attempt of a job has exited and handed everything over,
    or that nobody saw its end, so that nothing more is awaited."""
    is_kept = Attempt.files_kept | Attempt.exit.is_(None)
    is_over = (Attempt.state == AttemptState.EXITED) & is_kept
    return ~exists().where(Attempt.job_id == Job.id, Attempt.epoch == Job.epoch, ~is_over)
