"""Hosts that a script asks for in its job's spec. Pure."""

from collections.abc import Sequence
from typing import Annotated

from pydantic import AfterValidator, Field

from core.spec.hosts import PRIVATE, host_rules

MAX_ASKED = 32

HostEntry = Annotated[str, Field(min_length=1, max_length=300)]


def require_askable(entries: Sequence[str]) -> Sequence[str]:
    """Raise ValueError if one of a job's entries is neither a host nor a group."""
    host_rules(entries)
    marked = [entry for entry in entries if entry.startswith(PRIVATE)]
    if marked:
        raise ValueError(
            f"{marked[0]!r}: leave {PRIVATE} out; an administrator's list says which hosts are in "
            "the site's own network"
        )
    return entries


AskedHosts = Annotated[
    tuple[HostEntry, ...],
    AfterValidator(require_askable),
    Field(max_length=MAX_ASKED, exclude_if=lambda asked: not asked),
]
