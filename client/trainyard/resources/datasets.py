"""`client.datasets`: texts and images to train on."""

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal

from trainyard.errors import BadInput
from trainyard.resources.shares import id_of
from trainyard.resources.uploads import RESUMABLE_FROM, Uploads
from trainyard.transport.connection import Connection, Upload, segment
from trainyard.transport.decoding import decode
from trainyard.transport.paging import all_pages
from trainyard.views import Dataset, DatasetRows

Format = Literal["text", "jsonl", "npz", "parquet", "arrow"]
CONTENT_TYPES = {
    "text": "text/plain; charset=utf-8",
    "jsonl": "application/x-ndjson",
    "npz": "application/octet-stream",
    "parquet": "application/octet-stream",
    "arrow": "application/octet-stream",
}
CHUNK = 1024 * 1024


class Datasets:
    """Built-in data sets and your own."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def list(self) -> Iterator[Dataset]:
        """Iterate over all data sets that you may train on."""
        return all_pages(self._connection, "/v1/datasets", Dataset)

    def get(self, dataset: str) -> Dataset:
        """Return a data set by id or name."""
        found = segment(id_of(self.list(), dataset))
        return decode(Dataset, self._connection.get(f"/v1/datasets/{found}"))

    def rows(self, dataset: str, *, tokenizer: str = "bytes", count: int = 5) -> DatasetRows:
        """Return the first rows of a text as tokens, with those marked that a model learns."""
        path = f"/v1/datasets/{segment(id_of(self.list(), dataset))}/rows"
        return decode(DatasetRows, self._connection.get(path, tokenizer=tokenizer, count=count))

    def upload(
        self,
        path: str | Path,
        name: str,
        format: Format | None = None,
        *,
        progress: Callable[[int, int], None] | None = None,
    ) -> Dataset:
        """Stream a file to the server, which checks it; `progress` gets bytes sent and bytes in
        total.

        Without `format`, a name that ends in .jsonl or .ndjson means JSON lines, one that ends in
        .npz means images, and any other name means text. `trainyard.idx.pack` makes such an .npz
        from MNIST's original files. Text and JSON lines may be compressed (.gz, .zst). A large file
        goes on after a break, also of an earlier call.
        """
        file = Path(path)
        try:
            size = file.stat().st_size
            file.open("rb").close()
        except OSError as error:
            raise BadInput(f"{file}: {error.strerror}") from error
        if size == 0:
            raise BadInput(f"{file} is empty (0 bytes).")
        chosen = format or guess_format(file)

        if size >= RESUMABLE_FROM:
            plain = plain_name(file.name)
            upload = Uploads(self._connection).send(
                file, path=plain, format=chosen, progress=progress
            )
            made = {"name": name, "uploads": [upload]}
            return decode(Dataset, self._connection.post("/v1/datasets/uploaded", made))

        def chunks() -> Iterator[bytes]:
            sent = 0
            with file.open("rb") as opened:
                while sent < size and (chunk := opened.read(min(CHUNK, size - sent))):
                    yield chunk
                    sent += len(chunk)
                    if progress:
                        progress(sent, size)

        body = Upload(chunks, size, CONTENT_TYPES[chosen])
        answer = self._connection.upload("/v1/datasets", body, name=name, format=chosen)
        return decode(Dataset, answer)

    def upload_files(
        self,
        files: Sequence[tuple[Path, str]],
        name: str,
        format: Format | None = None,
        *,
        progress: Callable[[int, int], None] | None = None,
    ) -> Dataset:
        """Send files with their paths as one dataset, in the order of the paths.

        All have one format, by default that of the first one's name. A call that was broken off
        goes on.
        """
        if not files:
            raise BadInput("There are no files to upload.")
        chosen = format or guess_format(files[0][0])
        uploads = Uploads(self._connection).send_all(files, format=chosen, progress=progress)
        made = {"name": name, "uploads": uploads}
        return decode(Dataset, self._connection.post("/v1/datasets/uploaded", made))

    def take_fetched(self, job: str, name: str) -> Dataset:
        """Make a dataset of what a job has fetched from the hub."""
        body = {"job": job, "name": name}
        return decode(Dataset, self._connection.post("/v1/datasets/fetched", body))

    def delete(self, dataset: str) -> None:
        """Remove a data set of yours, by id or name."""
        self._connection.delete(f"/v1/datasets/{segment(dataset)}")


def plain_name(name: str) -> str:
    """Return a file's name as the API takes it: any other character becomes a dash."""
    name = re.sub(r"[^A-Za-z0-9_.=+@,-]+", "-", name)
    return re.sub(r"^\.?[^A-Za-z0-9_.-]|^\.{2}", "_", name)


def guess_format(path: Path) -> Format:
    """Return the format that the ending of a file's name indicates, before .gz or .zst."""
    endings: dict[str, Format] = {
        ".jsonl": "jsonl",
        ".ndjson": "jsonl",
        ".npz": "npz",
        ".parquet": "parquet",
        ".arrow": "arrow",
    }
    ending = path.suffix.lower()
    if ending in (".gz", ".zst"):
        ending = path.with_suffix("").suffix.lower()
    return endings.get(ending, "text")


def files_below(folder: Path) -> list[tuple[Path, str]]:
    """Return the files of a folder with their paths in it, without hidden ones. Raises BadInput if
    there are none."""
    found = sorted(
        (path.relative_to(folder).as_posix(), path)
        for path in folder.rglob("*")
        if path.is_file() and not any(p.startswith(".") for p in path.relative_to(folder).parts)
    )
    if not found:
        raise BadInput(f"{folder} has no files.")
    return [(path, name) for name, path in found]
