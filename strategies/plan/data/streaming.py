"""Chapters of a corpus on a node's disk, each counted when it is needed or shortly before.

Whoever needs a chapter that nobody has counted counts it; a process in the background counts the
next ones: `python -m strategies.plan.data.streaming FOLDER NUMBER...`, which does so for its parent
alone and leaves a chapter with a bad line to whoever needs it. Torch-free.
"""

import ctypes
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict

from strategies.plan.built_in.datasets import DatasetFormat
from strategies.plan.data.chapters import Division, Spans
from strategies.plan.data.compression import compression_in
from strategies.plan.data.corpus import Corpus, flags_in
from strategies.plan.data.document_files import write_documents
from strategies.plan.data.indexed import IndexedTokens
from strategies.plan.data.indexing import LONGEST_READ, num_lines
from strategies.plan.data.reading import BadData, PlacedRow, ShardSpan, file_words, rows_of
from strategies.plan.data.stored_tokenizer import tokenizer_from

STREAM = "stream.json"
PR_SET_PDEATHSIG = 1
NICENESS = 5  # steps come first


class Stream(BaseModel):
    """Content of stream.json: what its chapters are made of."""

    model_config = ConfigDict(frozen=True)

    shards: list[Path]
    format: DatasetFormat
    tokenizer: str
    held_out: float


class Chapters:
    """Chapters in a folder, by number; the one that is evaluated comes after the others."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.stream = Stream.model_validate_json((folder / STREAM).read_bytes())
        self.tokenizer = tokenizer_from((folder / "tokenizer.json").read_text())
        self.division = division_of(self.stream)
        self.num_training = self.division.num_chapters
        self.background: list[subprocess.Popen[bytes]] = []
        weakref.finalize(self, end_all, self.background)

    def spans(self, number: int) -> Spans:
        if number == self.num_training:
            return self.division.evaluated
        return self.division.chapter(number)

    def path(self, number: int) -> Path:
        return self.folder / f"{number:06}"

    def corpus(self, number: int) -> Corpus | None:
        """Return the documents of a chapter, which is counted first if it has not been.

        None if it has none. Raises BadData, with the place of a bad line.
        """
        self.count(number)
        path = self.path(number)
        ends = np.fromfile(path / "ends", np.int64)
        if not len(ends):
            return None
        shards = self.stream.shards
        tokens = IndexedTokens(path, shards, ends, self.tokenizer, is_chapter=True)
        return Corpus(tokens, ends, self.tokenizer, flags_in(path))

    def count(self, number: int, *, wait: bool = True) -> None:
        """Count a chapter, unless it is there; `wait` for a process that does so already."""
        path = self.path(number)
        if path.exists():
            return
        with (self.folder / "lock").open("w") as lock:
            how = fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB
            try:
                fcntl.lockf(lock, how, 1, number)  # released when the process ends
            except BlockingIOError:
                return
            if path.exists():
                return
            aside = path.with_suffix(".tmp")
            shutil.rmtree(aside, ignore_errors=True)  # of a killed process
            aside.mkdir()
            self._write(aside, self.spans(number))
            aside.rename(path)

    def count_ahead(self, numbers: Sequence[int]) -> None:
        """Count some chapters in the background, one after the other."""
        missing = [str(number) for number in numbers if not self.path(number).exists()]
        if not missing or any(process.poll() is None for process in self.background):
            return
        self.background.clear()
        environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
        module = [sys.executable, "-m", "strategies.plan.data.streaming"]
        command = [*module, str(self.folder.resolve()), str(os.getpid()), *missing]
        self.background.append(
            subprocess.Popen(
                command,
                cwd=Path(__file__).parents[3],
                env=environment,
                stdin=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        )

    def _write(self, aside: Path, spans: Spans) -> None:
        """Write the documents of a chapter. Raises BadData, with its line's number in the file."""
        stream, words = self.stream, file_words(self.stream.shards)
        longest_read, reading = LONGEST_READ[stream.tokenizer], spans[0]
        whole = [aligned(stream.shards[span.shard], span) for span in spans]

        def rows(span: ShardSpan, lines_before: int = 0) -> Iterator[PlacedRow]:
            nonlocal reading
            reading, path = span, stream.shards[span.shard]
            yield from rows_of(
                path, stream.format, words[span.shard], span, lines_before=lines_before
            )

        try:
            write_documents(
                aside, (rows(one) for one in whole), self.tokenizer, longest_read=longest_read
            )
        except BadData:
            if reading.begin == 0:
                raise
            before = num_lines(stream.shards[reading.shard], reading.begin)
            again = [rows(reading, before)]
            write_documents(aside, again, self.tokenizer, longest_read=longest_read)
            raise
        np.array([span.shard for span in whole], dtype=np.int64).tofile(aside / "shards")


def division_of(stream: Stream) -> Division:
    """Return the chapters of a stream, from the sizes of its files."""
    sizes = [shard.stat().st_size for shard in stream.shards]
    return Division(
        sizes, can_seek=can_seek(stream.shards, stream.format), held_out=stream.held_out
    )


def can_seek(shards: Sequence[Path], format: DatasetFormat) -> bool:
    """Return True if every file may be read from its middle: plain lines."""
    return format == "jsonl" and all(compression_in(shard) is None for shard in shards)


def aligned(path: Path, span: ShardSpan) -> ShardSpan:
    """Return a span with the lines that begin in `span`."""
    with path.open("rb") as file:

        def line_at(place: int) -> int:
            file.seek(place - 1)
            file.readline()
            return file.tell()

        begin = span.begin and line_at(span.begin)
        return ShardSpan(span.shard, begin, None if span.end is None else line_at(span.end))


def end_all(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Kill processes; a chapter that is half counted is counted again."""
    for process in processes:
        process.kill()
        process.wait()


def count_for(parent: int, folder: Path, numbers: Sequence[int]) -> None:
    """Count some chapters as long as the parent lives."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    os.nice(NICENESS)
    chapters = Chapters(folder)
    for number in numbers:
        if os.getppid() != parent:
            return
        chapters.count(number, wait=False)


if __name__ == "__main__":
    try:
        count_for(int(sys.argv[2]), Path(sys.argv[1]), [int(number) for number in sys.argv[3:]])
    except (BadData, OSError):
        sys.exit(1)
