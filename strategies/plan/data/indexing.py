"""Index of a large dataset: its documents are counted in as many processes as there are cores, a
shard at a time. A shard that is counted is not counted again by the successor of a killed run.

One process: `python -m strategies.plan.data.indexing WORK`, torch-free.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict

from strategies.plan.built_in.datasets import DatasetFormat
from strategies.plan.data.document_files import (
    Written,
    require_documents,
    write_all_learned,
    write_documents,
)
from strategies.plan.data.reading import BadData, file_words, rows_of
from strategies.plan.data.stored_tokenizer import tokenizer_from

# Tokens of a document that is read again for each of its windows; those of a longer one are kept.
# Both are some milliseconds.
LONGEST_READ = {"bytes": 1 << 18, "characters": 1 << 18, "huggingface": 1 << 12}


class Work(BaseModel):
    """Task of one process: every num_parts-th shard, from number `part` on."""

    model_config = ConfigDict(frozen=True)

    folder: Path
    shards: list[Path]
    format: DatasetFormat
    tokenizer: str
    part: int
    num_parts: int


def write_index(
    folder: Path,
    shards: Sequence[Path],
    format: DatasetFormat,
    *,
    dataset: str,
    tokenizer: str,
    num_processes: int | None = None,
) -> None:
    """Write `ends`, `places`, `shards` (the first document of each) and the kept tokens of each
    shard.

    `folder` has the tokenizer. Raises BadData naming the first bad place.
    """
    for stale in folder.glob("*.wrong"):
        stale.unlink()
    num_parts = min(len(shards), num_processes or len(os.sched_getaffinity(0)))
    work = Work(
        folder=folder.resolve(),
        shards=[shard.resolve() for shard in shards],
        format=format,
        tokenizer=tokenizer,
        part=0,
        num_parts=num_parts,
    )
    parts = [work.model_copy(update={"part": part}) for part in range(num_parts)]
    processes = [_start(part) for part in parts]
    try:
        failed = [code for process in processes if (code := process.wait()) != 0]
    finally:
        for process in processes:
            process.kill()
    if wrong := sorted(folder.glob("*.wrong")):
        raise BadData(wrong[0].read_text())
    if failed:
        raise OSError(f"a process that counts its documents has ended with {failed[0]}")
    _join(folder, len(shards), dataset)


def _start(work: Work) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "strategies.plan.data.indexing", work.model_dump_json()]
    return subprocess.Popen(
        command, cwd=Path(__file__).parents[3], env=environment, stdin=subprocess.DEVNULL
    )


def count(work: Work) -> int:
    """Count the shards of one process, up to a bad place; return the exit code."""
    tokenizer = tokenizer_from((work.folder / "tokenizer.json").read_text())
    longest_read = LONGEST_READ[work.tokenizer]
    for number in range(work.part, len(work.shards), work.num_parts):
        done, path = work.folder / f"{number:05}", work.shards[number]
        if done.exists():
            continue
        aside = done.with_suffix(".tmp")
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir()
        rows = rows_of(path, work.format, file_words(path, work.shards))
        try:
            written = write_documents(aside, rows, tokenizer, longest_read=longest_read)
        except (BadData, OSError) as error:
            done.with_suffix(".wrong").write_text(str(error))
            return 1
        (aside / "counts.json").write_text(json.dumps(written._asdict()))
        aside.rename(done)
    return 0


def _join(folder: Path, num_shards: int, dataset: str) -> None:
    """Lay the documents of all shards end to end; their kept tokens stay where they are."""
    parts = [folder / f"{number:05}" for number in range(num_shards)]
    counts = [Written(**json.loads((part / "counts.json").read_text())) for part in parts]
    end = sum(one.tokens for one in counts)
    require_documents(Written(end, sum(one.too_short for one in counts)), dataset)
    has_flags = any((part / "learned").exists() for part in parts)
    first_documents, documents, end = [], 0, 0
    with (
        (folder / "ends").open("wb") as ends_file,
        (folder / "places").open("wb") as places_file,
        (folder / "learned").open("wb") as flags_file,
    ):
        for part in parts:
            ends = np.fromfile(part / "ends", np.int64)
            (ends + end).tofile(ends_file)
            np.fromfile(part / "places", np.int64).tofile(places_file)
            if (part / "learned").exists():
                with (part / "learned").open("rb") as flags:
                    shutil.copyfileobj(flags, flags_file, 1 << 20)
            elif has_flags:
                write_all_learned(flags_file, ends)
            first_documents.append(documents)
            documents += len(ends)
            end += int(ends[-1]) if len(ends) else 0
    if not has_flags:
        (folder / "learned").unlink()
    np.array(first_documents, dtype=np.int64).tofile(folder / "shards")


def drop_parts(folder: Path) -> None:
    """Delete what is part of the whole index by now."""
    for name in ("ends", "places", "learned"):
        for part in folder.glob(f"*/{name}"):
            part.unlink()


if __name__ == "__main__":
    sys.exit(count(Work.model_validate_json(sys.argv[1])))
