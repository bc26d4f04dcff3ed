"""States of jobs, attempts, leases and nodes, and every edge between them. Pure.

A state is written by `core.transitions.advance` alone, along an edge of EDGES. A state that no
edge leaves is terminal. "Unreachable" and "stalled" are conditions with a timestamp, not states.
`docs/states.md` is printed from this file (`python -m core.states`).
"""

import sys
from collections.abc import Mapping
from enum import StrEnum
from typing import Any


class JobState(StrEnum):
    """What a job is doing, as its owner sees it."""

    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    PAUSED = "paused"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class AttemptState(StrEnum):
    """Where one try at running a job stands on its node."""

    ASSIGNED = "assigned"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    EXITED = "exited"


class LeaseState(StrEnum):
    """Where the exclusive use of a node stands."""

    BOOKED = "booked"
    ACTIVE = "active"
    ENDING = "ending"
    ENDED = "ended"
    CANCELLED = "cancelled"


class NodeState(StrEnum):
    """What an administrator, or a failed clean check, has made of a node."""

    PENDING = "pending"
    READY = "ready"
    DRAINING = "draining"
    MAINTENANCE = "maintenance"
    DIRTY = "dirty"
    QUARANTINED = "quarantined"
    RETIRED = "retired"


class Outcome(StrEnum):
    """Why an attempt exited."""

    SUCCEEDED = "succeeded"
    USER_ERROR = "user_error"
    DIVERGED = "diverged"
    OUT_OF_MEMORY = "out_of_memory"
    BAD_DATA = "bad_data"
    BAD_CHECKPOINT = "bad_checkpoint"
    START_FAILED = "start_failed"
    STALLED = "stalled"
    KILLED = "killed"
    TIME_LIMIT = "time_limit"
    NODE_LOST = "node_lost"
    SHIM_LOST = "shim_lost"
    PREEMPTED = "preempted"
    LEASE_ENDED = "lease_ended"
    PAUSED = "paused"
    CANCELLED = "cancelled"


class Desired(StrEnum):
    """What the owner wants of a job."""

    RUN = "run"
    PAUSE = "pause"
    CANCEL = "cancel"


J, A, L, N = JobState, AttemptState, LeaseState, NodeState

JOB_EDGES: dict[JobState, tuple[JobState, ...]] = {
    J.QUEUED: (J.STARTING, J.PAUSED, J.CANCELLED),
    J.PAUSED: (J.QUEUED, J.CANCELLED),
    J.STARTING: (J.RUNNING, J.STOPPING, J.QUEUED, J.FAILED),
    J.RUNNING: (J.STOPPING, J.SUCCEEDED, J.FAILED, J.QUEUED),
    J.STOPPING: (J.QUEUED, J.PAUSED, J.CANCELLED, J.FAILED, J.SUCCEEDED),
    J.SUCCEEDED: (),
    J.FAILED: (),
    J.CANCELLED: (),
}
ATTEMPT_EDGES: dict[AttemptState, tuple[AttemptState, ...]] = {
    A.ASSIGNED: (A.STARTING, A.STOPPING, A.EXITED),
    A.STARTING: (A.RUNNING, A.STOPPING, A.EXITED),
    A.RUNNING: (A.STOPPING, A.EXITED),
    A.STOPPING: (A.EXITED,),
    A.EXITED: (),
}
LEASE_EDGES: dict[LeaseState, tuple[LeaseState, ...]] = {
    L.BOOKED: (L.ACTIVE, L.CANCELLED),
    L.ACTIVE: (L.ENDING,),
    L.ENDING: (L.ENDED,),
    L.ENDED: (),
    L.CANCELLED: (),
}
NODE_EDGES: dict[NodeState, tuple[NodeState, ...]] = {
    N.PENDING: (N.READY, N.RETIRED),
    N.READY: (N.DRAINING, N.DIRTY, N.QUARANTINED, N.RETIRED),
    N.DRAINING: (N.READY, N.MAINTENANCE, N.DIRTY, N.QUARANTINED, N.RETIRED),
    N.MAINTENANCE: (N.READY, N.RETIRED),
    N.DIRTY: (N.READY, N.QUARANTINED, N.RETIRED),
    N.QUARANTINED: (N.READY, N.RETIRED),
    N.RETIRED: (),
}

LIVE_JOB = (J.STARTING, J.RUNNING, J.STOPPING)  # an attempt of it is on a node, or about to be
WAITING_JOB = (J.QUEUED, J.PAUSED)
TERMINAL_JOB = tuple(state for state, targets in JOB_EDGES.items() if not targets)
LIVE_ATTEMPT = (A.ASSIGNED, A.STARTING, A.RUNNING, A.STOPPING)
LIVE_LEASE = (L.BOOKED, L.ACTIVE, L.ENDING)

# What the platform did: the job goes on and no budget is charged.
INTERRUPTED = (Outcome.PREEMPTED, Outcome.LEASE_ENDED)
# What broke under the job: it goes on from its newest checkpoint, so many times:
INFRASTRUCTURE = (
    Outcome.START_FAILED,
    Outcome.STALLED,
    Outcome.KILLED,
    Outcome.NODE_LOST,
    Outcome.SHIM_LOST,
)
MAX_INFRASTRUCTURE_FAILURES = 3


def sources(edges: Mapping[Any, tuple[Any, ...]], target: StrEnum) -> tuple[StrEnum, ...]:
    """The states from which an edge leads to `target`."""
    return tuple(state for state, targets in edges.items() if target in targets)


def job_after(outcome: Outcome, desired: Desired, infrastructure_failures: int) -> JobState:
    """What becomes of a job whose attempt exited with `outcome`.

    `infrastructure_failures` counts the earlier ones of this job. A wish to cancel or to pause wins
    over a retry, never over a finished training.
    """
    if outcome is Outcome.SUCCEEDED:
        return J.SUCCEEDED
    if desired is Desired.CANCEL:
        return J.CANCELLED
    retried = outcome in INFRASTRUCTURE and infrastructure_failures < MAX_INFRASTRUCTURE_FAILURES
    if retried or outcome in INTERRUPTED or outcome in (Outcome.PAUSED, Outcome.CANCELLED):
        return J.PAUSED if desired is Desired.PAUSE else J.QUEUED
    return J.FAILED


def as_markdown() -> str:
    """The tables of `docs/states.md`."""
    lines = ["# States", "", "Printed by `python -m core.states`; a test compares the two.", ""]
    for name, edges in (
        ("Job", JOB_EDGES),
        ("Attempt", ATTEMPT_EDGES),
        ("Lease", LEASE_EDGES),
        ("Node", NODE_EDGES),
    ):
        lines += [f"## {name}", "", "| state | goes to |", "|---|---|"]
        for state, targets in edges.items():
            lines.append(f"| `{state}` | {', '.join(f'`{t}`' for t in targets) or '(final)'} |")
        lines.append("")
    lines += ["## What an attempt's outcome makes of its job", ""]
    lines += ["| outcome | next state of the job |", "|---|---|"]
    for outcome in Outcome:
        first = job_after(outcome, Desired.RUN, 0)
        last = job_after(outcome, Desired.RUN, MAX_INFRASTRUCTURE_FAILURES)
        after = (
            f"`{first}`"
            if first is last
            else (f"`{first}`, after {MAX_INFRASTRUCTURE_FAILURES} such failures `{last}`")
        )
        lines.append(f"| `{outcome}` | {after} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(as_markdown())
