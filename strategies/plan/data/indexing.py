"""Index of a large dataset: its documents are counted in as many processes as there are cores, a
span at a time: a shard, or part of a large one. A span that is counted is not counted again by the
successor of a killed run.

One process: `python -m strategies.plan.data.indexing FOLDER PART`, torch-free; what it has to do is
in work.json of the folder.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict

from strategies.plan.built_in.datasets import DatasetFormat
from strategies.plan.data.compression import compression_in
from strategies.plan.data.document_files import (
    DocumentCounts,
    require_documents,
    write_all_learned,
    write_documents,
)
from strategies.plan.data.reading import PIECE_BYTES, BadData, ShardSpan, file_words, rows_of
from strategies.plan.data.stored_tokenizer import tokenizer_from
from strategies.plan.data.tokens import Tokenizer

# Tokens of a document that is read again for each of its windows; those of a longer one are kept.
# Both are some milliseconds.
LONGEST_READ = {"bytes": 1 << 18, "characters": 1 << 18, "huggingface": 1 << 12}
WORK, COUNTS = "work.json", "counts.json"
SPAN_BYTES = 256 << 20
MOST_PROCESSES = 32  # each has 150 to 250 MiB
TELL_EVERY_S = 30.0


class Work(BaseModel):
    """Task of all processes. Each counts every num_processes-th span, from its own number on."""

    model_config = ConfigDict(frozen=True)

    shards: list[Path]
    spans: list[ShardSpan]
    format: DatasetFormat
    tokenizer: str
    num_processes: int
    parent: int
    """Process for which they count; without it they end."""


def write_index(
    folder: Path,
    shards: Sequence[Path],
    format: DatasetFormat,
    *,
    dataset: str,
    tokenizer: str,
    tell: Callable[[str], None],
) -> None:
    """Write `ends`, `places`, `spans` (the first document of each), `shards` (the shard of each
    span) and the kept tokens of each span. `tell` hears how far it is.

    `folder` has the tokenizer. Raises BadData naming the first bad place.
    """
    for stale in folder.glob("*.wrong"):
        stale.unlink()
    spans = spans_of(shards, format)
    work = Work(
        spans=spans,
        shards=[shard.resolve() for shard in shards],
        format=format,
        tokenizer=tokenizer,
        num_processes=min(len(spans), len(os.sched_getaffinity(0)), MOST_PROCESSES),
        parent=os.getpid(),
    )
    before = folder / WORK
    if before.exists() and Work.model_validate_json(before.read_bytes()).spans != spans:
        for part in folder.glob("[0-9]*"):  # of another version, which divided files otherwise
            shutil.rmtree(part)
    before.write_text(work.model_dump_json())
    processes = [_start(folder.resolve(), part) for part in range(work.num_processes)]
    try:
        codes = [_wait(process, folder, len(spans), tell) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    if wrong := sorted(folder.glob("*.wrong")):
        raise BadData(wrong[0].read_text())
    if any(codes):
        raise OSError(f"a process that counts its documents has ended with {max(codes, key=abs)}")
    _join(folder, spans, dataset)


def spans_of(shards: Sequence[Path], format: DatasetFormat) -> list[ShardSpan]:
    """Divide shards into spans; only plain lines can be divided."""
    spans = []
    for number, path in enumerate(shards):
        begins, size = [0], path.stat().st_size
        if format == "jsonl" and size > SPAN_BYTES and compression_in(path) is None:
            with path.open("rb") as file:
                for at in range(SPAN_BYTES, size, SPAN_BYTES):
                    file.seek(at - 1)
                    file.readline()
                    if begins[-1] < file.tell() < size:
                        begins.append(file.tell())
        spans += [
            ShardSpan(number, *ends) for ends in zip(begins, [*begins[1:], None], strict=True)
        ]
    return spans


def _start(folder: Path, part: int) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "strategies.plan.data.indexing", str(folder), str(part)]
    return subprocess.Popen(
        command, cwd=Path(__file__).parents[3], env=environment, stdin=subprocess.DEVNULL
    )


def _wait(
    process: subprocess.Popen[bytes], folder: Path, num_spans: int, tell: Callable[[str], None]
) -> int:
    """Return the exit code of a process; tell meanwhile how many spans are counted."""
    while True:
        try:
            return process.wait(TELL_EVERY_S)
        except subprocess.TimeoutExpired:
            done = sum((folder / f"{number:05}").exists() for number in range(num_spans))
            tell(f"counting documents, before the first step: {done:,} of {num_spans:,} parts")


def count(folder: Path, part: int) -> int:
    """Count the spans of one process, up to a bad place of any process; return the exit code."""
    work = Work.model_validate_json((folder / WORK).read_bytes())
    tokenizer = tokenizer_from((folder / "tokenizer.json").read_text())
    files = file_words(work.shards)
    for number in range(part, len(work.spans), work.num_processes):
        done, span = folder / f"{number:05}", work.spans[number]
        if done.exists():
            continue
        if os.getppid() != work.parent or any(
            wrong.stem < done.name for wrong in folder.glob("*.wrong")
        ):
            return 1
        aside = folder / f"{done.name}-{os.getpid()}.tmp"
        aside.mkdir()
        try:
            file, longest_read = files[span.shard], LONGEST_READ[work.tokenizer]
            written = _write(aside, work, span, file, tokenizer, longest_read)
            (aside / COUNTS).write_text(json.dumps(written._asdict()))
            aside.rename(done)
        except (BadData, OSError) as error:
            if os.getppid() == work.parent:
                done.with_suffix(".wrong").write_text(str(error))
            return 1
    return 0


def _write(
    aside: Path, work: Work, span: ShardSpan, file: str, tokenizer: Tokenizer, longest_read: int
) -> DocumentCounts:
    """Write a span's documents. Raises BadData, with the line's number in the whole file."""
    path = work.shards[span.shard]

    def write(lines_before: int) -> DocumentCounts:
        rows = rows_of(path, work.format, file, span, lines_before=lines_before)
        return write_documents(aside, [rows], tokenizer, longest_read=longest_read)

    try:
        return write(0)
    except BadData:
        if span.begin == 0:
            raise
        return write(num_lines(path, span.begin))  # which raises it again


def num_lines(path: Path, size: int) -> int:
    """Return the number of lines in the first `size` bytes of a file."""
    found = 0
    with path.open("rb") as file:
        while size > 0 and (piece := file.read(min(PIECE_BYTES, size))):
            found, size = found + piece.count(b"\n"), size - len(piece)
    return found


def _join(folder: Path, spans: Sequence[ShardSpan], dataset: str) -> None:
    """Lay the documents of all spans end to end; their kept tokens stay where they are."""
    parts = [folder / f"{number:05}" for number in range(len(spans))]
    counts = [DocumentCounts(**json.loads((part / COUNTS).read_text())) for part in parts]
    end = sum(one.tokens for one in counts)
    require_documents(DocumentCounts(end, sum(one.too_short for one in counts)), dataset)
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
    np.array(first_documents, dtype=np.int64).tofile(folder / "spans")
    np.array([span.shard for span in spans], dtype=np.int64).tofile(folder / "shards")


def drop_parts(folder: Path) -> None:
    """Delete what is part of the whole index by now, and what killed processes have left."""
    for aside in folder.glob("*.tmp"):
        shutil.rmtree(aside, ignore_errors=True)
    (folder / WORK).unlink(missing_ok=True)
    for name in ("ends", "places", "learned", "spans"):
        for part in folder.glob(f"*/{name}"):
            part.unlink()


if __name__ == "__main__":
    sys.exit(count(Path(sys.argv[1]), int(sys.argv[2])))
