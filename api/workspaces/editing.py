"""Changes of a workspace by its owner's own hand, while no program writes to it."""

from collections.abc import Callable
from datetime import datetime, timedelta

from sqlalchemy.orm import Session

from api.files import store as storage
from api.files.store import IncomingFile, Store
from api.nodes.reports import require_stored
from api.nodes.workspace_reports import file_refs
from api.web.bells import Bells
from api.web.identity import Person
from api.workspaces.reading import current, find_snapshot, snapshot_view, tree_of_snapshot
from api.workspaces.schemas import WorkspaceSnapshotView
from core.base.errors import BadRequest, Conflict, NotFound
from core.tables.jobs import Job
from core.tables.kinds import SnapshotOrigin
from core.tables.workspaces import Workspace
from core.wire.workspace_tree import BadTree, Blob, Entry, EntryKind, Tree, tree_bytes
from core.workspaces import writers
from core.workspaces.quota import Quota
from core.workspaces.snapshots import add_snapshot, drop_unneeded

ONE_EDIT = timedelta(minutes=10)  # edits within it are one snapshot


def put_file(
    session: Session,
    _: Bells,
    store: Store,
    person: Person,
    path: str,
    incoming: IncomingFile,
    *,
    executable: bool,
    quota: Quota,
    now: datetime,
) -> WorkspaceSnapshotView:
    """Put a sealed file into a person's workspace, in the place of one of that path."""
    assert incoming.sealed is not None
    entry = Entry(
        path=path,
        kind=EntryKind.FILE,
        size=incoming.sealed.size,
        modified_ns=int(now.timestamp()) * 10**9,
        executable=executable,
        sha256=incoming.sealed.sha256,
    )
    return _edit(
        session, store, person, lambda tree: tree.with_entries([entry]), incoming,
        quota=quota, now=now,
    )  # fmt: skip


def delete_path(
    session: Session,
    _: Bells,
    store: Store,
    person: Person,
    path: str,
    *,
    quota: Quota,
    now: datetime,
) -> WorkspaceSnapshotView:
    """Delete a file or a link, or a folder with everything in it. Raises NotFound."""

    def change(tree: Tree) -> Tree:
        if path not in tree.by_path:
            raise NotFound(f"Your workspace has no {path!r}.", param="path")
        return tree.without(path)

    return _edit(session, store, person, change, quota=quota, now=now)


def restore_snapshot(
    session: Session,
    _: Bells,
    store: Store,
    person: Person,
    snapshot_id: str,
    *,
    now: datetime,
) -> WorkspaceSnapshotView:
    """Go back to an earlier snapshot, as a new one: what was current stays in the list."""
    workspace = _writable(session, person, now=now)
    snapshot = find_snapshot(session, person, snapshot_id)
    tree = tree_of_snapshot(store, snapshot)
    stored = Blob(sha256=snapshot.tree, size=snapshot.tree_size)
    require_stored(session, file_refs([stored, *tree.blobs]))
    added = add_snapshot(session, workspace, tree, stored, origin=SnapshotOrigin.RESTORE, now=now)
    workspace.trouble = ""
    return snapshot_view(added, is_current=True)


def _edit(
    session: Session,
    store: Store,
    person: Person,
    change: Callable[[Tree], Tree],
    *incoming: IncomingFile,
    quota: Quota,
    now: datetime,
) -> WorkspaceSnapshotView:
    workspace = _writable(session, person, now=now)
    before = current(session, workspace)
    try:
        tree = change(Tree() if before is None else tree_of_snapshot(store, before))
    except BadTree as error:
        raise BadRequest(f"path: {error}.", code="bad_path", param="path") from error
    refused = quota.why_refused(tree.size, len(tree.entries))
    if refused and incoming:  # deleting is always allowed
        raise Conflict(refused, code="workspace_full")
    content = tree_bytes(tree)
    with store.incoming_file() as document:
        document.write(content)
        stored = document.seal()
        storage.keep(session, *incoming, document)
        blob = Blob(sha256=stored.sha256, size=stored.size)
        require_stored(session, file_refs([blob, *tree.blobs]))
        added = add_snapshot(session, workspace, tree, blob, origin=SnapshotOrigin.EDIT, now=now)
    is_same_edit = (
        before is not None
        and before.origin is SnapshotOrigin.EDIT
        and now - before.taken_at < ONE_EDIT
    )
    if before is not None and is_same_edit:
        drop_unneeded(session, workspace, [before.id])
    workspace.trouble = quota.warning(tree.size, len(tree.entries))
    return snapshot_view(added, is_current=True)


def _writable(session: Session, person: Person, *, now: datetime) -> Workspace:
    """Return a person's workspace, locked. Raises Conflict while a program writes to it."""
    workspace = writers.workspace_of(session, person.id, now=now)
    holder = writers.holder_of(session, workspace, now=now)
    if holder is not None:
        name = session.get_one(Job, holder.job_id).name
        raise Conflict(
            f"{name} ({holder.job_id}) writes to your workspace now. Wait until it has ended, or "
            "pause or cancel it.",
            code="workspace_in_use",
        )
    return workspace
