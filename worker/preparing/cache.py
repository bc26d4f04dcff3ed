"""Cache of datasets, models, inputs, environments and compiled kernels on this node, trimmed to a
size: least recently used goes first.

Entries that an attempt on this node reads stay, however large they are.
"""

import os
import shutil
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import structlog

from strategies.plan.run_directory import RunPlan
from worker.node.attempts import NodeFolder, read_model
from worker.scripts.inputs import mount_of
from worker.scripts.script_run import ProgramRun

SETTLED_S = 3600.0  # a younger entry may be for an attempt that has no plan yet

log = structlog.get_logger()


@dataclass(frozen=True)
class CacheEntry:
    """File of a dataset or an archive, folder of a model or checkpoint, environment of a script, or
    all compiled kernels."""

    path: Path
    size: int
    used_at: float


def touch(path: Path) -> None:
    """Record that an entry is used now. A file keeps the time of its content, by which what was
    made of it is found again, such as its tokens."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return
    now = time.time_ns()
    os.utime(path, ns=(now, now if stat.S_ISDIR(found.st_mode) else found.st_mtime_ns))


def trim(folder: NodeFolder, max_bytes: int) -> int:
    """Remove entries until the cache holds at most `max_bytes`; return the bytes that were freed.

    Raises OSError of the disk.
    """
    entries = sorted(_entries(folder.cache), key=lambda entry: entry.used_at)
    excess, freed = sum(entry.size for entry in entries) - max_bytes, 0
    if excess <= 0:
        return 0
    needed = _needed(folder)
    for entry in entries:
        if freed >= excess:
            break
        if entry.path in needed or time.time() - entry.used_at < SETTLED_S:
            continue
        _remove(entry.path)
        freed += entry.size
        log.info("cache_trimmed", entry=entry.path.name, bytes=entry.size)
    return freed


def _entries(cache: Path) -> Iterator[CacheEntry]:
    for path in cache.iterdir():
        try:
            inside = [path, *path.rglob("*")] if path.is_dir() else [path]
            sizes = [file.stat().st_size for file in inside if file.is_file()]
            found = path.stat()
            # A folder that is listed, as here, has been read, but not used.
            used_at = found.st_mtime if path.is_dir() else max(found.st_atime, found.st_mtime)
            yield CacheEntry(path, sum(sizes), used_at)
        except FileNotFoundError:
            continue  # an interrupted fetch has removed its own file


def _needed(folder: NodeFolder) -> set[Path]:
    needed = set()
    for attempt in folder.all_attempts():
        if attempt.exit.exists():
            continue
        order = attempt.order()
        if order is not None:  # from before the first file is looked for until the end
            mounts = [mount_of(folder.cache, one) for one in order.inputs]
            needed |= {entry for mount in mounts for entry, _ in mount.binds}
        if not attempt.plan.exists():
            continue
        start = attempt.start()
        if start is not None and start.script:
            script = read_model(attempt.plan, ProgramRun)
            if script is not None and script.environment_folder is not None:
                needed.add(Path(script.environment_folder))
            continue
        needed.add(folder.kernels)
        plan = read_model(attempt.plan, RunPlan)
        if plan is None:
            continue
        paths = plan.dataset_path, plan.model_path, plan.tokenizer_path
        needed |= {Path(path) for path in paths if path}
        needed |= {Path(one.path) for one in plan.mixture}
    return needed


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
