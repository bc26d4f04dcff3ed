"""Storing of a script's output: as artifacts at its end, and as checkpoints while it runs, too.

While it runs, the output is copied once nothing in it has changed for a while: then no file is half
written. A checkpoint's step is the last one that was logged, or one more than the previous
checkpoint's, so that the newest is always the furthest.
"""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from core.wire.messages import RelativePath
from strategies.plan.layout import Layout
from strategies.plan.run_directory import (
    MANIFEST,
    checkpoint_name,
    finished_checkpoints,
    write_manifest,
)
from worker.scripts.script_files import FileEntry, open_plain, plain_files

QUIET_S = 20.0  # without a change, after which the output is considered complete
MAX_FILES = 2000
LAST = 2  # checkpoints of one attempt on the node's disk; the store has all of them
PIECE = 1 << 20
SENDABLE_PATH: TypeAdapter[str] = TypeAdapter(RelativePath)


@dataclass
class ScriptOutput:
    """Output folder of one attempt on `ranks` ranks, which resumed from step `kept_step`."""

    output: Path
    artifacts: Path
    checkpoints: Path
    ranks: int
    kept_step: int
    has_kept: bool = False
    kept: tuple[FileEntry, ...] = ()
    seen: tuple[FileEntry, ...] = ()
    seen_since: float = 0.0

    def look(self, *, now: float, step: int) -> str | None:
        """Return the name of the checkpoint made of the output, if one was made; while the
        script runs."""
        files, _ = self._chosen()
        if files != self.seen:
            self.seen, self.seen_since = files, now
            return None
        if not files or files == self.kept or now - self.seen_since < QUIET_S:
            return None
        return self._keep(files, step, self._copy)

    def conclude(self, *, step: int) -> tuple[str | None, list[str]]:
        """Create the artifacts after the last process; return the checkpoint and what was left
        out."""
        files, left_out = self._chosen()
        for entry in files:
            self._link(entry, self.artifacts)
        if not files:
            return None, left_out
        if files == self.kept:
            return checkpoint_name(self.kept_step), left_out
        return self._keep(files, step, self._link), left_out

    def _chosen(self) -> tuple[tuple[FileEntry, ...], list[str]]:
        """Return the files that can be kept, and the names of the rest."""
        files: list[FileEntry] = []
        left_out = []
        for entry in plain_files(self.output):
            if len(files) < MAX_FILES and entry.name != MANIFEST and _is_sendable(entry.name):
                files.append(entry)
            else:
                left_out.append(entry.name)
        return tuple(files), left_out

    def _keep(
        self, files: tuple[FileEntry, ...], step: int, take: Callable[[FileEntry, Path], None]
    ) -> str:
        least = self.kept_step + 1 if self.has_kept else self.kept_step
        number = max(step, least)
        aside = self.checkpoints / f".{checkpoint_name(number)}.new"
        shutil.rmtree(aside, ignore_errors=True)
        for entry in files:
            take(entry, aside)
        aside.mkdir(parents=True, exist_ok=True)
        write_manifest(aside, step=number, layout=Layout(replicate=self.ranks))
        aside.rename(self.checkpoints / checkpoint_name(number))
        for older in finished_checkpoints(self.checkpoints)[LAST:]:
            shutil.rmtree(older, ignore_errors=True)
        self.kept, self.kept_step, self.has_kept = files, number, True
        return checkpoint_name(number)

    def _copy(self, entry: FileEntry, folder: Path) -> None:
        target = folder / entry.name
        target.parent.mkdir(parents=True, exist_ok=True)
        descriptor = open_plain(self.output, entry.name)
        with os.fdopen(descriptor, "rb") as source, target.open("wb") as copy:
            shutil.copyfileobj(source, copy, PIECE)
            copy.flush()
            os.fsync(copy.fileno())

    def _link(self, entry: FileEntry, folder: Path) -> None:
        """Link a file; no process of the script is left that could replace it."""
        source, target = self.output / entry.name, folder / entry.name
        target.parent.mkdir(parents=True, exist_ok=True)
        os.chown(source, os.geteuid(), os.getegid(), follow_symlinks=False)
        source.chmod(0o644)
        os.link(source, target, follow_symlinks=False)


def _is_sendable(name: str) -> bool:
    try:
        SENDABLE_PATH.validate_python(name)
    except ValidationError:
        return False
    return True
