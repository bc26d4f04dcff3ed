"""/v1/workspace: one's own workspace. There is no address for anybody else's."""

from typing import Annotated
from urllib.parse import quote

import anyio
from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import FileResponse

from api.files.store import IncomingFile, Store
from api.files.uploads import receive
from api.web.auth import SignedIn
from api.web.identity import Person
from api.web.process import Process, ProcessDep
from api.web.schemas import Page
from api.web.text_types import PlainText
from api.workspaces import editing, reading
from api.workspaces.schemas import WorkspaceEntryView, WorkspaceSnapshotView, WorkspaceView
from core.base.clock import utc_now
from core.base.errors import BadRequest
from core.wire.workspace_tree import require_path

router = APIRouter(prefix="/v1/workspace", tags=["workspace"])

AnyPath = Annotated[
    str,
    Query(max_length=1024, description="Path below the workspace, such as `notes/plan.md`."),
]
Below = Annotated[str, Query(max_length=1024, description="Folder; empty: the workspace itself.")]
Snapshot = Annotated[
    PlainText | None, Query(description="Id of a snapshot; by default the current one.")
]
AfterPath = Annotated[
    str | None, Query(max_length=1024, description="Path of the last item of the previous page.")
]
BINARY = "application/octet-stream"
RAW_BODY = {
    "requestBody": {
        "required": True,
        "content": {BINARY: {"schema": {"type": "string", "format": "binary"}}},
    }
}
DOWNLOAD = {
    200: {
        "description": "The bytes, as an attachment.",
        "content": {BINARY: {"schema": {"type": "string", "format": "binary"}}},
    }
}


@router.get("", summary="Get my workspace")
def get_workspace(person: SignedIn, process: ProcessDep) -> WorkspaceView:
    """Return what your workspace holds of its quota, and the program that writes to it."""
    with process.read() as session:
        return reading.workspace_view(
            session, person, quota=process.settings.workspace_quota, now=utc_now()
        )


@router.get("/files", summary="List files of my workspace")
def list_workspace_files(
    person: SignedIn,
    process: ProcessDep,
    below: Below = "",
    recursive: bool = False,
    snapshot: Snapshot = None,
    limit: Annotated[int, Query(ge=1, le=1000, description="Number of items on one page.")] = 200,
    after: AfterPath = None,
) -> Page[WorkspaceEntryView]:
    """Return what is in a folder, by path, or with `recursive` everything below it."""
    with process.read() as session:
        tree = reading.tree_in(session, process.service(Store), person, snapshot)
    found, has_more = reading.entries_below(
        tree, below.strip("/"), is_deep=recursive, after=after, limit=limit
    )
    return Page[WorkspaceEntryView](data=found, has_more=has_more)


@router.get(
    "/content",
    summary="Download a file of my workspace",
    response_class=Response,
    responses=DOWNLOAD,  # type: ignore[arg-type]
)
def download_workspace_file(
    path: AnyPath, person: SignedIn, process: ProcessDep, snapshot: Snapshot = None
) -> Response:
    """Return the bytes of a file, as an attachment. Links are not followed."""
    store = process.service(Store)
    with process.read() as session:
        tree = reading.tree_in(session, store, person, snapshot)
    entry = reading.find_file(tree, _checked(path))
    assert entry.sha256 is not None
    name = quote(path.rpartition("/")[2], safe="")
    headers = {"Content-Disposition": f"attachment; filename*=UTF-8''{name}"}
    if entry.pack is None:
        return FileResponse(store.open_path(entry.sha256), media_type=BINARY, headers=headers)
    with store.open_path(tree.packs[entry.pack].sha256).open("rb") as pack:
        pack.seek(entry.offset)
        return Response(pack.read(entry.size), media_type=BINARY, headers=headers)


@router.post(
    "/files", status_code=201, summary="Put a file into my workspace", openapi_extra=RAW_BODY
)
async def put_workspace_file(
    request: Request,
    path: AnyPath,
    person: SignedIn,
    process: ProcessDep,
    executable: bool = False,
) -> WorkspaceSnapshotView:
    """Put the raw body at a path, in the place of a file of that path; folders above are made.

    Refused while a program writes to the workspace, and beyond the quota. Puts and deletions within
    ten minutes are one snapshot.
    """
    path, max_bytes = _checked(path), process.settings.workspace_quota.max_bytes
    with process.service(Store).incoming_file() as incoming:
        await receive(request, incoming, max_bytes=max_bytes)
        return await anyio.to_thread.run_sync(_put, process, person, path, incoming, executable)


def _checked(path: str) -> str:
    """Return a path below the workspace. Raises BadRequest for any other."""
    try:
        return require_path(path)
    except ValueError as error:
        raise BadRequest(f"path: {error}.", code="bad_path", param="path") from error


def _put(
    process: Process, person: Person, path: str, incoming: IncomingFile, executable: bool
) -> WorkspaceSnapshotView:
    incoming.seal()
    return process.transact(
        editing.put_file,
        process.service(Store),
        person,
        path,
        incoming,
        executable=executable,
        quota=process.settings.workspace_quota,
        now=utc_now(),
    )


@router.delete("/files", summary="Delete from my workspace")
def delete_workspace_file(
    path: AnyPath, person: SignedIn, process: ProcessDep
) -> WorkspaceSnapshotView:
    """Delete a file or a link, or a folder with everything in it. Earlier snapshots keep it."""
    return process.transact(
        editing.delete_path,
        process.service(Store),
        person,
        _checked(path),
        quota=process.settings.workspace_quota,
        now=utc_now(),
    )


@router.get("/snapshots", summary="List snapshots of my workspace")
def list_workspace_snapshots(person: SignedIn, process: ProcessDep) -> Page[WorkspaceSnapshotView]:
    """Return the snapshots that are kept, newest first: the last 24 of a week, at most."""
    with process.read() as session:
        return Page[WorkspaceSnapshotView](data=reading.snapshots_of(session, person))


@router.post("/snapshots/{snapshot_id}/restore", status_code=201, summary="Go back to a snapshot")
def restore_workspace_snapshot(
    snapshot_id: PlainText, person: SignedIn, process: ProcessDep
) -> WorkspaceSnapshotView:
    """Make an earlier snapshot the current one. What was current stays in the list.

    Refused while a program writes to the workspace.
    """
    return process.transact(
        editing.restore_snapshot, process.service(Store), person, snapshot_id, now=utc_now()
    )
