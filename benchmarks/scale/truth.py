"""Checks at the end: nothing lost, nothing doubled."""

from collections.abc import Sequence

from sqlalchemy import func, select, text

from core.database.database import Database
from core.tables.jobs import Job
from tests.chaos.invariants import INVARIANTS

CHUNK = 1000
CURVES_WITH_GAPS = text(
    "SELECT count(*) FROM attempts a JOIN jobs j ON j.id = a.job_id "
    "LEFT JOIN stream_cursors c ON c.attempt_id = a.id AND c.stream = 'metrics/0' "
    "WHERE a.outcome = 'succeeded' AND a.files_kept "
    "AND coalesce(c.position, 0) <> (j.spec->'training'->>'steps')::int"
)
# Of a round of chaos: its jobs have names of their own, time for everything, and are all over.
NOT_HERE = (
    "two jobs have one key",
    "an attempt was stopped before its time",
    "a live attempt has no open lease",
)


def broken(database: Database) -> list[str]:
    """Return each invariant that does not hold, with its first row."""
    found = []
    with database.read() as session:
        for name, query in INVARIANTS.items():
            if name not in NOT_HERE and (row := session.execute(text(query)).first()) is not None:
                found.append(f"{name}: {row[0]}")
    return found


def num_lost(database: Database, submitted: Sequence[str]) -> int:
    """Return the number of acknowledged submissions of which there is no job."""
    known = 0
    with database.read() as session:
        for first in range(0, len(submitted), CHUNK):
            wanted = select(func.count()).where(Job.id.in_(submitted[first : first + CHUNK]))
            known += int(session.scalar(wanted) or 0)
    return len(submitted) - known


def num_cut_curves(database: Database) -> int:
    """Return the number of succeeded attempts whose curve has not one line for each step."""
    with database.read() as session:
        return int(session.scalar(CURVES_WITH_GAPS) or 0)
