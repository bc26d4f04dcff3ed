"""Names of nodes are those of their hosts: 307G3Q3, P3-GPU-009, gpu-7.lab.example.org.

A name is kept as it was first written. Host names mean the same in either case (RFC 4343), so names
that differ in case alone are one node.
"""

from collections.abc import Collection
from typing import Annotated

from pydantic import Field

LONGEST = 253  # of a full host name, RFC 1035
NodeName = Annotated[str, Field(pattern=rf"^[A-Za-z0-9][A-Za-z0-9._-]{{0,{LONGEST - 1}}}$")]


def folded(name: str) -> str:
    """Return the form that all spellings of one name share."""
    return name.lower()


def is_one_of(name: str, names: Collection[str]) -> bool:
    """Return True if one of `names` is this node's, in any spelling."""
    return folded(name) in {folded(other) for other in names}
