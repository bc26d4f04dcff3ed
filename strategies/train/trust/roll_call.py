"""Roll call: ranks sign what they enter, so that the one that never came can be named.

The list is kept in the store by which the ranks met (torchrun's, or rank 0's), which goes on
answering when a collective hangs. Signing costs one small message and waits for nobody.
"""

import os
import platform
import time
from collections.abc import Iterable
from contextlib import suppress
from datetime import timedelta

from torch.distributed import DistError, DistNetworkError
from torch.distributed.distributed_c10d import PrefixStore, Store

LOOK_EVERY_S = 0.02
LINGER_S = 3.0  # at most, for others to read the reason before a leaving rank's store is gone


class RanksMissing(Exception):
    """Failure because some ranks are dead, hang or are somewhere else; the message names them."""

    def __init__(self, message: str, ranks: frozenset[int]) -> None:
        super().__init__(message)
        self.ranks = ranks


class RollCall:
    """Entries that one rank signs and reads.

    All ranks must enter the same things in the same order.
    """

    def __init__(
        self, store: Store, *, rank: int, world_size: int, timeout_s: float, name: str
    ) -> None:
        self.store = PrefixStore(name, store)
        self.rank, self.world_size, self.timeout_s = rank, world_size, timeout_s
        self.place, self.what, self.exchanges = 0, "the roll call", 0
        self.waits_for = self.place, self.what
        self.names = [f"rank {other}" for other in range(world_size)]

    def introduce(self, purpose: str) -> None:
        """Meet every rank, check that all have the same purpose, and learn their machines and
        processes.

        Raises RanksMissing, also if purposes differ.
        """
        self.enter(purpose)
        said = self.exchange(f"rank {self.rank} ({platform.node()}, pid {os.getpid()})\n{purpose}")
        self.names, purposes = [list(part) for part in zip(*map(str.splitlines, said), strict=True)]
        self._require_same(purposes)

    def enter(self, what: str) -> None:
        """Sign that this rank now enters `what`. Raises RanksMissing if the list is gone."""
        self.place, self.what = self.place + 1, what
        self.waits_for = self.place, self.what
        try:
            self.store.set(f"at/{self.rank}", f"{self.place} {what}")
        except DistNetworkError as error:
            raise self._list_is_gone(error) from error

    def wait_for(self, entered: tuple[int, str]) -> None:
        """Set which of several entered things this rank now waits for, by place and name."""
        self.waits_for = entered

    def meet(self, what: str) -> None:
        """Enter `what` once every rank has come to it. Raises RanksMissing, also if they differ."""
        self.enter(what)
        self._require_same(self.exchange(what))

    def _require_same(self, said: list[str]) -> None:
        if len(set(said)) > 1:
            self.leave_with(range(self.world_size))
            raise out_of_step(said, self.names)

    def exchange(self, text: str) -> list[str]:
        """Return the text of every rank, by rank. Raises RanksMissing."""
        self.exchanges += 1
        keys = [f"said/{self.exchanges}/{rank}" for rank in range(self.world_size)]
        try:
            self.store.set(keys[self.rank], text)
            self.store.wait(keys, timedelta(seconds=self.timeout_s))
            return [said.decode() for said in self.store.multi_get(keys)]
        except DistError as error:
            raise self.explain(error) from error

    def explain(self, error: BaseException) -> RanksMissing:
        """Return who is to blame for `error`, which this rank met in what it had entered.

        Every rank that fails signs that it is alive. One that neither does so nor proceeds, within
        the time that the others may need to notice, is the one that they all wait for.
        """
        found = self.find(error)
        self.leave_with(set(range(self.world_size)) - found.ranks)
        return found

    def find(self, error: BaseException) -> RanksMissing:
        """Return the same as `explain`, but stay: others may still read this rank's entries."""
        try:
            return self._find(error)
        except DistError as lost:
            return self._list_is_gone(lost)

    def _find(self, error: BaseException) -> RanksMissing:
        late = [r for r, (place, _) in enumerate(self._whereabouts()) if place < self.place]
        self.store.set(f"failed/{self.rank}", str(error))
        deadline = time.monotonic() + self.timeout_s + 1
        while (silent := self._silent()) and time.monotonic() < deadline:
            if self.store.check(["blamed"]):  # a rank whose deadline came first
                return self._blamed_before()
            time.sleep(LOOK_EVERY_S)
        if not silent:
            return self._all_are_here(late, error)
        found = self._blame(silent)
        self.store.set("blamed", f"{','.join(str(r) for r in silent)} {found}")
        return found

    def _blamed_before(self) -> RanksMissing:
        ranks, _, message = self.store.get("blamed").decode().partition(" ")
        return RanksMissing(message, frozenset(int(rank) for rank in ranks.split(",")))

    def leave_with(self, ranks: Iterable[int]) -> None:
        """Wait a little for others that fail too: the store may go with this rank."""
        with suppress(DistError):
            self.store.set(f"leaving/{self.rank}", "")
            keys = [f"leaving/{rank}" for rank in ranks]
            self.store.wait(keys, timedelta(seconds=LINGER_S))

    def _whereabouts(self) -> list[tuple[int, str]]:
        """Return place and name of each rank's last entry; place 0 for one that never signed."""
        found = []
        for rank in range(self.world_size):
            key = f"at/{rank}"
            signed = self.store.get(key).decode() if self.store.check([key]) else "0 nothing"
            place, _, what = signed.partition(" ")
            found.append((int(place), what))
        return found

    def _silent(self) -> list[int]:
        """Return the ranks that have neither proceeded nor signed that they failed too."""
        return [
            rank
            for rank, (place, _) in enumerate(self._whereabouts())
            if place <= self.place and not self.store.check([f"failed/{rank}"])
        ]

    def _blame(self, silent: list[int]) -> RanksMissing:
        at, (waiting, awaited) = self._whereabouts(), self.waits_for
        parts = []
        for rank in silent:
            place, what = at[rank]
            if place >= waiting:
                parts.append(f"{self.names[rank]} entered {what} and never came out of it")
            else:
                after = f"; it entered {what} last" if place else ""
                parts.append(f"{self.names[rank]} never entered {awaited}{after}")
        return RanksMissing("; ".join(parts), frozenset(silent))

    def _all_are_here(self, late: list[int], error: BaseException) -> RanksMissing:
        if late:
            names = ", ".join(self.names[rank] for rank in late)
            message = f"{names} came to {self.waits_for[1]} more than {self.timeout_s:.0f} s late"
            return RanksMissing(message, frozenset(late))
        return RanksMissing(f"{self.waits_for[1]} failed on every rank: {error}", frozenset())

    def _list_is_gone(self, error: BaseException) -> RanksMissing:
        keeper = f"{self.names[0]}, which keeps the list of the ranks, is gone"
        was = f"this rank was in {self.waits_for[1]}"
        return RanksMissing(f"{keeper}; {was}: {error}", frozenset({0}))


def out_of_step(said: list[str], names: list[str]) -> RanksMissing:
    """Return the error for ranks that came to one place for different things; the fewer are
    blamed."""
    usual = max(sorted(set(said)), key=said.count)
    others = frozenset(rank for rank, what in enumerate(said) if what != usual)
    first = said.index(usual)
    wrong = "; ".join(f"{names[rank]} came to {said[rank]}" for rank in sorted(others))
    return RanksMissing(f"{wrong}; {names[first]} came to {usual}", others)
