"""Tree of a workspace: its folders, files and links, and where the store has their bytes. Pure.

A tree is itself a file of the store, in JSON. Contents smaller than SMALL lie one behind the other
in packs, larger ones are files of the store by themselves. Nothing in a tree leads out of it: every
path is relative, and its parents are folders of the tree, never links.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

SMALL = 1 << 20  # bytes from which a content is a file of its own
MAX_PART_BYTES, MAX_PATH_BYTES = 255, 1024  # Linux's limit of a name; a quarter of that of a path
DEEPEST = 64  # levels of folders
SKIPPED = frozenset({".cache", "__pycache__", ".vscode-server", ".ipynb_checkpoints"})
"""Names of folders that are not kept: what is in them is made again."""

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Size = Annotated[int, Field(ge=0, le=2**53)]


class BadTree(ValueError):
    """A document that is not a valid tree."""


def require_path(path: str) -> str:
    """Return a path below a workspace as it is. Raises ValueError, with a reason, for any other.

    People's names are allowed: spaces, leading dots, every script.
    """
    try:
        encoded = path.encode()
    except UnicodeEncodeError as error:
        raise ValueError("the path is not valid Unicode") from error
    parts = path.split("/")
    if not path or path.startswith("/"):
        raise ValueError(f"{path!r} is not a path below the workspace")
    if any(part in ("", ".", "..") for part in parts) or "\0" in path:
        raise ValueError(f"the path {path!r} has an empty part, `.`, `..` or a NUL")
    if len(encoded) > MAX_PATH_BYTES or any(len(p.encode()) > MAX_PART_BYTES for p in parts):
        raise ValueError(
            f"a path has at most {MAX_PATH_BYTES:,} bytes and each name in it {MAX_PART_BYTES}"
        )
    if len(parts) > DEEPEST:
        raise ValueError(f"a path has at most {DEEPEST} levels, not {len(parts)}")
    return path


WorkspacePath = Annotated[str, AfterValidator(require_path)]


class EntryKind(StrEnum):
    """Kind of an entry of a workspace."""

    FILE = "file"
    FOLDER = "folder"
    LINK = "link"


class TreePart(BaseModel):
    """Base class of a tree's parts: unknown fields are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Blob(TreePart):
    """A file of the store: a pack, or one large content."""

    sha256: Sha256
    size: Size


class Entry(TreePart):
    """A folder, a file or a link of a workspace."""

    path: WorkspacePath
    kind: EntryKind
    size: Size = 0
    """Bytes of a file."""
    modified_ns: int = Field(default=0, ge=0, le=2**63 - 1)
    """Time of a file's last change, in nanoseconds since 1970."""
    executable: bool = False
    sha256: Sha256 | None = None
    """SHA-256 of a file's content."""
    pack: int | None = Field(default=None, ge=0)
    """Number of the pack with the content; None: the content is a file of the store."""
    offset: Size = 0
    """Position of the content in its pack."""
    target: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    """Text of a link. It is never followed outside a sandbox."""

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if (self.sha256 is not None) != (self.kind is EntryKind.FILE):
            raise ValueError(f"{self.path!r}: a file has a hash, nothing else has")
        if (self.target is not None) != (self.kind is EntryKind.LINK):
            raise ValueError(f"{self.path!r}: a link has a target, nothing else has")
        return self


class Tree(TreePart):
    """All entries of a workspace at one moment, by path."""

    format: Literal[1] = 1
    packs: tuple[Blob, ...] = ()
    entries: tuple[Entry, ...] = ()

    @model_validator(mode="after")
    def _is_a_tree(self) -> Self:
        folders, before = {""}, ""
        for entry in self.entries:
            if entry.path <= before:
                raise ValueError(f"{entry.path!r} is not in the order of paths")
            before = entry.path
            if parent_of(entry.path) not in folders:
                raise ValueError(f"{entry.path!r} is not in a folder of the tree")
            if entry.kind is EntryKind.FOLDER:
                folders.add(entry.path)
            if entry.pack is not None:
                whole = self.packs[entry.pack].size if entry.pack < len(self.packs) else -1
                if entry.offset + entry.size > whole:
                    raise ValueError(f"{entry.path!r} lies outside its pack")
        return self

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(entry.size for entry in self.entries)

    @cached_property
    def blobs(self) -> Sequence[Blob]:
        """Files of the store that it consists of, each once, beside itself."""
        own = {e.sha256: e.size for e in self.entries if e.sha256 and e.pack is None}
        large = (Blob(sha256=sha256, size=size) for sha256, size in own.items())
        return list({blob.sha256: blob for blob in (*self.packs, *large)}.values())

    @cached_property
    def by_path(self) -> Mapping[str, Entry]:
        return {entry.path: entry for entry in self.entries}

    def below(self, folder: str) -> Iterator[Entry]:
        """Yield everything below a folder, however deep; `""` is the whole tree."""
        beginning = f"{folder}/" if folder else ""
        return (entry for entry in self.entries if entry.path.startswith(beginning))

    def with_entries(self, added: Iterable[Entry]) -> "Tree":
        """Return the tree with these in the place of what has their paths.

        Raises BadTree if a parent is not a folder, or a folder would become a file.
        """
        found = dict(self.by_path)
        for entry in added:
            for folder in folders_above(entry.path):
                found.setdefault(folder, Entry(path=folder, kind=EntryKind.FOLDER))
            old = found.get(entry.path)
            if old is not None and old.kind is EntryKind.FOLDER is not entry.kind:
                raise BadTree(f"{entry.path!r} is a folder")
            found[entry.path] = entry
        return tree_of(found.values(), self.packs)

    def without(self, path: str) -> "Tree":
        """Return the tree without an entry and everything below it."""
        kept = [e for e in self.entries if e.path != path and not e.path.startswith(f"{path}/")]
        return tree_of(kept, self.packs)


def tree_of(entries: Iterable[Entry], packs: Sequence[Blob]) -> Tree:
    """Return the tree of these entries, with those of the packs that they use.

    Raises BadTree if they are none.
    """
    ordered = sorted(entries, key=lambda entry: entry.path)
    used = sorted({entry.pack for entry in ordered if entry.pack is not None})
    number = {old: new for new, old in enumerate(used)}
    moved = [
        entry
        if entry.pack is None or number[entry.pack] == entry.pack
        else entry.model_copy(update={"pack": number[entry.pack]})
        for entry in ordered
    ]
    try:
        return Tree(packs=tuple(packs[old] for old in used), entries=tuple(moved))
    except ValidationError as error:
        raise BadTree(str(error.errors(include_url=False)[0]["msg"])) from error


def read_tree(content: bytes) -> Tree:
    """Read a tree. Raises BadTree."""
    try:
        return Tree.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise BadTree(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error


def tree_bytes(tree: Tree) -> bytes:
    """Return the content of a tree's file: the same for equal trees."""
    return tree.model_dump_json(exclude_defaults=True).encode()


def parent_of(path: str) -> str:
    """Return the folder that a path is in; empty: the workspace itself."""
    return path.rpartition("/")[0]


def folders_above(path: str) -> list[str]:
    """Return the folders above a path, outermost first."""
    parts = path.split("/")[:-1]
    return ["/".join(parts[: count + 1]) for count in range(len(parts))]
