"""Search for the rank that did not enter a collective, done together by ranks that waited in vain.

torch keeps the newest 2,000 collectives of a process in memory (its flight recorder), so this costs
nothing while all goes well. A rank that fails writes its position to the store through which the
ranks met; one that waited in vain reads the positions of the others.
"""

import json
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from threading import Thread
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict
from torch.distributed import DistError
from torch.distributed.distributed_c10d import PrefixStore, _get_default_store

from strategies.train.mesh import Mesh
from strategies.train.trust.roll_call import LOOK_EVERY_S

SIGNED = 20  # newest collectives of each group that a rank signs
# Time for the others to hear and sign; they look every second. If a dozen processes share each
# core, seconds pass before one that was woken has signed.
ANSWER_S = 6.0
NOTICE_S = 1.0  # for a rank to ask, if a connection broke
INQUIRY_AT_MOST_S = 2 * ANSWER_S + 2.0
TIMED_OUT = re.compile(r"Timed out waiting|[Ss]ocket timeout|monitoredBarrier")
MISMATCH = re.compile(r"op\.preamble")  # gloo received a message of another collective
BROKEN_OFF = re.compile(r"Connection (closed|reset)|Broken pipe|remote process exited")
ASKED, READ = "asked", "read"  # counts of ranks that take part, and that have read the answers
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


class Inquiry:
    """Common search of the ranks for the one that they wait for.

    A rank that waited in vain asks. Every rank that hears of it signs its position, then leaves:
    the training is over.
    """

    def __init__(self, mesh: Mesh) -> None:
        """Connect to the store through which the ranks met, beside the main thread's connection."""
        self.rank, self.world_size = mesh.rank, mesh.world_size
        self.dump = recorder(mesh.device.type)
        own = _get_default_store().clone()  # type: ignore[attr-defined]
        self.store = PrefixStore("digest", own)

    def is_open(self) -> bool:
        """Return True if any rank has asked. Raises DistError if the store is gone."""
        return bool(self.store.add(ASKED, 0) > 0)

    def opens_within(self, seconds: float) -> bool:
        """Wait until a rank asks; return False if none does in this time."""
        until = time.monotonic() + seconds
        while not self.is_open():
            if time.monotonic() > until:
                return False
            time.sleep(LOOK_EVERY_S)
        return True

    def hold(self) -> Digest | None:
        """Sign, and return who is missing; None if this rank has entered no collective.

        Takes ANSWER_S if a rank does not sign. Raises DistError if the store is gone.
        """
        self.store.add(ASKED, 1)
        mine = [one.model_dump() for one in positions(self.entries())]
        self.store.set(f"positions/{self.rank}", json.dumps(mine))
        until = time.monotonic() + ANSWER_S
        while len(signed := self.signed()) < self.world_size and time.monotonic() < until:
            time.sleep(LOOK_EVERY_S)
        self.store.add(READ, 1)
        self.stay_while_read()
        return blame(signed, self.rank, frozenset(range(self.world_size)) - signed.keys())

    def signed(self) -> dict[int, list[Position]]:
        """Return the positions of the ranks that have signed."""
        keys = {rank: f"positions/{rank}" for rank in range(self.world_size)}
        return {
            rank: [Position.model_validate(one) for one in json.loads(self.store.get(key))]
            for rank, key in keys.items()
            if self.store.check([key])
        }

    def stay_while_read(self) -> None:
        """Wait until every rank that asked has read: the store may go with this rank."""
        until = time.monotonic() + ANSWER_S
        with suppress(DistError):
            while self.store.add(READ, 0) < self.store.add(ASKED, 0):
                if time.monotonic() > until:
                    return  # one that asked has died meanwhile
                time.sleep(LOOK_EVERY_S)

    def entries(self) -> list[dict[str, Any]]:
        """Return the newest collectives of this rank, by the flight recorder."""
        entries: list[dict[str, Any]] = json.loads(self.dump(True, False)).get("entries", [])
        return entries


def recorder(device: str) -> Callable[[bool, bool], bytes]:
    """Return the function that dumps the flight recorder of the device's backend as JSON."""
    name = "_dump_nccl_trace_json" if device == "cuda" else "_dump_fr_trace_json"
    dump: Callable[[bool, bool], bytes] = getattr(torch._C._distributed_c10d, name)
    return dump


def digest(error: BaseException, inquiry: Inquiry) -> Digest | None:
    """Find the ranks to blame for this rank's `error`; None if the rank did not wait in vain."""
    if not isinstance(error, RuntimeError):
        return None
    if BROKEN_OFF.search(str(error)):
        # A connection breaks if the other rank died, about which nobody asks, or has given up.
        return in_time(lambda: inquiry.hold() if inquiry.opens_within(NOTICE_S) else None)
    if MISMATCH.search(str(error)) or TIMED_OUT.search(str(error)):
        return in_time(inquiry.hold)
    return None


def in_time(ask: Callable[[], Digest | None]) -> Digest | None:
    """Return what `ask` returns; None if the store is gone, or does not answer any more."""
    found: list[Digest | None] = []

    def run() -> None:
        with suppress(DistError):
            found.append(ask())

    asking = Thread(target=run, daemon=True)
    asking.start()
    asking.join(INQUIRY_AT_MOST_S)
    return found[0] if found else None


def positions(entries: Sequence[Mapping[str, Any]]) -> list[Position]:
    """Return this rank's positions, by the flight recorder; the most recently used group first."""
    groups: dict[str, dict[int, str]] = {}
    for entry in entries:
        if entry.get("is_p2p"):
            continue
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
