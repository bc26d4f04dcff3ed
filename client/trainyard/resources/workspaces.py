"""`client.workspace`: your folder that outlives leases and follows you from node to node."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from urllib.parse import urlencode

from trainyard.errors import BadInput
from trainyard.transport.connection import Connection, Upload, segment
from trainyard.transport.decoding import decode
from trainyard.transport.downloads import fetch
from trainyard.transport.paging import all_pages, whole_list
from trainyard.views import Workspace, WorkspaceEntry, WorkspaceSnapshot

CHUNK = 1024 * 1024
Progress = Callable[[int, int | None], None]


class YourWorkspace:
    """Client of your own workspace; nobody else's can be named."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def get(self) -> Workspace:
        """Return what it holds of its quota, and the program that writes to it."""
        return decode(Workspace, self._connection.get("/v1/workspace"))

    def list(
        self, below: str = "", *, recursive: bool = False, snapshot: str | None = None
    ) -> Iterator[WorkspaceEntry]:
        """Iterate over what is in a folder, or with `recursive` over everything below it."""
        return all_pages(
            self._connection,
            "/v1/workspace/files",
            WorkspaceEntry,
            below=below,
            recursive=recursive,
            snapshot=snapshot,
        )

    def download(
        self,
        path: str,
        destination: str | Path,
        *,
        sha256: str | None = None,
        snapshot: str | None = None,
        progress: Progress | None = None,
    ) -> Path:
        """Write a file of it to the new file `destination`, whose bytes are checked by `sha256`."""
        query = {"path": path, **({} if snapshot is None else {"snapshot": snapshot})}
        address = f"/v1/workspace/content?{urlencode(query)}"
        return fetch(self._connection, address, Path(destination), sha256=sha256, progress=progress)

    def download_tree(
        self, path: str, destination: str | Path, *, snapshot: str | None = None
    ) -> Iterator[Path]:
        """Write a file, or a folder with everything in it, to the new place `destination`; yield
        each file's path as it arrives.

        Links are left out: they mean something in the workspace only. Raises NotFound.
        """
        target = Path(destination)
        if target.exists():
            raise BadInput(f"{target} exists already; remove it or choose another place.")
        entries = list(self.list(path, recursive=True, snapshot=snapshot))
        if [entry.path for entry in entries] == [path.strip("/")]:
            yield self.download(
                entries[0].path, target, sha256=entries[0].sha256, snapshot=snapshot
            )
            return
        if not entries and not path:
            raise BadInput("Your workspace is empty.")
        target.mkdir(parents=True)
        for entry in entries:
            inside = target / inner_path(entry.path, path.strip("/"))
            if entry.kind == "folder":
                inside.mkdir()
            elif entry.kind == "file":
                yield self.download(entry.path, inside, sha256=entry.sha256, snapshot=snapshot)
                if entry.executable:
                    inside.chmod(0o755)

    def put(
        self, file: str | Path, path: str, *, progress: Progress | None = None
    ) -> WorkspaceSnapshot:
        """Put a file into it, in the place of one of that path; folders above it are made."""
        source = Path(file)
        try:
            found = source.stat()
            source.open("rb").close()
        except OSError as error:
            raise BadInput(f"{source}: {error.strerror}") from error

        def chunks() -> Iterator[bytes]:
            sent = 0
            with source.open("rb") as opened:
                while sent < found.st_size and (
                    chunk := opened.read(min(CHUNK, found.st_size - sent))
                ):
                    yield chunk
                    sent += len(chunk)
                    if progress:
                        progress(sent, found.st_size)

        body = Upload(chunks, found.st_size, "application/octet-stream")
        answer = self._connection.upload(
            "/v1/workspace/files", body, path=path, executable=bool(found.st_mode & 0o100)
        )
        return decode(WorkspaceSnapshot, answer)

    def delete(self, path: str) -> None:
        """Delete a file, a link, or a folder with everything in it; earlier snapshots keep it."""
        self._connection.delete(f"/v1/workspace/files?{urlencode({'path': path})}")

    def snapshots(self) -> Sequence[WorkspaceSnapshot]:
        """Return the snapshots that are kept, newest first."""
        return whole_list(self._connection, "/v1/workspace/snapshots", WorkspaceSnapshot)

    def restore(self, snapshot: str) -> WorkspaceSnapshot:
        """Make an earlier snapshot the current one; what was current stays in the list."""
        path = f"/v1/workspace/snapshots/{segment(snapshot)}/restore"
        return decode(WorkspaceSnapshot, self._connection.post(path))


def inner_path(path: str, folder: str) -> PurePosixPath:
    """Return a path of the workspace as seen from one of its folders. Raises BadInput if it would
    lead out of it, which no answer of a genuine server does."""
    inner = PurePosixPath(path).relative_to(folder) if folder else PurePosixPath(path)
    if inner.is_absolute() or ".." in inner.parts:
        raise BadInput(f"{path!r} leads out of the folder that it is fetched to.")
    return inner
