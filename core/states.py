"""States of jobs, attempts, leases and nodes, and every edge between them. Pure.

A state is written by `core.transitions.advance` alone, along an edge of EDGES. A state that no
edge leaves is terminal. "Unreachable" and "stalled" are conditions with a timestamp, not states.
`docs/states.md` is printed from this file (`python -m api.contract.states_document`).
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any


class DocumentedEnum(StrEnum):
    """A closed set of words, each defined with its meaning."""

    _value_: str
    meaning: str
    """A sentence or two: when a thing is in this state, or when this word is used."""

    def __new__(cls, word: str, meaning: str = "") -> "DocumentedEnum":
        """Make the member `word`; `meaning` is printed in the documentation."""
        member = str.__new__(cls, word)
        member._value_ = word
        member.meaning = meaning
        return member


class JobState(DocumentedEnum):
    """State of a job, as its owner sees it."""

    QUEUED = "queued", "Waits for a lease and a node; its reason gives the cause."
    STARTING = "starting", "Has an attempt on its nodes that has not made its first step."
    RUNNING = "running", "Trains: its attempt has made a step."
    STOPPING = "stopping", "Was asked to stop; its ranks save a checkpoint and end."
    PAUSED = "paused", "Keeps its checkpoints and waits until its owner resumes it."
    SUCCEEDED = "succeeded", "Finished its steps, and its last checkpoint is in the store."
    FAILED = "failed", "Ended without a result and is not retried automatically."
    CANCELLED = "cancelled", "Was cancelled by its owner, by staff, or by its agenda."


class AttemptState(DocumentedEnum):
    """State of one try at running a job on its nodes."""

    ASSIGNED = "assigned", "Has nodes and slots; not all of its nodes have accepted it."
    STARTING = "starting", "Every node has accepted it and prepares its ranks."
    RUNNING = "running", "Has made a step."
    STOPPING = "stopping", "Was asked to stop; its ranks save a checkpoint and end."
    EXITED = "exited", "Has ended on every node; its outcome gives the cause."


class Phase(DocumentedEnum):
    """Phase of an attempt as its node sees it."""

    PREPARING = "preparing", "Fetches the dataset or a checkpoint, or waits for the launcher."
    READY = "ready", "All files are here; the ranks wait for the other nodes to be ready, too."
    STARTING = "starting", "Ranks exist; none has made a step."
    RUNNING = "running", "Has made a step."
    STOPPING = "stopping", "Asked to stop; its ranks save a checkpoint and end."
    EXITED = "exited", "All its ranks have ended."


class LeaseState(DocumentedEnum):
    """State of the exclusive use of a node for some hours."""

    BOOKED = "booked", "Holds hours that have not begun, or its node is not ready yet."
    ACTIVE = "active", "The node is its owner's: jobs may start in it."
    ENDING = "ending", "Nothing starts in it any more; its jobs save and stop, the node is cleaned."
    ENDED = "ended", "Has ended; its hours and its node are free."
    CANCELLED = "cancelled", "Was cancelled by its owner or taken back before it began."


class NodeState(DocumentedEnum):
    """State of a node, set by an administrator, by the node's clean check, or by both."""

    PENDING = "pending", "Enrolled, but never heard from."
    READY = "ready", "Takes leases and jobs."
    DRAINING = "draining", "Takes no new lease; running jobs continue to their end."
    MAINTENANCE = "maintenance", "Out of service for staff, with nothing running on it."
    DIRTY = "dirty", "Has not proved itself clean after a lease; takes no lease until it does."
    QUARANTINED = "quarantined", "Taken out of service by staff at once, because it is not trusted."
    RETIRED = "retired", "Removed permanently; its token is revoked."


class Sharing(DocumentedEnum):
    """Jobs of different owners that a node can run beside each other, as its worker finds it."""

    NONE = "none", "It cannot keep two owners apart; it is leased whole."
    RECIPES = "recipes", "Recipes run beside recipes; a script runs alone."
    FULL = "full", "Scripts, too, run beside the jobs of others."


class GpuHealth(DocumentedEnum):
    """Fitness of one GPU for jobs, as its node's worker finds it. Jobs get healthy GPUs alone."""

    HEALTHY = "healthy", "Answers, and torch sees it; nobody else uses it."
    LOST = "lost", "Has fallen off the bus or does not answer; the node must be rebooted."
    DRIVER = "driver", "The driver does not answer, or does not fit its library or torch."
    MEMORY = "memory", "Its memory has errors that cannot be corrected, or a repair that failed."
    REPAIR_PENDING = "repair_pending", "Its memory is repaired when the GPU is next reset."
    UNSEEN = "unseen", "NVML shows it, but torch does not see it or has no kernels for it."
    OCCUPIED = "occupied", "A process that is not of a running job uses it or holds its memory."
    FAILED = "failed", "Failed in an attempt; it rests, and must compute before jobs get it again."
    SPLIT = "split", "Is in MIG mode without an instance that a job could use."


class Outcome(DocumentedEnum):
    """The reason why an attempt exited."""

    SUCCEEDED = "succeeded", "The training finished its steps, or the program ended with 0."
    USER_ERROR = "user_error", "The program failed or crashed by itself, or broke a limit."
    DIVERGED = "diverged", "The loss became NaN or infinite, or exceeded its limit."
    OUT_OF_MEMORY = "out_of_memory", "A GPU or the machine ran out of memory."
    BAD_DATA = "bad_data", "The dataset or the tokenizer cannot be used as the spec asks."
    BAD_CHECKPOINT = "bad_checkpoint", "The checkpoint to start from is damaged or does not fit."
    START_FAILED = (
        "start_failed",
        "Disk, store, port, preflight or equipment failed, or no node came.",
    )
    GPU_FAILED = "gpu_failed", "A GPU, its driver or a link between GPUs is broken."
    STALLED = "stalled", "A rank stopped answering its peers, made no step, or did not end."
    KILLED = "killed", "Something other than Trainyard killed a rank or its launcher."
    TIME_LIMIT = "time_limit", "Its wall time was used up."
    NODE_LOST = "node_lost", "The node was restarted while the attempt ran, or was declared lost."
    SHIM_LOST = "shim_lost", "The process that supervised it on the node (the shim) is gone."
    PREEMPTED = (
        "preempted",
        ("The platform or its owner took its nodes away; the job continues later."),
    )
    LEASE_ENDED = "lease_ended", "Its lease ended; the job continues in the next one."
    PAUSED = "paused", "Its owner or staff paused it."
    CANCELLED = "cancelled", "Its owner or staff cancelled it."


class Desired(DocumentedEnum):
    """The end that the owner of a job desires."""

    RUN = "run", "Run it until it has finished."
    PAUSE = "pause", "Stop it with a checkpoint and keep it paused."
    CANCEL = "cancel", "Stop it permanently."


J, A, L, N = JobState, AttemptState, LeaseState, NodeState

# State -> next state -> the event that leads there.
JOB_EDGES: dict[JobState, dict[JobState, str]] = {
    J.QUEUED: {
        J.STARTING: "the scheduler assigns an attempt to nodes",
        J.PAUSED: "its owner pauses it, or it was stopped too often before a first checkpoint",
        J.CANCELLED: "its owner, staff or its agenda cancels it",
    },
    J.PAUSED: {
        J.QUEUED: "its owner resumes it; it joins the end of the queue",
        J.CANCELLED: "its owner or staff cancels it",
    },
    J.STARTING: {
        J.RUNNING: "the first step is reported",
        J.STOPPING: "it is asked to stop, or it has ended on one of its nodes",
        J.QUEUED: "the attempt exited and is retried",
        J.FAILED: "the attempt exited and is not retried",
    },
    J.RUNNING: {
        J.STOPPING: "it is asked to stop, or it has failed on one of its nodes",
        J.SUCCEEDED: "the attempt exited with `succeeded`",
        J.FAILED: "the attempt exited and is not retried",
        J.QUEUED: "the attempt exited and is retried",
    },
    J.STOPPING: {
        J.QUEUED: "the attempt exited; the job continues later",
        J.PAUSED: "the attempt exited; its owner wants a pause",
        J.CANCELLED: "the attempt exited; its owner wants it cancelled, or a workbench is over",
        J.FAILED: "the attempt exited and is not retried, or its wall time is used up",
        J.SUCCEEDED: "the attempt finished before the signal to stop",
    },
    J.SUCCEEDED: {},
    J.FAILED: {},
    J.CANCELLED: {},
}
ATTEMPT_EDGES: dict[AttemptState, dict[AttemptState, str]] = {
    A.ASSIGNED: {
        A.STARTING: "every node has accepted it",
        A.STOPPING: "its job is asked to stop",
        A.EXITED: "it ended, or no node accepted it in time",
    },
    A.STARTING: {
        A.RUNNING: "the first step is reported",
        A.STOPPING: "its job is asked to stop, or it has ended on one of its nodes",
        A.EXITED: "it ended on every node",
    },
    A.RUNNING: {
        A.STOPPING: "its job is asked to stop, or it has failed on one of its nodes",
        A.EXITED: "it ended on every node",
    },
    A.STOPPING: {A.EXITED: "it ended on every node"},
    A.EXITED: {},
}
LEASE_EDGES: dict[LeaseState, dict[LeaseState, str]] = {
    L.BOOKED: {
        L.ACTIVE: "its start has come and its node is ready and clean",
        L.CANCELLED: "its owner releases it, or staff, a fault or a clean-up takes it",
    },
    L.ACTIVE: {L.ENDING: "its usable end has come, or it is given or taken back"},
    L.ENDING: {L.ENDED: "its node reports itself clean, or its hold is over"},
    L.ENDED: {},
    L.CANCELLED: {},
}
NODE_EDGES: dict[NodeState, dict[NodeState, str]] = {
    N.PENDING: {N.READY: "the first heartbeat arrives", N.RETIRED: "an administrator retires it"},
    N.READY: {
        N.DRAINING: "staff drain it",
        N.DIRTY: "a lease ended without proof that the node is clean",
        N.QUARANTINED: "staff take it out of service",
        N.RETIRED: "an administrator retires it",
    },
    N.DRAINING: {
        N.READY: "staff put it back into service",
        N.MAINTENANCE: "nothing runs on it any more",
        N.DIRTY: "a lease ended without proof that the node is clean",
        N.QUARANTINED: "staff take it out of service",
        N.RETIRED: "an administrator retires it",
    },
    N.MAINTENANCE: {
        N.READY: "staff put it back into service",
        N.RETIRED: "an administrator retires it",
    },
    N.DIRTY: {
        N.READY: "it reports itself clean, or staff put it back into service",
        N.QUARANTINED: "staff take it out of service",
        N.RETIRED: "an administrator retires it",
    },
    N.QUARANTINED: {
        N.READY: "staff put it back into service",
        N.RETIRED: "an administrator retires it",
    },
    N.RETIRED: {},
}

LIVE_JOB = (J.STARTING, J.RUNNING, J.STOPPING)  # an attempt of it is on a node, or about to be
WAITING_JOB = (J.QUEUED, J.PAUSED)
TERMINAL_JOB = tuple(state for state, targets in JOB_EDGES.items() if not targets)
LIVE_ATTEMPT = (A.ASSIGNED, A.STARTING, A.RUNNING, A.STOPPING)
LIVE_LEASE = (L.BOOKED, L.ACTIVE, L.ENDING)

# Stops by the platform: the job goes on and no budget is charged.
INTERRUPTED = (Outcome.PREEMPTED, Outcome.LEASE_ENDED)
# Infrastructure failures: the job resumes from its newest checkpoint, so many times:
INFRASTRUCTURE = (
    Outcome.START_FAILED,
    Outcome.GPU_FAILED,
    Outcome.STALLED,
    Outcome.KILLED,
    Outcome.NODE_LOST,
    Outcome.SHIM_LOST,
)
MAX_INFRASTRUCTURE_FAILURES = 3


def sources(edges: Mapping[Any, Mapping[Any, str]], target: StrEnum) -> tuple[StrEnum, ...]:
    """Return the states from which an edge leads to `target`."""
    return tuple(state for state, targets in edges.items() if target in targets)


def job_after(outcome: Outcome, desired: Desired, infrastructure_failures: int) -> JobState:
    """Return the next state of a job whose attempt exited with `outcome`.

    `infrastructure_failures` counts the earlier ones of this job. Cancel or pause, if desired, wins
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
