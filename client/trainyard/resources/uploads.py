"""`client.uploads`: files that arrive in parts and go on after a break, also of an earlier call."""

import base64
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Literal

from trainyard.errors import BadInput, Conflict, ConnectionFailed, ServerFailed, TooMany
from trainyard.transport.connection import Connection, segment
from trainyard.transport.decoding import decode
from trainyard.transport.paging import whole_list
from trainyard.views import Upload

RESUMABLE_FROM = 32 << 20  # bytes; a smaller file is sent again as fast as it is found again
PART = 64 << 20  # the server syncs its disk after each: at most so much is sent twice
CHUNK = 1 << 20
SAMPLES, SAMPLE = 64, 1 << 16  # the mark of a file is the hash of 4 MiB of it
MOST_BREAKS = 24  # without a byte in between: some five minutes
MOST_WAITS = 240  # for a server that is at work on it: after a restart it reads all of it again
LONGEST_PAUSE_S = 15.0

Format = Literal["text", "jsonl", "npz", "parquet", "arrow", "file"]
Progress = Callable[[int, int], None]


class Uploads:
    """Uploads of the signed-in user that are not finished."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def list(self) -> list[Upload]:
        """Return the uploads that nothing has been made of yet, newest first."""
        return whole_list(self._connection, "/v1/uploads", Upload)

    def delete(self, upload: str) -> None:
        """Delete an unfinished upload with the bytes that have arrived."""
        self._connection.delete(f"/v1/uploads/{segment(upload)}")

    def send(
        self,
        file: Path,
        *,
        path: str | None = None,
        format: Format = "file",
        progress: Progress | None = None,
    ) -> str:
        """Send a file, or the rest of it, and return the id of the whole upload.

        `path` is the file's path within what it is for. `progress` gets bytes there and in total.
        Raises ConnectionFailed or ServerFailed if the server stays away for about five minutes.
        """
        [upload] = self.send_all([(file, path or file.name)], format=format, progress=progress)
        return upload

    def send_all(
        self,
        files: Sequence[tuple[Path, str]],
        *,
        format: Format,
        progress: Progress | None = None,
    ) -> Sequence[str]:
        """Send files with their paths, one after the other; return the ids of the uploads."""
        total = sum(_size(file) for file, _ in files)
        done, uploads = 0, []
        for file, path in files:

            def tell(sent: int, before: int = done) -> None:
                if progress:
                    progress(before + sent, total)

            uploads.append(self._send(file, path, format, tell))
            done += _size(file)
        return uploads

    def _send(self, file: Path, path: str, format: Format, tell: Callable[[int], None]) -> str:
        size = _size(file)
        told = {"path": path, "size": size, "format": format}
        with file.open("rb") as opened:
            mark = fingerprint(opened, told)
            begun = self._connection.post("/v1/uploads", {**told, "fingerprint": mark})
            upload = decode(Upload, begun)
            content = _Content(opened, size, tell)
            offset, breaks = upload.received, 0
            tell(offset)
            while offset < size:
                try:
                    offset = self._send_part(upload.id, content, offset)
                    breaks = 0
                except (ConnectionFailed, ServerFailed, TooMany, Conflict) as error:
                    reached = self._after_break(upload.id, error, breaks)
                    breaks = 0 if reached > offset else breaks + 1
                    offset = reached
            self._finish(upload.id, content)
        return upload.id

    def _send_part(self, upload: str, content: "_Content", offset: int) -> int:
        """Send the next part; return how much is there then."""
        headers = {
            "Content-Type": "application/partial-upload",
            "Content-Length": str(min(PART, content.size - offset)),
            "Upload-Offset": str(offset),
            "Upload-Complete": "?0",
        }
        answer = self._connection.send_part(
            f"/v1/uploads/{upload}", headers, lambda: content.part(offset)
        )
        return int(answer["upload-offset"])

    def _after_break(self, upload: str, error: Exception, breaks: int) -> int:
        """Return how much has arrived, asked until the server answers. Raises `error` at last."""
        if isinstance(error, Conflict) and error.code not in ("wrong_offset", "upload_busy"):
            raise error
        most = MOST_WAITS if isinstance(error, Conflict) else MOST_BREAKS
        while True:
            if breaks >= most:
                raise error
            self._connection.sleep(min(LONGEST_PAUSE_S, 0.5 * 2.0 ** min(breaks, 10)))
            try:
                return int(self._connection.head(f"/v1/uploads/{upload}")["upload-offset"])
            except (ConnectionFailed, ServerFailed, TooMany):
                breaks += 1

    def _finish(self, upload: str, content: "_Content") -> None:
        """Tell the server the hash of the whole, which it compares with that of its own bytes."""
        digest = base64.b64encode(content.digest()).decode()
        headers = {
            "Content-Type": "application/partial-upload",
            "Content-Length": "0",
            "Upload-Offset": str(content.size),
            "Upload-Complete": "?1",
            "Repr-Digest": f"sha-256=:{digest}:",
        }
        breaks = 0
        while True:
            try:
                self._connection.send_part(f"/v1/uploads/{upload}", headers, lambda: iter(()))
                return
            except (ConnectionFailed, ServerFailed, TooMany, Conflict) as error:
                self._after_break(upload, error, breaks)
                breaks += 1


class _Content:
    """Bytes of a file, each hashed once, however often it is sent."""

    def __init__(self, file: BinaryIO, size: int, tell: Callable[[int], None]) -> None:
        self.file, self.size, self.tell = file, size, tell
        self._hash, self._hashed = hashlib.sha256(), 0

    def part(self, offset: int) -> Iterator[bytes]:
        """Yield the bytes of the part that begins at `offset`."""
        end = min(self.size, offset + PART)
        self._hash_until(offset)
        while offset < end:
            chunk = self._read(offset, min(CHUNK, end - offset))
            self._take(offset, chunk)
            yield chunk
            offset += len(chunk)
            self.tell(offset)

    def digest(self) -> bytes:
        """Return the SHA-256 of the whole file."""
        self._hash_until(self.size)
        return self._hash.digest()

    def _hash_until(self, end: int) -> None:
        """Hash what an earlier call has sent."""
        while self._hashed < end:
            self._take(self._hashed, self._read(self._hashed, min(CHUNK, end - self._hashed)))

    def _take(self, offset: int, chunk: bytes) -> None:
        new = offset + len(chunk) - self._hashed
        if new > 0:
            self._hash.update(chunk[-new:])
            self._hashed += new

    def _read(self, offset: int, count: int) -> bytes:
        self.file.seek(offset)
        chunk = self.file.read(count)
        if len(chunk) < count:
            raise BadInput(f"{self.file.name} became shorter while it was sent.")
        return chunk


def fingerprint(file: BinaryIO, told: dict[str, object]) -> str:
    """Return a mark of a file: the hash of its size, path, format and of samples of its bytes."""
    found = hashlib.sha256(json.dumps(told, sort_keys=True).encode())
    size = file.seek(0, 2)
    for number in range(SAMPLES):
        file.seek(max(0, size - SAMPLE) * number // (SAMPLES - 1))
        found.update(file.read(SAMPLE))
    return found.hexdigest()


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError as error:
        raise BadInput(f"{file}: {error.strerror}") from error
