"""Charges for hours of a node that were given back too late to be free of charge. Pure.

Such an hour is charged as long as the node has slots for it beside those that leases which count
have or had, so that no more slots are charged at any moment than the node has. Where they do not
suffice, the leases that forfeited the hour first are relieved first. Charges are computed anew from
all leases of the node whenever one of them changes, so nothing has to be undone when a user who had
taken forfeited hours gives them back in turn.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise

Span = tuple[datetime, datetime]


@dataclass(frozen=True)
class HoursClaim:
    """Hours of a node that a lease holds or held, and those after them that it has forfeited."""

    lease_id: str
    start: datetime
    held_until: datetime
    """End of its hold; equal to `start` if it never held the node."""
    forfeited_until: datetime | None = None
    """End of its forfeited hours, which begin at `held_until`; None if it has forfeited none."""
    forfeited_at: datetime | None = None
    num_slots: int | None = None
    """Number of slots; None for the whole node."""

    @property
    def forfeited(self) -> Span:
        """Return its forfeited hours; an empty span if it has forfeited none."""
        end = self.held_until if self.forfeited_at is None else self.forfeited_until
        return self.held_until, max(self.held_until, end or self.held_until)


@dataclass(frozen=True)
class Charge:
    """Hours that a lease with forfeited hours is charged for."""

    end: datetime
    """End of the unbroken stretch from its start that is charged."""
    length: timedelta
    """Total time charged, including stretches after others' hours."""
    is_whole: bool
    """True if nobody else has any of the forfeited hours."""
    is_passed_on: bool
    """True if others have all of the forfeited hours."""


def of(claims: Iterable[HoursClaim], *, slots: int = 1) -> dict[str, Charge]:
    """Return the charge of each claim that has forfeited hours, by lease id.

    The claims are of one node of that many slots, and all that overlap a claim have to be among
    them.
    """
    newest_first = sorted(claims, key=_age, reverse=True)
    charged: dict[str, list[Span]] = defaultdict(list)
    for one, span in _charged(newest_first, slots):
        spans = charged[one.lease_id]
        if spans and spans[-1][1] == span[0]:
            spans[-1] = spans[-1][0], span[1]
        else:
            spans.append(span)
    found = {}
    for one in newest_first:
        if one.forfeited_until is None or one.forfeited_at is None:
            continue
        rest = charged[one.lease_id]
        length = sum((end - start for start, end in rest), one.held_until - one.start)
        is_unbroken = bool(rest) and rest[0][0] == one.held_until
        found[one.lease_id] = Charge(
            end=rest[0][1] if is_unbroken else one.held_until,
            length=length,
            is_whole=rest == [one.forfeited],
            is_passed_on=not rest,
        )
    return found


def _charged(newest_first: Sequence[HoursClaim], slots: int) -> Iterator[tuple[HoursClaim, Span]]:
    """Yield the forfeited hours that are charged, in pieces, in order of time."""
    edges = {edge for one in newest_first for edge in (one.start, one.held_until, one.forfeited[1])}
    for begins, ends in pairwise(sorted(edges)):
        free = slots - sum(
            _size(one, slots) for one in newest_first if one.start <= begins < one.held_until
        )
        for one in newest_first:
            if not one.forfeited[0] <= begins < one.forfeited[1]:
                continue
            free -= _size(one, slots)
            if free < 0:
                break  # the earlier ones are relieved, too
            yield one, (begins, ends)


def _size(claim: HoursClaim, slots: int) -> int:
    return slots if claim.num_slots is None else claim.num_slots


def _age(claim: HoursClaim) -> tuple[datetime, str]:
    return claim.forfeited_at or claim.start, claim.lease_id
