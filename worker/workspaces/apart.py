"""`python -m worker.workspaces.apart`: work on thousands of files, in a process of its own.

Beside the worker's busy threads each of some 60,000 system calls would wait for the interpreter:
10,000 files took 7 s instead of 0.5 s. The task is JSON on standard input, the result JSON on
standard output; the process ends with the worker that started it.
"""

import signal
import subprocess
import sys
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from core.process.parent_death import die_with_parent
from core.wire.shared_use import SharedUse, shared_use
from core.wire.workspace_tree import BadTree, Blob, Tree, read_tree, tree_bytes
from core.workspaces.quota import Quota
from strategies.plan.durable_files import write_atomically
from worker.workspaces.packing import LastLook, Stat, draft, empty_folder
from worker.workspaces.restoring import BadContent, restore
from worker.workspaces.scanning import look_at

REFUSED = 3


class WorkFailed(OSError):
    """Failure of the process, with its last words."""


class _Task(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    root: Path
    look_file: Path
    """File of the last look: its tree, and what its files looked like."""


class Restoring(_Task):
    """Task: make the files of a tree in an empty folder."""

    document: Path
    blobs: dict[str, Path]
    """File on this disk of each file of the store, by SHA-256."""


class Looking(_Task):
    """Task: look at a workspace, and draft its snapshot if it is within the quota."""

    aside: Path
    """Folder for new contents."""
    tree_file: Path
    next_look: Path
    """File of this look, which takes the place of the last one's once the snapshot is kept."""
    max_bytes: int
    max_files: int


class Summing(BaseModel):
    """Task: sum up what a workspace in the site's shared folder holds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    root: Path
    max_entries: int


AnyTask = Restoring | Looking | Summing
ANY_TASK: TypeAdapter[AnyTask] = TypeAdapter(AnyTask)


class Found(BaseModel):
    """Result of a look at a workspace."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    size: int
    files: int
    left_out: list[str]
    num_left_out: int
    tree: Blob | None = None
    """File of the drafted tree; None: beyond the quota."""
    has_changed: bool = True
    new: dict[str, Path] = {}
    """File on this disk of each new pack and large content, by SHA-256."""


class LookFile(BaseModel):
    """Content of the file of a look."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tree: Tree
    stats: dict[str, Stat]


def restore_apart(task: Restoring) -> None:
    """Carry out the task. Raises BadContent; OSError if the process fails."""
    _run(task)


def look_apart(task: Looking) -> Found:
    """Carry out the task. Raises OSError if the process fails."""
    return Found.model_validate_json(_run(task))


def sum_up_apart(task: Summing) -> SharedUse:
    """Carry out the task. Raises OSError if the process fails."""
    return SharedUse.model_validate_json(_run(task))


def _run(task: AnyTask) -> bytes:
    done = subprocess.run(
        [sys.executable, "-m", "worker.workspaces.apart"],
        input=task.model_dump_json().encode(),
        capture_output=True,
        check=False,
    )
    said = done.stderr.decode(errors="replace").strip()[-500:]
    if done.returncode == REFUSED:
        raise BadContent(said)
    if done.returncode != 0:
        raise WorkFailed(said or f"work on a workspace ended with code {done.returncode}")
    return done.stdout


def main() -> int:
    """Carry out the task on standard input; return the exit code."""
    die_with_parent(signal.SIGKILL)
    task = ANY_TASK.validate_json(sys.stdin.buffer.read())
    try:
        if isinstance(task, Restoring):
            carry_out_restoring(task)
        elif isinstance(task, Summing):
            sys.stdout.write(carry_out_summing(task))
        else:
            sys.stdout.write(carry_out_looking(task))
    except (BadTree, BadContent) as error:
        sys.stderr.write(f"{error}\n")
        return REFUSED
    except OSError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def carry_out_restoring(task: Restoring) -> None:
    """Make the files, and write down what they look like. Raises BadTree, BadContent, OSError."""

    def fetch(blob: Blob) -> Path:
        return task.blobs[blob.sha256]

    known = restore(read_tree(task.document.read_bytes()), task.root, fetch)
    _write_look(task.look_file, known.tree, known.stats)


def carry_out_looking(task: Looking) -> str:
    """Look, draft, and write down both; return `Found` as JSON. Raises OSError."""
    quota = Quota(task.max_bytes, task.max_files)
    look = look_at(task.root, max_entries=quota.max_files)
    size, files, found = look.size, len(look.entries), {}
    if look.is_whole and not quota.why_refused(size, files):
        known = _read_look(task.look_file)
        drafted = draft(task.root, look, known, empty_folder(task.aside))
        content = tree_bytes(drafted.tree)
        write_atomically(task.tree_file, content)
        _write_look(task.next_look, drafted.tree, drafted.stats)
        size, files = drafted.tree.size, len(drafted.tree.entries)
        found = {
            "tree": Blob(sha256=sha256(content).hexdigest(), size=len(content)),
            "has_changed": drafted.tree != known.tree,
            "new": dict(drafted.files),
        }
    return Found(
        size=size, files=files, left_out=look.left_out, num_left_out=look.num_left_out, **found
    ).model_dump_json()


def carry_out_summing(task: Summing) -> str:
    """Look, and return `SharedUse` as JSON."""
    look = look_at(task.root, max_entries=task.max_entries)
    seen = ((entry.path, entry.kind, entry.size) for entry in look.entries)
    return shared_use(seen, is_whole=look.is_whole).model_dump_json()


def _read_look(path: Path) -> LastLook:
    """Return the last look; an empty one if it cannot be read: then every file is."""
    try:
        found = LookFile.model_validate_json(path.read_bytes())
    except (FileNotFoundError, ValidationError):
        return LastLook()
    return LastLook(found.tree, found.stats)


def _write_look(path: Path, tree: Tree, stats: Mapping[str, Stat]) -> None:
    write_atomically(path, LookFile(tree=tree, stats=dict(stats)).model_dump_json().encode())


if __name__ == "__main__":
    sys.exit(main())
