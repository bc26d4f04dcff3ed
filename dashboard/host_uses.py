"""Hosts that the attempts of a job reached, or tried to, as rows of a table."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from trainyard.views import Attempt, HostUse


class HostRow(NamedTuple):
    """Use of a host by one attempt from one node."""

    epoch: int
    node: str
    use: HostUse


def host_uses(attempts: Iterable[Attempt]) -> Sequence[HostRow]:
    """Return the uses of all attempts, in their order."""
    return [
        HostRow(attempt.epoch, place.node, use)
        for attempt in attempts
        for place in attempt.nodes
        for use in place.hosts
    ]
