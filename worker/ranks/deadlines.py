"""Times at which the shim asks for a checkpoint, asks to stop, terminates and kills. Pure.

Times are seconds on the node's boot clock, so a slow answer, a dead API or a changed wall clock
moves nothing.
"""

from enum import IntEnum

from core.states import Outcome
from core.wire.messages import Deadlines, StopOrder
from worker.node.attempts import DeadlinesFile

KILL_AFTER_TERM_S = 30.0


class DueAction(IntEnum):
    """Strongest action that is due; each includes those before it."""

    NOTHING = 0
    CHECKPOINT = 1
    STOP = 2
    TERM = 3
    KILL = 4


def due(schedule: DeadlinesFile, now: float) -> DueAction:
    """Return the action that is due at `now`."""
    if now >= schedule.kill_at:
        return DueAction.KILL
    if now >= schedule.term_at:
        return DueAction.TERM
    if now >= schedule.stop_at:
        return DueAction.STOP
    if now >= schedule.checkpoint_at:
        return DueAction.CHECKPOINT
    return DueAction.NOTHING


def stop_past(schedule: DeadlinesFile | None, *, now: float, boot_id: str) -> Outcome | None:
    """Return the reason of the stop whose time has come; None if it has not."""
    if schedule is None or schedule.boot_id != boot_id or due(schedule, now) < DueAction.STOP:
        return None
    return schedule.reason


def schedule_of(
    deadlines: Deadlines,
    stop: StopOrder | None,
    *,
    sent_at: float,
    now: float,
    boot_id: str,
    before: DeadlinesFile | None,
) -> DeadlinesFile:
    """Return the schedule that follows from an order that answers a request sent at `sent_at`.

    A stop that was ordered, or whose time has come, keeps its times; a deadline of the lease that
    comes sooner still holds.
    """
    stop_at = sent_at + deadlines.stop_in_s
    kill_at = sent_at + deadlines.kill_in_s
    by_lease = DeadlinesFile(
        boot_id=boot_id,
        checkpoint_at=sent_at + deadlines.checkpoint_in_s,
        stop_at=stop_at,
        term_at=max(stop_at, kill_at - KILL_AFTER_TERM_S),
        kill_at=kill_at,
        reason=deadlines.stop_reason,
    )
    if before is not None and before.boot_id != boot_id:
        before = None
    if before is not None and not before.ordered and now < before.stop_at:
        before = None
    if stop is None and before is None:
        return by_lease
    ordered = before or ordered_stop(stop, now=now, boot_id=boot_id)
    return ordered.model_copy(
        update={
            "term_at": min(ordered.term_at, by_lease.term_at),
            "kill_at": min(ordered.kill_at, by_lease.kill_at),
        }
    )


def ordered_stop(stop: StopOrder | None, *, now: float, boot_id: str) -> DeadlinesFile:
    """Return the schedule of a stop from now on: save, SIGTERM after the grace, SIGKILL 30 s
    later."""
    assert stop is not None
    term_at = now + max(0.0, stop.grace_s)
    return DeadlinesFile(
        boot_id=boot_id,
        checkpoint_at=now,
        stop_at=now,
        term_at=term_at,
        kill_at=term_at + KILL_AFTER_TERM_S,
        reason=stop.reason,
        ordered=True,
    )
