"""`client.models`: Hugging Face models to start from."""

import re
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

from trainyard.errors import BadInput
from trainyard.resources.shares import id_of
from trainyard.resources.uploads import RESUMABLE_FROM, Uploads
from trainyard.transport.connection import Connection, Upload, segment
from trainyard.transport.decoding import decode
from trainyard.transport.paging import all_pages
from trainyard.views import Model

CHUNK = 1024 * 1024
CONTENT_TYPE = "application/octet-stream"
WEIGHTS = re.compile(r"^model(-\d{5}-of-\d{5})?\.safetensors$")
OTHERS = (
    "config.json",
    "model.safetensors.index.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
)


class Models:
    """Models of the signed-in user."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def list(self) -> Iterator[Model]:
        """Iterate over your models and those shared with you."""
        return all_pages(self._connection, "/v1/models", Model)

    def get(self, model: str) -> Model:
        """Return a model by id, name or OWNER/NAME."""
        return decode(
            Model, self._connection.get(f"/v1/models/{segment(id_of(self.list(), model))}")
        )

    def upload(
        self, folder: str | Path, name: str, *, progress: Callable[[int, int], None] | None = None
    ) -> Model:
        """Stream a Hugging Face folder to the server, which checks it. If you have a model of that
        name, this is its next version. A large one goes on after a break.

        `progress` gets bytes sent and bytes in total. Files that training does not need are not
        sent.
        """
        files = files_of(Path(folder))
        size = sum(512 + file_size + -file_size % 512 for _, file_size in files) + 1024

        if size >= RESUMABLE_FROM:
            uploads = Uploads(self._connection).send_all(
                [(path, path.name) for path, _ in files], format="file", progress=progress
            )
            made = {"name": name, "uploads": uploads}
            return decode(Model, self._connection.post("/v1/models/uploaded", made))

        def chunks() -> Iterator[bytes]:
            sent = 0
            for chunk in archive(files):
                yield chunk
                sent += len(chunk)
                if progress:
                    progress(sent, size)

        body = Upload(chunks, size, CONTENT_TYPE)
        return decode(Model, self._connection.upload("/v1/models", body, name=name))

    def promote(self, job: str, step: int, name: str) -> Model:
        """Make a model of a checkpoint that holds one; if you have a model of that name, this is
        its next version."""
        body = {"job": job, "step": step, "name": name}
        return decode(Model, self._connection.post("/v1/models/promoted", body))

    def take_fetched(self, job: str, name: str) -> Model:
        """Make a model of what a job has fetched from the hub; if you have a model of that name,
        this is its next version."""
        body = {"job": job, "name": name}
        return decode(Model, self._connection.post("/v1/models/fetched", body))

    def delete(self, model: str) -> None:
        """Remove a model of yours, by id or name."""
        self._connection.delete(f"/v1/models/{segment(model)}")


def files_of(folder: Path) -> list[tuple[Path, int]]:
    """Return the files of a model's folder to send, with their sizes, config.json first."""
    try:
        found = sorted(path for path in folder.iterdir() if path.is_file())
        names = {path.name for path in found}
        if OTHERS[0] not in names:
            raise BadInput(f"{folder} has no {OTHERS[0]}: it is not a model's folder.")
        if not any(WEIGHTS.match(name) for name in names):
            raise BadInput(
                f"{folder} has no model.safetensors. Save the model as safetensors: "
                "model.save_pretrained(DIR)."
            )
        sent = [path for path in found if path.name in OTHERS or WEIGHTS.match(path.name)]
        sent.sort(key=lambda path: (path.name != OTHERS[0], bool(WEIGHTS.match(path.name))))
        return [(path, path.stat().st_size) for path in sent]
    except OSError as error:
        raise BadInput(f"{folder}: {error.strerror}") from error


def archive(files: list[tuple[Path, int]]) -> Iterator[bytes]:
    """Yield a tar archive of the files, piece by piece."""
    for path, size in files:
        member = tarfile.TarInfo(path.name)
        member.size = size
        yield member.tobuf(tarfile.GNU_FORMAT)
        left = size
        with path.open("rb") as file:
            while left and (chunk := file.read(min(CHUNK, left))):
                left -= len(chunk)
                yield chunk
        if left:
            raise BadInput(f"{path} became shorter while it was sent.")
        if padding := -size % 512:
            yield bytes(padding)
    yield bytes(1024)
