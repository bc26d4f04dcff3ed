"""`client.code`: the code of your own scripts."""

from collections.abc import Iterator
from pathlib import Path

from trainyard.packing import PackedCode
from trainyard.transport.connection import Connection, Upload, segment
from trainyard.transport.decoding import decode
from trainyard.transport.downloads import fetch
from trainyard.transport.paging import all_pages
from trainyard.views import Code, CodeLine


class CodeArchives:
    """Archives of code, identified by their SHA-256."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def upload(self, packed: PackedCode) -> Code:
        """Send an archive that `trainyard.packing.pack` made of a folder."""

        def chunks() -> Iterator[bytes]:
            yield packed.content

        body = Upload(chunks, len(packed.content), "application/zip")
        return decode(Code, self._connection.upload("/v1/code", body))

    def get(self, sha256: str) -> Code:
        """Return the contents of an archive that you have uploaded."""
        return decode(Code, self._connection.get(f"/v1/code/{segment(sha256)}"))

    def list(self) -> Iterator[CodeLine]:
        """Iterate over the archives that you have uploaded, each with the jobs that need it."""
        return all_pages(self._connection, "/v1/code", CodeLine)

    def delete(self, sha256: str) -> None:
        """Delete an archive; every job that needs it must have ended."""
        self._connection.delete(f"/v1/code/{segment(sha256)}")

    def download(self, job_id: str, destination: str | Path, *, sha256: str | None = None) -> Path:
        """Write the code that a job runs to the new file `destination`."""
        path = f"/v1/jobs/{segment(job_id)}/code"
        return fetch(self._connection, path, Path(destination), sha256=sha256)
