"""Charges for hours of a node that were given back too late to be free of charge. Pure.

Such an hour is charged to the last lease that forfeited it, unless a lease that counts has it or
had it. Charges are computed anew from all leases of the node whenever one of them changes, so
nothing has to be undone when a user who had taken forfeited hours gives them back in turn.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

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


def of(claims: Iterable[HoursClaim]) -> dict[str, Charge]:
    """Return the charge of each claim that has forfeited hours, by lease id.

    The claims are of one node, and all that overlap a claim have to be among them.
    """
    newest_first = sorted(claims, key=_age, reverse=True)
    held = [(one.start, one.held_until) for one in newest_first]
    taken = sorted(span for span in held if span[0] < span[1])
    found = {}
    for one in newest_first:
        if one.forfeited_until is None or one.forfeited_at is None:
            continue
        forfeited = (one.held_until, max(one.held_until, one.forfeited_until))
        rest = without(forfeited, taken)
        length = sum((end - start for start, end in rest), one.held_until - one.start)
        first = rest[0] if rest else None
        end = first[1] if first and first[0] == one.held_until else one.held_until
        found[one.lease_id] = Charge(
            end=end,
            length=length,
            is_whole=rest == [forfeited],
            is_passed_on=not rest,
        )
        taken = sorted([*taken, forfeited])
    return found


def without(span: Span, taken: Iterable[Span]) -> list[Span]:
    """Return the parts of a span outside the `taken` ones, which ascend by their start."""
    left = []
    reached, end = span
    for start, until in taken:
        if start >= end:
            break
        if start > reached:
            left.append((reached, start))
        reached = max(reached, until)
    if reached < end:
        left.append((reached, end))
    return left


def _age(claim: HoursClaim) -> tuple[datetime, str]:
    return claim.forfeited_at or claim.start, claim.lease_id
