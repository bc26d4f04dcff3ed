"""The only place that writes a state.

Every change is one compare-and-set UPDATE along an edge of `core.states`, fenced by the epoch where
there is one, together with its event row. If no row was changed, somebody else was faster or the
caller is stale: nothing happens and `advance` says so.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import lru_cache
from typing import Any

from sqlalchemy import CursorResult, Update, bindparam, insert, update
from sqlalchemy.orm import Session
from sqlalchemy.orm.attributes import set_committed_value

from core.base.reasons import Code
from core.notices import job_news
from core.states import ATTEMPT_EDGES, JOB_EDGES, LEASE_EDGES, NODE_EDGES, JobState, sources
from core.tables.jobs import Attempt, Event, Job
from core.tables.leases import Lease
from core.tables.nodes import Node
from core.tables.topics import mark
from core.wire.doorbell import Topic

Stateful = Job | Attempt | Lease | Node

EDGES: dict[type[Stateful], Mapping[Any, Mapping[Any, str]]] = {
    Job: JOB_EDGES,
    Attempt: ATTEMPT_EDGES,
    Lease: LEASE_EDGES,
    Node: NODE_EDGES,
}

NEW_JOBS, FIRST_EVENTS = insert(Job), insert(Event)
EXPLAIN = (
    update(Job)
    .where(
        Job.id == bindparam("of_job"),
        Job.epoch == bindparam("of_epoch"),
        Job.state == JobState.QUEUED,
    )
    .values(
        reason_code=bindparam("reason_code"),
        reason=bindparam("reason"),
        predicted_start=bindparam("predicted_start"),
    )
)


def advance(
    session: Session,
    row: Stateful,
    to: StrEnum,
    *,
    now: datetime,
    reason_code: Code,
    message: str,
    actor: str,
    **changes: object,
) -> bool:
    """Move `row` to state `to` and set `changes` with it; False if it was no longer possible.

    `message` is the sentence that the owner reads; it also becomes the row's `reason`. For jobs and
    attempts the UPDATE asks for the epoch that `row` was read with. On success `row` shows the new
    values; on False it is untouched and should be read again.
    """
    table = type(row)
    values: dict[str, object] = {"state": to, "reason": message, **changes}
    if isinstance(row, Job):
        values["reason_code"] = reason_code
        if row.state is JobState.PAUSED and to is JobState.QUEUED:
            values["queued_at"] = now  # its owner took it out of the queue: it rejoins at the end
    before = row.state
    if not _update(session, row, values, sources(EDGES[table], to)):
        return False
    for name, value in values.items():
        set_committed_value(row, name, value)
    if not isinstance(row, Attempt):
        mark(session, Topic.CALENDAR)  # it shows the nodes, and the jobs in one's leases
    if isinstance(row, Job):
        state = JobState(to)
        job_news.tell_owner(session, row, state, reason_code=reason_code, message=message, now=now)
    _append(session, row, before, to, now, reason_code, message, actor)
    return True


def enter(
    session: Session,
    row: Stateful,
    *,
    now: datetime,
    reason_code: Code,
    message: str,
    actor: str,
) -> None:
    """Add a new row in its first state, with its first event."""
    session.add(row)
    session.flush()
    _append(session, row, None, row.state, now, reason_code, message, actor)


def enter_jobs(
    session: Session,
    jobs: Sequence[Mapping[str, object]],
    *,
    reason_code: Code,
    message: str,
) -> None:
    """Add jobs by their column values, with their first events, as acts of their owners: `enter`
    for the busiest table.

    Two plain INSERTs cost half of what the unit of work does.
    """
    session.connection().execute(NEW_JOBS, jobs)
    events = [
        {
            "at": job["created_at"],
            "subject": job["id"],
            "epoch": job["epoch"],
            "kind": str(job["state"]),
            "from_state": None,
            "to_state": job["state"],
            "reason_code": reason_code,
            "message": message,
            "actor": job["user_id"],
        }
        for job in jobs
    ]
    session.connection().execute(FIRST_EVENTS, events)


@dataclass(frozen=True)
class Explanation:
    """Reason for which a job waits, to be shown to its owner."""

    job_id: str
    epoch: int
    """Epoch with which the job was read."""
    reason_code: Code
    message: str
    predicted_start: datetime | None = None


def explain(session: Session, explanations: Sequence[Explanation]) -> None:
    """Set why jobs wait, without changing a state; nothing for a job that has moved on since.

    All in one round trip: on a busy cluster thousands of predictions move at once.
    """
    rows = [
        {
            "of_job": one.job_id,
            "of_epoch": one.epoch,
            "reason_code": one.reason_code,
            "reason": one.message,
            "predicted_start": one.predicted_start,
        }
        for one in explanations
    ]
    if rows:
        session.flush()
        session.connection().execute(EXPLAIN, rows)


def say(session: Session, row: Lease | Node, message: str) -> bool:
    """Set the reason for a lease's or node's state; False if that was known or it moved on."""
    if row.reason == message or not _update(session, row, {"reason": message}, [row.state]):
        return False
    set_committed_value(row, "reason", message)
    return True


def note(
    session: Session,
    subject: str,
    kind: str,
    *,
    now: datetime,
    message: str,
    actor: str,
    epoch: int | None = None,
    reason_code: Code | None = None,
) -> None:
    """Record something that happened and changed no state, such as a saved checkpoint."""
    session.add(
        Event(
            at=now,
            subject=subject,
            epoch=epoch,
            kind=kind,
            reason_code=reason_code or "",
            message=message,
            actor=actor,
        )
    )


def _update(
    session: Session, row: Stateful, values: Mapping[str, object], states: Iterable[StrEnum]
) -> bool:
    """Set `values` if the row is in one of `states`, and of the epoch that it was read with."""
    session.flush()
    terms: dict[str, object] = {"of_row": row.id, "of_states": list(states)}
    if isinstance(row, Job | Attempt):
        terms["of_epoch"] = row.epoch
    new = {f"new_{name}": value for name, value in values.items()}
    result = session.execute(_change(type(row), tuple(values)), terms | new)
    assert isinstance(result, CursorResult)
    return result.rowcount == 1


@lru_cache(maxsize=256)
def _change(table: type[Stateful], names: Sequence[str]) -> Update:
    """Return the UPDATE of these columns. Cached: to build it takes longer than to send it."""
    query = update(table).where(
        table.id == bindparam("of_row"), table.state.in_(bindparam("of_states", expanding=True))
    )
    if issubclass(table, Job | Attempt):
        query = query.where(table.epoch == bindparam("of_epoch"))
    changed = query.values({name: bindparam(f"new_{name}") for name in names})
    return changed.execution_options(synchronize_session=False)


def _append(
    session: Session,
    row: Stateful,
    before: StrEnum | None,
    to: StrEnum,
    now: datetime,
    reason_code: Code,
    message: str,
    actor: str,
) -> None:
    # An attempt's events are filed under its job, where its owner looks for them.
    subject = row.job_id if isinstance(row, Attempt) else row.id
    kind = f"attempt_{to}" if isinstance(row, Attempt) else str(to)
    session.add(
        Event(
            at=now,
            subject=subject,
            epoch=row.epoch if isinstance(row, Job | Attempt) else None,
            kind=kind,
            from_state=before,
            to_state=to,
            reason_code=reason_code,
            message=message,
            actor=actor,
        )
    )
