"""Storing of a script's output: as artifacts at its end, and as checkpoints while it runs, too.

While it runs, the output is copied once nothing in it has changed for a while: then no file is half
written. A checkpoint's step is the last one that was logged, or one more than the previous
checkpoint's, so that the newest is always the furthest.

On several nodes each takes its own output at the end, and the API makes one checkpoint of all the
parts. While the ranks run, the first takes copies alone: they count if no other node has output.
"""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from core.wire.messages import RelativePath, own_name
from strategies.plan.layout import Layout
from strategies.plan.run_directory import (
    MANIFEST,
    checkpoint_name,
    finished_checkpoints,
    manifest_name,
    write_manifest,
)
from worker.node.plain_files import FileEntry, open_plain, plain_files

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
    node: int = 0
    """Position of this node among those of the attempt."""
    num_nodes: int = 1
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
        return self._keep(files, step, self._copy, num_nodes=1)

    def conclude(self, *, step: int) -> tuple[str | None, list[str]]:
        """Create the artifacts after the last process; return the checkpoint and what was left
        out. On several nodes it is this node's part, even if it has no files."""
        files, left_out = self._chosen()
        for entry in files:
            self._link(entry, self.artifacts)
        if self.num_nodes == 1:
            if not files:
                return None, left_out
            if files == self.kept:
                return checkpoint_name(self.kept_step), left_out
        return self._keep(files, step, self._link, num_nodes=self.num_nodes), left_out

    def _chosen(self) -> tuple[tuple[FileEntry, ...], list[str]]:
        """Return the files that can be kept, and the names of the rest."""
        files: list[FileEntry] = []
        left_out = []
        for entry in plain_files(self.output):
            is_ours = entry.name in (MANIFEST, manifest_name(self.node))
            if len(files) < MAX_FILES and not is_ours and self._is_sendable(entry.name):
                files.append(entry)
            else:
                left_out.append(entry.name)
        return tuple(files), left_out

    def _keep(
        self,
        files: tuple[FileEntry, ...],
        step: int,
        take: Callable[[FileEntry, Path], None],
        *,
        num_nodes: int,
    ) -> str:
        least = self.kept_step + 1 if self.has_kept else self.kept_step
        number = max(step, least)
        aside = self.checkpoints / f".{checkpoint_name(number)}.new"
        shutil.rmtree(aside, ignore_errors=True)
        for entry in files:
            take(entry, aside)
        aside.mkdir(parents=True, exist_ok=True)
        write_manifest(
            aside,
            step=number,
            layout=Layout(replicate=self.ranks),
            node=self.node,
            num_nodes=num_nodes,
        )
        aside.rename(self.checkpoints / checkpoint_name(number))
        for older in finished_checkpoints(self.checkpoints)[LAST:]:
            shutil.rmtree(older, ignore_errors=True)
        self.kept, self.kept_step, self.has_kept = files, number, True
        return checkpoint_name(number)

    def _is_sendable(self, name: str) -> bool:
        try:  # also by the name that it gets if another node has other bytes of this one
            SENDABLE_PATH.validate_python(own_name(name, self.node))
        except ValidationError:
            return False
        return True

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
