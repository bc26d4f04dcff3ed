"""Time to add up the use of four weeks, by day and person, over the API."""

import statistics
import time
from contextlib import closing
from datetime import timedelta
from typing import Any

from sqlalchemy import Table, insert, select, text
from sqlalchemy.orm import Session

from benchmarks import service
from benchmarks.service import ServedApi, ask, connection_to
from core.base.clock import utc_now
from core.base.ids import IdKind, new_id
from core.database.database import Database
from core.states import AttemptState, Outcome
from core.tables.jobs import Attempt, AttemptPart, Job
from core.tables.leases import Lease, Occupancy

ATTEMPTS = 10_000
DAYS = 28
LASTS = timedelta(minutes=3)  # one after the other: no two hold a slot at once
REPEATS = 9
TIMES = ("hold_start", "hold_end", "started_at", "first_step_at", "last_step_at", "ended_at")

Row = tuple[str, str, str]


def rows() -> list[Row]:
    """Return a row for docs/benchmarks.md for each database: name, measured value, goal."""
    found = []
    for kind in ("sqlite", "postgresql"):
        with service.serving(kind) as served:
            service.running_attempt(served)
            with closing(Database(served.database_url)) as database, database.write() as session:
                add_attempts(session)
            measured = f"{usage_ms(served):.0f} ms"
        what = f"{DAYS} days of use, by day and person, of {ATTEMPTS:,} attempts, {kind}"
        found.append((what, measured, "< 200 ms"))
    return found


def usage_ms(served: ServedApi) -> float:
    """Return the median time of an answer, in ms."""
    times = []
    with connection_to(served) as connection:
        for _ in range(REPEATS):
            began = time.perf_counter()
            answer = ask(connection, "GET", "/v1/usage?per=day", served.user_token, None, 200)
            times.append(time.perf_counter() - began)
    assert len(answer["rows"]) >= DAYS - 1  # type: ignore[arg-type]
    return 1000 * statistics.median(times)


def add_attempts(session: Session) -> None:
    """Add copies of the one attempt, with its job and its lease, over the last DAYS days."""
    tables = [model.__table__ for model in (Job, Lease, Occupancy, Attempt, AttemptPart)]
    first = {table: dict(session.execute(select(table)).mappings().one()) for table in tables}
    copies: dict[Any, list[dict[str, object]]] = {table: [] for table in tables}
    for number in range(ATTEMPTS):
        began = utc_now() - timedelta(days=DAYS * (number + 1) / (ATTEMPTS + 1))
        times = dict.fromkeys(TIMES, began + LASTS)
        times |= {"hold_start": began, "started_at": began, "first_step_at": began}
        job_id, lease_id = new_id(IdKind.JOB), new_id(IdKind.LEASE)
        attempt_id = new_id(IdKind.ATTEMPT)
        changed = {
            Job: {"id": job_id},
            Lease: {"id": lease_id},
            Occupancy: {"lease_id": lease_id},
            Attempt: {
                **{"id": attempt_id, "job_id": job_id, "lease_id": lease_id},
                **{"state": AttemptState.EXITED, "outcome": Outcome.SUCCEEDED},
            },
            AttemptPart: {"attempt_id": attempt_id, "lease_id": lease_id},
        }
        for model, other in changed.items():
            table = model.__table__
            row = {**first[table], **{k: v for k, v in times.items() if k in table.c}, **other}
            if model is Occupancy:
                del row["id"]
            copies[table].append(row)
    for table in tables:
        assert isinstance(table, Table)
        session.connection().execute(insert(table), copies[table])
    if session.get_bind().dialect.name == "postgresql":
        session.execute(text("ANALYZE"))  # as autovacuum does within a minute
