"""Use of a workspace in a site's shared folder, as a node has seen it. Pure.

What is there is in no store: only its amount, and the entries that lie at its top, are known.
"""

from collections import Counter
from collections.abc import Iterable

from pydantic import BaseModel, ConfigDict, Field

from core.wire.workspace_tree import EntryKind

MOST_TOLD = 200
MOST = 2**53


class SharedEntry(BaseModel):
    """A file, link or folder at the top of a shared workspace, with all that is below it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str = Field(max_length=255)
    kind: EntryKind
    size: int = Field(ge=0, le=MOST)
    """Bytes of its files."""
    files: int = Field(ge=0, le=MOST)
    """Files, folders and links below it."""


class SharedUse(BaseModel):
    """A look at a workspace in a site's shared folder."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    size: int = Field(ge=0, le=MOST)
    """Bytes of its files."""
    files: int = Field(ge=0, le=MOST)
    """Number of its files, folders and links."""
    is_whole: bool = True
    """False: there are so many that the look was ended; the numbers are the least."""
    top: list[SharedEntry] = Field(default=[], max_length=MOST_TOLD)
    """Entries at its top, the largest first."""


def shared_use(entries: Iterable[tuple[str, EntryKind, int]], *, is_whole: bool) -> SharedUse:
    """Sum up (path, kind, size) of all entries of a look by what lies at the top."""
    kinds: dict[str, EntryKind] = {}
    sizes, below, size = Counter[str](), Counter[str](), 0
    for path, kind, bytes_ in entries:
        name, _, rest = path.partition("/")
        size += bytes_
        sizes[name] += bytes_
        if rest:
            below[name] += 1
        else:
            kinds[name] = kind
    tops = [
        SharedEntry(path=name, kind=kind, size=sizes[name], files=below[name])
        for name, kind in kinds.items()
    ]
    largest = sorted(tops, key=lambda one: (-one.size, one.path))
    files = len(kinds) + below.total()
    return SharedUse(size=size, files=files, is_whole=is_whole, top=largest[:MOST_TOLD])
