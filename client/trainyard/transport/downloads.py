"""Downloads of whole files: written to a temporary file, checked, then moved into place."""

import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from trainyard.errors import BadInput, ConnectionFailed, UnexpectedAnswer
from trainyard.transport.connection import Connection

Progress = Callable[[int, int | None], None]  # bytes received, bytes in all if known


def fetch(
    connection: Connection,
    path: str,
    destination: Path,
    *,
    sha256: str | None,
    progress: Progress | None = None,
) -> Path:
    """Write the file at `path` to the new file `destination`; start again if the connection breaks.

    Raises BadInput if the file exists or cannot be written, and UnexpectedAnswer if the received
    bytes are not those that the server has on record.
    """
    if destination.exists():
        raise BadInput(f"{destination} exists already; remove it or choose another place.")
    attempt = 0
    while True:
        try:
            return _fetch_once(connection, path, destination, sha256, progress)
        except OSError as error:
            raise BadInput(f"{destination}: {error.strerror}") from error
        except ConnectionFailed:
            if attempt >= connection.patience.retries:
                raise
            connection.sleep(connection.patience.wait_s(attempt, jitter=0.0))
            attempt += 1


def _fetch_once(
    connection: Connection,
    path: str,
    destination: Path,
    sha256: str | None,
    progress: Progress | None,
) -> Path:
    seen = hashlib.sha256()
    handle, name = tempfile.mkstemp(dir=destination.parent, prefix=f".{destination.name[:40]}-")
    aside = Path(name)
    try:
        with os.fdopen(handle, "wb") as file, connection.download(path) as response:
            length = response.headers.get("content-length")
            total = int(length) if length else None
            for chunk in response.iter_raw(256 * 1024):
                file.write(chunk)
                seen.update(chunk)
                if progress:
                    progress(file.tell(), total)
        if sha256 is not None and seen.hexdigest() != sha256:
            raise UnexpectedAnswer(
                f"{destination.name} arrived with SHA-256 {seen.hexdigest()}, the server has "
                f"{sha256} on record. Try again; if this persists, tell an administrator."
            )
        aside.chmod(0o644)
        aside.rename(destination)
        return destination
    finally:
        aside.unlink(missing_ok=True)
