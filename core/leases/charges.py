"""Who is charged for hours of a node that were given back too late to be free of charge. Pure.

Such an hour is charged to whoever forfeited it last, unless a lease that counts has it or had it.
It is worked out anew from all the leases of the node whenever one of them changes, so nothing has
to be undone when somebody who had taken forfeited hours gives them back in their turn.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

Span = tuple[datetime, datetime]


@dataclass(frozen=True)
class Claim:
    """What a lease holds, or held, of its node, and what it has forfeited after that."""

    lease_id: str
    start: datetime
    held_until: datetime
    """`start` if it never held it."""
    forfeited_until: datetime | None = None
    """It has forfeited its hours from `held_until` on; None: no hour."""
    forfeited_at: datetime | None = None


@dataclass(frozen=True)
class Charge:
    """What a lease that has forfeited hours is charged for."""

    end: datetime
    """From its start to here without a break."""
    length: timedelta
    """With what it is charged for after others' hours."""
    is_whole: bool
    """Nobody else has any of it."""
    is_passed_on: bool
    """Others have all that it has forfeited."""


def of(claims: Iterable[Claim]) -> dict[str, Charge]:
    """What each of these claims that has forfeited hours is charged for, by id of the lease.

    They are of one node, and all that overlap a claim have to be among them.
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
    """What is left of a span without the `taken` ones, which ascend by their start."""
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


def _age(claim: Claim) -> tuple[datetime, str]:
    return claim.forfeited_at or claim.start, claim.lease_id
