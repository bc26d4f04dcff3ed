"""/v1/jobs/plan/accuracy: planned against measured memory, and learning from it."""

import asyncio

import anyio
import structlog
from fastapi import APIRouter
from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from api.jobs.plan_cache import PlanCache
from api.jobs.schemas import AccuracyView
from api.web.auth import SignedIn
from api.web.process import ProcessDep
from core.database.database import Database
from core.spec.spec import JobSpec, stored_plan, stored_spec
from core.states import JobState
from core.tables.jobs import Job
from strategies.plan.planner import Plan
from strategies.plan.run_directory import Result
from strategies.plan.trust.accuracy import AccuracyRow, learned, table, weighed

RUNS = 500  # the newest: hardware, libraries and formulas change
EVERY_S = 600.0

log = structlog.get_logger()
router = APIRouter(prefix="/v1/jobs/plan", tags=["jobs"])


@router.get("/accuracy", summary="Compare plans with measured runs")
def accuracy(person: SignedIn, process: ProcessDep) -> AccuracyView:
    """Compare planned with measured memory of the newest finished jobs of all users, by device,
    model and strategy. No job is named."""
    with process.read() as session:
        return AccuracyView(rows=accuracy_table(session))


def accuracy_table(session: Session) -> list[AccuracyRow]:
    """Return one row for each kind of run among the newest RUNS finished jobs."""
    rows = session.execute(
        select(Job.spec, Job.plan, Job.result)
        .where(
            Job.state == JobState.SUCCEEDED,
            Job.result.is_not(None),
            Job.code_sha256.is_(None),  # of a script, nothing was planned
        )
        .order_by(Job.id.desc())
        .limit(RUNS)
    )
    runs = (
        weighed(plan, spec.model.name, Result.model_validate(result).peak_gib)
        for spec, plan, result in (
            (stored_spec(row.spec), stored_plan(row.plan), row.result) for row in rows
        )
        if isinstance(spec, JobSpec) and isinstance(plan, Plan)
    )
    return table(run for run in runs if run is not None)


async def keep_learning(database: Database, plans: PlanCache) -> None:
    """Let plans use the memory that runs here have needed; repeat until cancelled."""
    while True:
        try:
            await anyio.to_thread.run_sync(learn, database, plans)
        except SQLAlchemyError as error:
            log.warning("nothing_learned", error=str(error))
        await asyncio.sleep(EVERY_S)


def learn(database: Database, plans: PlanCache) -> None:
    """Let plans from now on use the memory that runs have needed until now."""
    with database.read() as session:
        plans.learn(learned(accuracy_table(session)))
