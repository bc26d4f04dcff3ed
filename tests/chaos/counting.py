"""What must hold after a round: no job lost, none doubled, and the invariants of the database."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import fake_trainer
from sqlalchemy import Row, select, text

from core.states import AttemptState, JobState
from core.tables.files import Checkpoint
from core.tables.jobs import Attempt, Job
from tests.chaos.fleet import NODES, Fleet
from tests.chaos.invariants import INVARIANTS

Finding = str


class Wanted(Protocol):
    """A job of the round, as far as counting goes."""

    @property
    def steps(self) -> int: ...
    @property
    def cancel_at_s(self) -> float | None: ...


@dataclass
class Found:
    """What is wrong; nothing, one hopes."""

    lost: list[Finding] = field(default_factory=list)
    doubled: list[Finding] = field(default_factory=list)
    broken: list[Finding] = field(default_factory=list)


def count(fleet: Fleet, wanted: Mapping[str, Wanted], keys: Sequence[str]) -> Found:
    """Look at everything that the round has left; `wanted` by job id."""
    found = Found()
    with fleet.database.read() as session:
        known = dict(session.execute(select(Job.id, Job).where(Job.name.in_(keys))).all())  # type: ignore[arg-type]
        for name, query in INVARIANTS.items():
            for row in session.execute(text(query)):
                target = found.doubled if name.startswith("two") else found.broken
                target.append(f"{name}: {_shown(row)}")
        for job_id, plan in wanted.items():
            job = known.get(job_id)
            if job is None:
                found.lost.append(f"{job_id} was acknowledged and is not there")
                continue
            cancelled = plan.cancel_at_s is not None and job.state is JobState.CANCELLED
            if job.state is not JobState.SUCCEEDED and not cancelled:
                found.lost.append(f"{job_id} is {job.state}: {job.reason}")
            elif job.state is JobState.SUCCEEDED:
                found.lost += _wrong_result(fleet, session, job, plan.steps)
        live = session.scalars(
            select(Attempt.id).where(
                Attempt.job_id.in_(wanted), Attempt.state != AttemptState.EXITED
            )
        ).all()
        found.broken += [f"attempt {attempt} lives on" for attempt in live]
    for job_id in wanted:
        found.doubled += overlaps(job_id, _ledger(fleet, job_id))
        found.lost += _curve(fleet, job_id, known.get(job_id))
    for node in NODES:
        left = fleet.attempt_processes(node)
        found.broken += [f"process {pid} of {attempt} is left" for pid, attempt in left]
    return found


def overlaps(job_id: str, runs: Iterable[tuple[str, float, float]]) -> list[Finding]:
    """Processes that made steps of one job at the same time. `runs`: name, first, last second."""
    found, before = [], None
    for run in sorted(runs, key=lambda run: run[1]):
        if before is not None and run[1] < before[2]:
            found.append(f"{job_id} ran twice at once: {before[0]} and {run[0]}")
        before = run if before is None or run[2] > before[2] else before
    return found


def _ledger(fleet: Fleet, job_id: str) -> list[tuple[str, float, float]]:
    runs = []
    for path in (fleet.folder / "ledger").glob(f"{job_id}.*"):
        times = [float(line.split()[1]) for line in path.read_text().splitlines() if " " in line]
        if times:
            runs.append((path.name, times[0], times[-1]))
    return runs


def _wrong_result(fleet: Fleet, session: object, job: Job, steps: int) -> list[Finding]:
    """The chained hash in the last checkpoint tells of every step: none twice, none left out."""
    chained = ""
    for step in range(1, steps + 1):
        chained = fake_trainer.chain(chained, step)
    last = session.scalars(  # type: ignore[attr-defined]
        select(Checkpoint).where(Checkpoint.job_id == job.id, Checkpoint.step == steps)
    ).first()
    if last is None:
        # It may still be on its way: the exit is told before the files are kept.
        return []
    digest = next(file["sha256"] for file in last.files if file["path"] == "state.json")
    store = fleet.folder / "store" / "files"
    state = json.loads((Path(store) / digest[:2] / digest).read_text())
    if state != {"step": steps, "hash": chained}:
        return [f"{job.id} lost or doubled a step: {state}"]
    return []


def _curve(fleet: Fleet, job_id: str, job: Job | None) -> list[Finding]:
    """Every step's loss, exactly once."""
    if job is None or job.state is not JobState.SUCCEEDED:
        return []
    answer = fleet.ask(
        "GET", f"/v1/jobs/{job_id}/metrics", params={"keys": "loss", "resolution": 10_000}
    )
    if answer is None or answer.status_code != 200:
        return [f"{job_id}: no curve"]
    points: dict[int, int] = defaultdict(int)
    for series in answer.json()["series"]:
        for step in series["steps"]:
            points[step] += 1
    missing = set(range(1, job.steps + 1)) - set(points)
    return [f"{job_id}: no loss of steps {sorted(missing)[:5]}"] if missing else []


def _shown(row: Row[tuple[object, ...]]) -> str:
    return ", ".join(str(value) for value in row)
