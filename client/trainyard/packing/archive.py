"""Packing of a program's code into one archive; the same files give the same bytes anywhere.

Hidden files, keys and files that an ignore file names are not packed unless they are named.
"""

import hashlib
import io
import os
import stat
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from trainyard.errors import BadInput
from trainyard.packing.ignoring import FILES, Pattern, is_ignored, read_patterns
from trainyard.packing.private_files import HIDDEN, KEY, why_private
from trainyard.wording import counted, size

MAX_BYTES = 50 << 20  # of the archive
MAX_FILES = 5000
LONG_AGO = (1980, 1, 1, 0, 0, 0)  # the first moment that a zip archive knows
ENTRY_BYTES = 30 + 46  # a zip's records of a file, besides its path twice
END_BYTES = 22
IGNORED = "named by an ignore file"
# Never code and never missed: left out without being reported.
NEVER = frozenset(
    {".git", ".hg", ".svn", "__pycache__", "node_modules", ".mypy_cache", ".ruff_cache"}
    | {".pytest_cache", ".ipynb_checkpoints", ".DS_Store", *FILES}
)
KEY_BEGINS = b"-----BEGIN "
PRIVATE = b"PRIVATE KEY-----"


@dataclass(frozen=True)
class PackedCode:
    """An archive and the treatment of every file."""

    content: bytes
    sha256: str
    sizes: dict[str, int]
    """Size in bytes of every file in the archive."""
    left_out: tuple[tuple[str, str], ...]
    """(path, reason) of files that a person may miss; a folder's path ends in `/`."""

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(self.sizes)

    @property
    def ignored(self) -> tuple[str, ...]:
        """Paths that an ignore file has left out."""
        return tuple(path for path, why in self.left_out if why == IGNORED)


def pack(folder: str | Path, *, include: Sequence[str] = ()) -> PackedCode:
    """Pack the plain files of a folder, without private ones and those that an ignore file names.

    `include` names paths below the folder that are packed all the same: any file, and a folder with
    all files in it that are not private. Raises BadInput if there is nothing to pack, if there is
    more than a server accepts, or if the folder is a person's home or contains it.
    """
    root = Path(folder)
    if not root.is_dir():
        raise BadInput(f"{root} is not a folder.")
    if Path.home().resolve().is_relative_to(root.resolve()):
        raise BadInput(
            f"{root} is your home folder or holds it, so it is not packed. Put the program into "
            "a folder of its own, or name its folder with --folder."
        )
    gathered = _FileWalk()
    gathered.walk(root, "", [])
    return _packed(root, gathered, include)


def pack_files(folder: str | Path, *, include: Sequence[str]) -> PackedCode:
    """Pack only the paths below a folder that `include` names."""
    return _packed(Path(folder), _FileWalk(), include)


@dataclass
class _FileWalk:
    found: dict[str, Path] = field(default_factory=dict)
    left_out: list[tuple[str, str]] = field(default_factory=list)

    def walk(self, here: Path, base: str, patterns: Sequence[Pattern] | None) -> None:
        """Take the files of a folder that may be packed.

        `patterns` None: ignore files do not count.
        """
        known = None if patterns is None else [*patterns, *_patterns_in(here, base)]
        try:
            entries = sorted(os.scandir(here), key=lambda entry: entry.name)
        except OSError as error:
            raise BadInput(f"{here}: {error.strerror}") from error
        for entry in entries:
            if entry.name in NEVER or entry.name.endswith(".pyc"):
                continue
            is_folder = entry.is_dir(follow_symlinks=False)
            path = f"{base}{entry.name}"
            why = _why_not(entry, is_folder=is_folder)
            if not why and known is not None and is_ignored(known, path, is_folder=is_folder):
                why = IGNORED
            if why:
                self.left_out.append((f"{path}/" if is_folder else path, why))
            elif is_folder:
                self.walk(Path(entry.path), f"{path}/", known)
            else:
                self.found[path] = Path(entry.path)

    def take(self, root: Path, named: str) -> None:
        """Take a file or a folder because a person has named it."""
        path = PurePosixPath(os.path.normpath(named)).as_posix()
        file = root / path
        if path.startswith(("../", "/")) or path in ("..", "."):
            raise BadInput(f"--include {named}: name a path below {root}.")
        if not file.exists() or not file.resolve().is_relative_to(root.resolve()):
            raise BadInput(f"--include {named}: there is no such file or folder in {root}.")
        within = (path, f"{path}/")
        self.left_out = [
            (one, why)
            for one, why in self.left_out
            if one not in within and not one.startswith(within[1])
        ]
        if file.is_dir():
            self.walk(file, f"{path}/", None)
        else:
            self.found[path] = file


def _packed(root: Path, gathered: _FileWalk, include: Sequence[str]) -> PackedCode:
    for named in include:
        gathered.take(root, named)
    found = dict(sorted(gathered.found.items()))
    if not found:
        raise BadInput(f"{root} holds no file to pack.")
    sizes = {path: file.stat().st_size for path, file in found.items()}
    names = sum(2 * len(path.encode(errors="surrogateescape")) for path in found)
    total = sum(sizes.values()) + names + ENTRY_BYTES * len(found) + END_BYTES
    if total > MAX_BYTES or len(found) > MAX_FILES:
        largest = sorted(sizes, key=lambda path: -sizes[path])[:3]
        shown = ", ".join(f"{path} ({size(sizes[path])})" for path in largest)
        raise BadInput(
            f"{root} is too large: {counted(len(found), 'file')}, {total:,} bytes packed; a server "
            f"takes {MAX_FILES:,} files and {MAX_BYTES:,} bytes. The largest: {shown}. Name files "
            "that are not code in a .trainyardignore; upload data with `trainyard datasets upload`."
        )
    content = _archived(found)
    return PackedCode(
        content=content,
        sha256=hashlib.sha256(content).hexdigest(),
        sizes=sizes,
        left_out=tuple(sorted(set(gathered.left_out))),
    )


def _patterns_in(here: Path, base: str) -> list[Pattern]:
    found: list[Pattern] = []
    for name in FILES:
        try:
            found += read_patterns(here / name, base)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise BadInput(f"{here / name} can't be read: {error}") from error
    return found


def _why_not(entry: os.DirEntry[str], *, is_folder: bool) -> str:
    if entry.is_symlink():
        return "a link"
    if is_folder:
        if os.path.exists(os.path.join(entry.path, "pyvenv.cfg")):
            return "a virtual environment"
        return HIDDEN if entry.name.startswith(".") else ""
    if not entry.is_file(follow_symlinks=False):
        return "not a plain file"
    private = why_private(entry.name)
    if private or _holds_key(Path(entry.path)):
        return private or KEY
    return "" if entry.name.isprintable() and "\\" not in entry.name else "its name"


def _holds_key(file: Path) -> bool:
    """Return True if the file begins as a private key does, whatever its name."""
    try:
        with file.open("rb") as opened:
            first = opened.readline(200)
    except OSError as error:
        raise BadInput(f"{file}: {error.strerror}") from error
    return first.startswith(KEY_BEGINS) and PRIVATE in first


def _archived(files: dict[str, Path]) -> bytes:
    content = io.BytesIO()
    # Stored, not compressed: compressors differ between machines, and the hash is the name.
    with zipfile.ZipFile(content, "w", zipfile.ZIP_STORED) as archive:
        for path, file in files.items():
            entry = zipfile.ZipInfo(path, date_time=LONG_AGO)
            entry.create_system = 3  # Unix, on every platform
            mode = 0o755 if file.stat().st_mode & stat.S_IXUSR else 0o644
            entry.external_attr = (stat.S_IFREG | mode) << 16
            try:
                archive.writestr(entry, file.read_bytes())
            except OSError as error:
                raise BadInput(f"{file}: {error.strerror}") from error
    return content.getvalue()
