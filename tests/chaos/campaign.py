"""Rounds of the fault campaign: jobs are submitted, things break, and then everything is counted.

A round's plan follows from seed and number alone, so a round that failed is played again with
`--seed`; only the machine's own timing differs.
"""

import contextlib
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.exc import SQLAlchemyError

from core.base.clock import utc_now
from core.states import TERMINAL_JOB
from core.tables.jobs import Job
from core.tables.nodes import Node
from core.tables.processes import Leadership as LeadershipRow
from tests.chaos.counting import Finding, count
from tests.chaos.faults import Fault, Mend, Strike
from tests.chaos.fleet import NODES, Fleet

RECOVERY_S = 120.0
END_S = 240.0  # three failed starts wait 5, 30 and 120 s by design
LOOK_S = 0.05


@dataclass(frozen=True)
class JobPlan:
    """One job of a round."""

    key: str
    """Its Idempotency-Key and its name."""
    at_s: float
    steps: int
    ranks: int
    cancel_at_s: float | None
    nodes: int = 1


@dataclass(frozen=True)
class Round:
    """What happens in one round."""

    seed: int
    number: int
    jobs: tuple[JobPlan, ...]
    strikes: tuple[Strike, ...]

    @property
    def fault_names(self) -> str:
        return " + ".join(strike.fault for strike in self.strikes)


@dataclass
class Report:
    """What became of a round."""

    plan: Round
    submitted: int
    recovery_s: float | None
    """From the moment at which the last fault was over; None if it never recovered."""
    lost: list[Finding] = field(default_factory=list)
    doubled: list[Finding] = field(default_factory=list)
    broken: list[Finding] = field(default_factory=list)
    """Invariants, apart from the two."""
    took_s: float = 0.0

    @property
    def is_good(self) -> bool:
        return self.recovery_s is not None and not (self.lost or self.doubled or self.broken)


def plan_round(seed: int, number: int, faults: Sequence[str]) -> Round:
    """The round `number` of a seed. Every fault comes first in turn; a second one is drawn."""
    order = random.Random(f"{seed}").sample(sorted(faults), k=len(faults))
    rng = random.Random(f"{seed}/{number}")
    names = [order[number % len(order)]]
    if rng.random() < 0.4:
        names.append(rng.choice(order))
    strikes = tuple(
        Strike(
            fault=name,
            target=rng.randrange(2),
            at_s=round(rng.uniform(0.0, 3.0), 3),
            lasts_s=round(rng.choice([0.2, 1.0, 3.0, 6.0]) * rng.uniform(0.8, 1.2), 3),
            amount=round(rng.uniform(-1.0, 1.0), 4),
        )
        for name in names
    )
    jobs = tuple(
        JobPlan(
            key=f"{seed}-{number}-{index}",
            at_s=round(rng.uniform(0.0, 2.0), 3),
            steps=rng.randrange(20, 120),
            ranks=rng.choice([1, 2]),
            cancel_at_s=round(rng.uniform(0.5, 4.0), 3) if rng.random() < 0.15 else None,
            nodes=2 if rng.random() < 0.25 else 1,
        )
        for index in range(rng.randrange(2, 4))
    )
    return Round(seed, number, jobs, strikes)


def play(fleet: Fleet, plan: Round, faults: Mapping[str, Fault]) -> Report:
    """Break and mend what the plan says, wait for the end of all jobs, count."""
    began = time.monotonic()
    accepted = _storm(fleet, plan, faults)
    healed = time.monotonic()
    recovery_s = None
    if _within(RECOVERY_S, lambda: _tries(lambda: _submit_rest(fleet, plan, accepted))):
        before = _tries(lambda: _progress(fleet, accepted))
        healed_at = utc_now()
        if _within(
            RECOVERY_S,
            lambda: _tries(lambda: _has_recovered(fleet, accepted, before or (0, 0), healed_at)),
        ):
            recovery_s = time.monotonic() - healed
    _within(END_S, lambda: _tries(lambda: _all_ended(fleet, accepted)))
    _within(30.0, lambda: not any(fleet.attempt_processes(node) for node in NODES))
    wanted = {accepted[job.key]: job for job in plan.jobs if job.key in accepted}
    found = count(fleet, wanted, [job.key for job in plan.jobs])
    return Report(
        plan=plan,
        submitted=len(accepted),
        recovery_s=recovery_s,
        lost=found.lost,
        doubled=found.doubled,
        broken=found.broken,
        took_s=time.monotonic() - began,
    )


def spec_of(job: JobPlan) -> dict[str, Any]:
    """What is submitted."""
    return {
        "name": job.key,
        "model": {"name": "gpt", "layers": 1, "width": 16, "heads": 2},
        "data": {"dataset": "python-stdlib", "tokenizer": "bytes", "sequence_length": 32},
        "training": {
            "steps": job.steps, "global_batch_size": 4, "learning_rate": 1e-3, "seed": 3,
        },
        "parallelism": {"strategy": "ddp" if job.ranks * job.nodes > 1 else "single"},
        "checkpoint": {"every_steps": 20, "keep_last": 2},
        "resources": {"nodes": job.nodes, "ranks_per_node": job.ranks, "wall_time": "10min"},
    }  # fmt: skip


def _storm(fleet: Fleet, plan: Round, faults: Mapping[str, Fault]) -> dict[str, str]:
    """Submissions, cancellations and faults as their time comes; the jobs that were accepted."""
    accepted: dict[str, str] = {}
    agenda: list[tuple[float, Callable[[], object]]] = []
    mends: list[tuple[float, Mend]] = []
    begun = time.monotonic()

    def strike(one: Strike) -> None:
        mend = faults[one.fault](fleet, one)
        mends.append((time.monotonic() - begun + one.lasts_s, mend))

    for one in plan.strikes:
        agenda.append((one.at_s, lambda one=one: strike(one)))  # type: ignore[misc]
    for job in plan.jobs:
        agenda.append((job.at_s, lambda job=job: _submit(fleet, job, accepted)))  # type: ignore[misc]
        if job.cancel_at_s is not None:
            agenda.append((job.cancel_at_s, lambda job=job: _cancel(fleet, accepted.get(job.key))))  # type: ignore[misc]
    while agenda or mends:
        now = time.monotonic() - begun
        due = min((item for item in (*agenda, *mends) if item[0] <= now), default=None, key=_when)
        if due is not None:
            (agenda if due in agenda else mends).remove(due)
            due[1]()
        else:
            time.sleep(LOOK_S)
        fleet.keep_running()
    return accepted


def _when(item: tuple[float, object]) -> float:
    return item[0]


def _submit(fleet: Fleet, job: JobPlan, accepted: dict[str, str]) -> bool:
    """Ask for the job; whether it was accepted. Asked again with the same key, it is the same."""
    answer = fleet.ask("POST", "/v1/jobs", json=spec_of(job), headers={"Idempotency-Key": job.key})
    if answer is None or answer.status_code != 201:
        assert answer is None or answer.status_code in (409, 429), answer.text
        return False
    accepted[job.key] = str(answer.json()["id"])
    return True


def _submit_rest(fleet: Fleet, plan: Round, accepted: dict[str, str]) -> bool:
    """Submit what nobody has accepted so far; whether nothing is left."""
    fleet.keep_running()
    return all(job.key in accepted or _submit(fleet, job, accepted) for job in plan.jobs)


def _cancel(fleet: Fleet, job_id: str | None) -> None:
    if job_id is not None:
        fleet.ask("POST", f"/v1/jobs/{job_id}/cancel")


def _progress(fleet: Fleet, accepted: Mapping[str, str]) -> tuple[int, int]:
    """How many of these jobs have ended, and the steps of all that the API has heard of."""
    with fleet.database.read() as session:
        ended = session.scalar(
            select(func.count())
            .select_from(Job)
            .where(Job.id.in_(accepted.values()), Job.state.in_(TERMINAL_JOB))
        )
        steps = session.scalar(select(func.sum(Job.last_step)).where(Job.id.in_(accepted.values())))
    return ended or 0, steps or 0


def _has_recovered(
    fleet: Fleet, accepted: Mapping[str, str], before: tuple[int, int], healed_at: Any
) -> bool:
    """Both APIs work, one scheduler leads, both nodes are heard, and jobs go on."""
    fleet.keep_running()
    with fleet.database.read() as session:
        now = utc_now()
        leader = session.scalar(select(LeadershipRow.expires_at))
        heard = session.scalars(select(Node.last_seen_at).where(Node.unreachable_since.is_(None)))
        ok = leader is not None and leader > now
        seen = [
            at for at in heard if at is not None and healed_at < at < now + timedelta(seconds=60)
        ]
    if not ok or len(seen) < len(NODES) or not all(fleet.answers(name) for name in fleet.api_urls):
        return False
    ended, steps = _progress(fleet, accepted)
    return ended == len(accepted) or (ended, steps) > before


def _all_ended(fleet: Fleet, accepted: Mapping[str, str]) -> bool:
    fleet.keep_running()
    with fleet.database.read() as session:
        states = session.scalars(select(Job.state).where(Job.id.in_(accepted.values()))).all()
    return len(states) == len(accepted) and all(state in TERMINAL_JOB for state in states)


def _tries(ask: Callable[[], Any]) -> Any:
    """The answer, or None while the database is away."""
    with contextlib.suppress(SQLAlchemyError):
        return ask()
    return None


def _within(seconds: float, ask: Callable[[], object]) -> bool:
    deadline = time.monotonic() + seconds
    while not ask():
        if time.monotonic() > deadline:
            return False
        time.sleep(LOOK_S)
    return True
