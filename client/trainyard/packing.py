"""A folder of code as one archive, the same bytes for the same files wherever it is packed."""

import hashlib
import io
import os
import stat
import zipfile
from dataclasses import dataclass
from pathlib import Path

from trainyard.errors import BadInput
from trainyard.ignoring import FILES, Pattern, is_ignored, patterns_of
from trainyard.wording import size

MAX_BYTES = 50 << 20
MAX_FILES = 5000
LONG_AGO = (1980, 1, 1, 0, 0, 0)  # the first moment that a zip archive knows
# Never code, and often large or private.
NEVER = frozenset({".git", ".hg", ".svn", "__pycache__", "node_modules", ".mypy_cache",
                   ".ruff_cache", ".pytest_cache", ".ipynb_checkpoints", ".DS_Store"})  # fmt: skip


@dataclass(frozen=True)
class Packed:
    """An archive and what became of every file."""

    content: bytes
    sha256: str
    paths: tuple[str, ...]
    left_out: tuple[tuple[str, str], ...]
    """(path, why) of what a person may miss; what an ignore file names is not listed."""


def pack(folder: str | Path) -> Packed:
    """Pack the plain files of a folder, without those that its ignore files name.

    Raises BadInput where there is nothing to pack, or more than a server takes.
    """
    root = Path(folder)
    if not root.is_dir():
        raise BadInput(f"{root} is no folder.")
    found: dict[str, Path] = {}
    left_out: list[tuple[str, str]] = []
    _gather(root, "", [], found, left_out)
    if not found:
        raise BadInput(f"{root} holds no file to pack.")
    sizes = {path: file.stat().st_size for path, file in found.items()}
    total = sum(sizes.values())
    if total > MAX_BYTES or len(found) > MAX_FILES:
        largest = sorted(sizes, key=lambda path: -sizes[path])[:3]
        named = ", ".join(f"{path} ({size(sizes[path])})" for path in largest)
        raise BadInput(
            f"{root} is too much: {len(found):,} files, {size(total)}; a server takes "
            f"{MAX_FILES:,} files and {size(MAX_BYTES)}. The largest: {named}. Name what is not "
            "code in a .trainyardignore, and upload data with `trainyard datasets upload`."
        )
    content = _archived(found)
    return Packed(
        content=content,
        sha256=hashlib.sha256(content).hexdigest(),
        paths=tuple(sorted(found)),
        left_out=tuple(sorted(left_out)),
    )


def _gather(
    here: Path,
    base: str,
    patterns: list[Pattern],
    found: dict[str, Path],
    left_out: list[tuple[str, str]],
) -> None:
    known = list(patterns)
    for name in FILES:
        try:
            known += patterns_of((here / name).read_text("utf-8"), base)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput(f"{here / name} can't be read: {error}") from error
    try:
        entries = sorted(os.scandir(here), key=lambda entry: entry.name)
    except OSError as error:
        raise BadInput(f"{here}: {error.strerror}") from error
    for entry in entries:
        path = f"{base}{entry.name}"
        is_folder = entry.is_dir(follow_symlinks=False)
        if entry.name in NEVER or entry.name.endswith(".pyc"):
            continue
        if is_ignored(known, path, is_folder=is_folder):
            continue
        why = _why_not(entry, is_folder=is_folder)
        if why:
            left_out.append((path, why))
        elif is_folder:
            _gather(Path(entry.path), f"{path}/", known, found, left_out)
        else:
            found[path] = Path(entry.path)


def _why_not(entry: os.DirEntry[str], *, is_folder: bool) -> str:
    if entry.is_symlink():
        return "a link"
    if is_folder:
        is_environment = os.path.exists(os.path.join(entry.path, "pyvenv.cfg"))
        return "a virtual environment" if is_environment else ""
    if not entry.is_file(follow_symlinks=False):
        return "no plain file"
    if entry.name == ".env" or entry.name.startswith(".env."):
        return "it may hold secrets; see `trainyard secrets`"
    return "" if entry.name.isprintable() and "\\" not in entry.name else "its name"


def _archived(files: dict[str, Path]) -> bytes:
    content = io.BytesIO()
    # Stored, not compressed: compressors differ between machines, and the hash is the name.
    with zipfile.ZipFile(content, "w", zipfile.ZIP_STORED) as archive:
        for path in sorted(files):
            file = files[path]
            entry = zipfile.ZipInfo(path, date_time=LONG_AGO)
            entry.create_system = 3  # Unix, wherever this runs
            mode = 0o755 if file.stat().st_mode & stat.S_IXUSR else 0o644
            entry.external_attr = (stat.S_IFREG | mode) << 16
            try:
                archive.writestr(entry, file.read_bytes())
            except OSError as error:
                raise BadInput(f"{file}: {error.strerror}") from error
    return content.getvalue()
