"""Search for the rank that did not enter a collective, done together by ranks that waited in vain.

torch keeps the newest 2,000 collectives of a process in memory (its flight recorder), so this costs
nothing while all goes well. A rank that fails writes its position to the store through which the
ranks met; one that waited in vain reads the positions of the others.
"""

import json
import math
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch.distributed as dist
from pydantic import BaseModel, ConfigDict
from torch._C._distributed_c10d import _dump_fr_trace_json  # type: ignore[attr-defined]
from torch.distributed import DistError
from torch.distributed.distributed_c10d import (
    PrefixStore,
    _get_default_group,
    _get_default_store,
)

from strategies.train.mesh import Mesh
from strategies.train.trust.roll_call import LOOK_EVERY_S, RanksMissing, RollCall

SIGNED = 20  # newest collectives of each group that a rank signs
# Time for the others to sign, or to ask. Their own wait ends at about the same time; but if a
# dozen processes share each core, seconds pass before one that was woken has signed.
ANSWER_S = 6.0
NOTICE_S = 1.0  # for a rank to ask, if a connection broke before any rank can have timed out
ASKED_AT_MOST_S = ANSWER_S + 4.0  # an asking rank may wait for the answers, then must read them
TIMED_OUT = re.compile(r"Timed out waiting|[Ss]ocket timeout|monitoredBarrier")
MISMATCH = re.compile(r"op\.preamble")  # gloo received a message of another collective
BROKEN_OFF = re.compile(r"Connection (closed|reset)|Broken pipe|remote process exited")
ASKED, READ = "asked", "read"  # counts of ranks that have asked, and that have read the answers
SAME_ON_ALL = ("all_reduce", "broadcast")  # all ranks must pass equally many numbers


class Position(BaseModel):
    """Position of a rank in one process group. Collectives are numbered from 1 in each group."""

    model_config = ConfigDict(frozen=True)

    group: str
    entered: int
    """Number of the last collective that the rank entered."""
    recent: dict[int, str]
    """Last collectives by number: `all_reduce of 5 numbers`, `all_gather`."""

    def named(self, number: int) -> str:
        """Return `all_reduce of 5 numbers (number 27 of all ranks)`."""
        return f"{self.recent.get(number, 'collective')} (number {number:,} of {self.group})"


class Digest(BaseModel):
    """Findings of the ranks."""

    model_config = ConfigDict(frozen=True)

    missing: list[int]
    """Ranks that the others wait for; empty if all are in the same collective."""
    why: str
    """Sentence without its full stop."""
    positions: dict[int, list[Position]]
    """Positions of every rank that signed, the most recently used group first."""


def digest(error: BaseException, mesh: Mesh) -> Digest | None:
    """Find the ranks to blame for this rank's `error`; None if the rank did not wait in vain."""
    if not isinstance(error, RuntimeError) or not dist.is_initialized():
        return None
    is_victim, is_mismatch = (kind.search(str(error)) for kind in (BROKEN_OFF, MISMATCH))
    if not (is_victim or is_mismatch or TIMED_OUT.search(str(error))):
        return None
    store = PrefixStore("digest", _get_default_store())
    roll = RollCall(
        store,
        rank=mesh.rank,
        world_size=mesh.world_size,
        timeout_s=ANSWER_S + (own_patience_s(mesh) if is_mismatch else 0.0),
        name="roll",
    )
    try:
        if not is_victim:
            store.add(ASKED, 1)  # before anything else: others may be about to leave
        entries = json.loads(_dump_fr_trace_json(True, False)).get("entries", [])
        mine = [one.model_dump() for one in positions(entries)]
        store.set(f"positions/{mesh.rank}", json.dumps(mine))
        roll.enter("a digest")
        if is_victim:
            store.set(f"roll/failed/{mesh.rank}", "")
            gave_up = waited_s(entries, time.time_ns()) > own_patience_s(mesh) / 2
            stay_while_asked(store, ANSWER_S if gave_up else NOTICE_S)
            return None
        blamed = roll.find(error).ranks
        signed = _signed(store, mesh.world_size)
        store.add(READ, 1)
    except (DistError, RanksMissing):
        return None  # the store is gone with the rank that kept it, whose own failure says why
    with suppress(DistError):
        stay_while_asked(store)
    return blame(signed, mesh.rank, blamed - signed.keys())  # a rank that signed late is not silent


def own_patience_s(mesh: Mesh) -> float:
    """Return this rank's collective timeout in seconds; the others have the same."""
    backend = _get_default_group()._get_backend(mesh.device)
    return float(backend.options._timeout.total_seconds())


def waited_s(entries: Sequence[Mapping[str, Any]], now_ns: int) -> float:
    """Return the seconds since this rank entered its last collective, by the flight recorder."""
    last_ns = max((int(entry["time_created_ns"]) for entry in entries), default=now_ns)
    return (now_ns - last_ns) / 1e9


def positions(entries: Sequence[Mapping[str, Any]]) -> list[Position]:
    """Return this rank's positions, by the flight recorder; the most recently used group first."""
    groups: dict[str, dict[int, str]] = {}
    for entry in entries:
        number, description = entry["process_group"]
        group = "all ranks" if description == "default_pg" else str(description or number)
        kind = str(entry["profiling_name"]).rpartition(":")[2]
        if kind in SAME_ON_ALL:
            kind += f" of {sum(math.prod(size) for size in entry['input_sizes']):,} numbers"
        of_group = groups.pop(group, {})
        of_group[int(entry["collective_seq_id"])] = kind
        groups[group] = of_group  # now the newest
    return [
        Position(
            group=group,
            entered=max(of_group),
            recent=dict(sorted(of_group.items())[-SIGNED:]),
        )
        for group, of_group in reversed(groups.items())
    ]


def blame(signed: dict[int, list[Position]], rank: int, silent: frozenset[int]) -> Digest | None:
    """Return the digest that `rank` draws from the positions; None if it entered no collective.

    If ranks came to different collectives, the smaller group is blamed, and of equal groups the one
    with the higher ranks: any of them may report it, but all report the same.
    """
    if not signed[rank]:
        return None
    mine = signed[rank][0]
    where = mine.named(mine.entered)
    if silent:
        names = " and ".join(f"rank {one}" for one in sorted(silent))
        why = f"{names} did not come to {where}, or not out of it, and does not answer"
        return Digest(missing=sorted(silent), why=why, positions=signed)
    there = {
        other: position
        for other, its in sorted(signed.items())
        for position in its
        if position.group == mine.group
    }
    blamed = min((accused(one, there) for one in there), key=len)
    why = "; ".join(blamed.values()) or f"all ranks entered {where}, and it did not end"
    return Digest(missing=sorted(blamed), why=why, positions=signed)


def accused(rank: int, positions: Mapping[int, Position]) -> dict[int, str]:
    """Return the ranks that differ from `rank` in a group, or that it lags behind, with
    sentences."""
    blamed: dict[int, str] = {}
    for other, position in positions.items():
        blamed |= apart(rank, positions[rank], other, position)
    return blamed


def apart(rank: int, mine: Position, other: int, there: Position) -> dict[int, str]:
    """Return which of two ranks is behind the other in a group, or came to another collective."""
    for number in sorted(mine.recent.keys() & there.recent.keys()):
        if mine.recent[number] != there.recent[number]:
            sentence = f"rank {other} came to {there.named(number)}"
            return {other: f"{sentence} where rank {rank} came to {mine.recent[number]}"}
    if mine.entered == there.entered:
        return {}
    late, behind, ahead = (
        (other, there, mine) if there.entered < mine.entered else (rank, mine, there)
    )
    never, last = ahead.named(behind.entered + 1), behind.entered
    return {late: f"rank {late} never entered {never}; the last that it entered is number {last:,}"}


def _signed(store: PrefixStore, world_size: int) -> dict[int, list[Position]]:
    keys = {rank: f"positions/{rank}" for rank in range(world_size)}
    return {
        rank: [Position.model_validate(one) for one in json.loads(store.get(key))]
        for rank, key in keys.items()
        if store.check([key])
    }


def stay_while_asked(store: PrefixStore, at_least_s: float = 0.0) -> None:
    """Stay until every rank that asks has read, and `at_least_s` if none does.

    The store may go with this rank. A connection breaks either because the other rank died, about
    which nobody needs to ask, or because it timed out. In that case it asks, but not at once if
    processes queue for a core.
    """
    began = time.monotonic()
    while True:
        asked, read = store.add(ASKED, 0), store.add(READ, 0)
        if 0 < asked == read:
            return
        if time.monotonic() > began + (ASKED_AT_MOST_S if asked else at_least_s):
            return  # nobody asks, or one that did has died meanwhile
        time.sleep(LOOK_EVERY_S)
