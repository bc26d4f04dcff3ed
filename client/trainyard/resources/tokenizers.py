"""`client.tokenizers`: your own tokenizers, to pretrain with."""

from collections.abc import Iterator
from pathlib import Path

from trainyard.errors import BadInput
from trainyard.resources.shares import id_of
from trainyard.resources.uploads import Uploads
from trainyard.transport.connection import Connection, segment
from trainyard.transport.decoding import decode
from trainyard.transport.paging import all_pages
from trainyard.views import Tokenizer

MAIN = "tokenizer.json"
BESIDE = (
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
)


class Tokenizers:
    """Tokenizers of the signed-in user."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def list(self) -> Iterator[Tokenizer]:
        """Iterate over your tokenizers and those shared with you."""
        return all_pages(self._connection, "/v1/tokenizers", Tokenizer)

    def get(self, tokenizer: str) -> Tokenizer:
        """Return a tokenizer by id, name or OWNER/NAME."""
        found = segment(id_of(self.list(), tokenizer))
        return decode(Tokenizer, self._connection.get(f"/v1/tokenizers/{found}"))

    def upload(self, path: str | Path, name: str) -> Tokenizer:
        """Send a tokenizer.json, or a folder that has one, with the files beside it."""
        given = Path(path)
        main = given / MAIN if given.is_dir() else given
        if not main.is_file():
            raise BadInput(f"{main} is not a file.")
        files = [(main, MAIN)]
        if given.is_dir():
            files += [(given / name, name) for name in BESIDE if (given / name).is_file()]
        uploads = Uploads(self._connection).send_all(files, format="file")
        made = {"name": name, "uploads": uploads}
        return decode(Tokenizer, self._connection.post("/v1/tokenizers/uploaded", made))

    def promote(self, job: str, name: str) -> Tokenizer:
        """Make a tokenizer of the tokenizer.json among a job's artifacts."""
        body = {"job": job, "name": name}
        return decode(Tokenizer, self._connection.post("/v1/tokenizers/promoted", body))

    def delete(self, tokenizer: str) -> None:
        """Remove a tokenizer of yours, by id or name."""
        self._connection.delete(f"/v1/tokenizers/{segment(tokenizer)}")
