"""Decisions about each attempt. Pure: from what was seen and what the API wants, to actions.

`next_step` needs no API: it carries an attempt that was once begun to its end. `follow` adds what
the API wants. Both may be asked again at any time: an action that was done is seen and not
repeated.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from core.states import Outcome
from core.wire.messages import Order, Orders, Unread
from worker.node.attempts import DeadlinesFile, Key, ShimState

MAX_SPAWNS = 4
OVERDUE_S = 8.0  # after the last deadline; a shim that is alive then has failed to kill
UNWANTED_GRACE_S = 20.0


@dataclass(frozen=True)
class AttemptFolder:
    """State of an attempt's folder, as found."""

    key: Key
    exited: bool = False
    shim_lives: bool = False
    started: bool = False
    """True if a shim has ever taken it up."""
    shim: ShimState | None = None
    has_order: bool = True
    prepared: bool = False
    may_start: bool = True
    """False: the ranks wait until the other nodes are ready too."""
    preparing: bool = False
    cannot_start: tuple[Outcome, str] | None = None
    spawn_pending: bool = False
    spawns: int = 0
    schedule: DeadlinesFile | None = None
    trained: str | None = None
    """Sentence about the training, if result.json says that it is finished."""
    failed: tuple[Outcome, str] | None = None
    """Judgement of an attempt whose sandbox was held when its shim was lost."""


@dataclass(frozen=True)
class Begin:
    """Action: create the folder, and write the order and its deadlines."""

    order: Order


@dataclass(frozen=True)
class Prepare:
    """Action: fetch the files that the attempt needs."""

    key: Key


@dataclass(frozen=True)
class Spawn:
    """Action: ask for a shim."""

    key: Key


@dataclass(frozen=True)
class Conclude:
    """Action: end the attempt's remaining processes and write its exit record."""

    key: Key
    outcome: Outcome
    reason: str


@dataclass(frozen=True)
class EndTree:
    """Action: kill the shim and all its processes, because it has outlived its last deadline."""

    key: Key


@dataclass(frozen=True)
class Reschedule:
    """Action: write the attempt's deadlines, whether it is to stop, and whether its ranks may
    start."""

    order: Order | Unread


@dataclass(frozen=True)
class StopUnwanted:
    """Action: stop an attempt that the API does not list."""

    key: Key


@dataclass(frozen=True)
class Wipe:
    """Action: remove the folder, of which everything is stored elsewhere."""

    key: Key


@dataclass(frozen=True)
class Refuse:
    """Action: do not begin the attempt."""

    key: Key
    why: str


Action = Begin | Prepare | Spawn | Conclude | EndTree | Reschedule | StopUnwanted | Wipe | Refuse


def next_step(seen: AttemptFolder, *, now: float, boot_id: str) -> Action | None:
    """Return the action that carries this attempt on; None if it runs, is being prepared, or is
    over."""
    if seen.exited:
        return None
    if seen.shim_lives:
        # A live shim was started in this boot, and so its schedule is of this boot.
        overdue = seen.schedule is not None and now > seen.schedule.kill_at + OVERDUE_S
        return EndTree(seen.key) if overdue else None
    if seen.started:
        return _lost(seen, now=now, boot_id=boot_id)
    if not seen.has_order or seen.schedule is None or seen.schedule.boot_id != boot_id:
        return None  # until the API repeats its order; after a reboot it may want it no longer
    if now >= seen.schedule.stop_at:
        return Conclude(seen.key, seen.schedule.reason, "The job was stopped before it started.")
    if seen.cannot_start is not None:
        return Conclude(seen.key, *seen.cannot_start)
    if not seen.prepared:
        return None if seen.preparing else Prepare(seen.key)
    if seen.spawn_pending or not seen.may_start:
        return None
    if seen.spawns >= MAX_SPAWNS:
        return Conclude(
            seen.key,
            Outcome.START_FAILED,
            f"No launcher started in {seen.spawns} attempts; the worker's log says why.",
        )
    return Spawn(seen.key)


def _lost(seen: AttemptFolder, *, now: float, boot_id: str) -> Conclude:
    """Return the conclusion about a shim that is gone and has left no exit record."""
    if seen.trained is not None:
        reason = f"{seen.trained} The supervising process was lost."
        return Conclude(seen.key, Outcome.SUCCEEDED, reason)
    if seen.failed is not None:
        return Conclude(seen.key, *seen.failed)
    if seen.shim is not None and seen.shim.boot_id != boot_id:
        return Conclude(seen.key, Outcome.NODE_LOST, "The node was restarted while the job ran.")
    if seen.schedule is not None and now >= seen.schedule.stop_at:
        return Conclude(
            seen.key, seen.schedule.reason, "The job did not stop by its deadline and was killed."
        )
    return Conclude(
        seen.key,
        Outcome.SHIM_LOST,
        "The supervising process was killed, but not by Trainyard; the ranks were ended with it.",
    )


def follow(
    seen: Sequence[AttemptFolder], orders: Orders, *, wiped: Mapping[str, int]
) -> list[Action]:
    """Return the actions that the API's orders require.

    An attempt that is not listed must not run.
    """
    here = {one.key: one for one in seen}
    actions: list[Action] = []
    listed = set()
    for order in orders.attempts:
        key = Key(order.job_id, order.epoch)
        listed.add(key)
        found = here.get(key)
        if found is None:
            actions += _take_up(order, key, seen, wiped)
        elif not found.exited:
            repeat = not found.has_order and not found.started
            actions.append(Begin(order) if repeat else Reschedule(order))
    for unread in orders.unread:
        key = Key(unread.job_id, unread.epoch)
        listed.add(key)
        found = here.get(key)
        if found is not None and not found.exited:
            actions.append(Reschedule(unread))
    for one in seen:
        if one.key not in listed and not one.exited:
            stopping = one.schedule is not None and one.schedule.ordered
            actions += [] if stopping else [StopUnwanted(one.key)]
    for reference in orders.forget:
        found = here.get(Key(reference.job_id, reference.epoch))
        if found is not None and found.exited and found.key not in listed:
            actions.append(Wipe(found.key))
    return actions


def _take_up(
    order: Order, key: Key, seen: Sequence[AttemptFolder], wiped: Mapping[str, int]
) -> list[Action]:
    """Begin the attempt, unless a later one was here, or an earlier one still is."""
    siblings = [one for one in seen if one.key.job_id == key.job_id]
    latest = max([wiped.get(key.job_id, 0), *(one.key.epoch for one in siblings)])
    if key.epoch <= latest:
        return [Refuse(key, f"epoch {latest} of this job has already run on this node")]
    if any(not one.exited for one in siblings):
        return []  # the earlier one is not listed and is therefore being stopped
    return [Begin(order)]
