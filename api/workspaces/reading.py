"""Content of a person's workspace; nobody else's can be asked for."""

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.orm import Session

from api.files.store import Store
from api.web.identity import Person
from api.workspaces.schemas import (
    SharedEntryView,
    SharedUseView,
    WorkspaceEntryView,
    WorkspaceSnapshotView,
    WorkspaceView,
    WorkspaceWriterView,
)
from core.base.errors import NotFound
from core.states import NodeState
from core.tables.jobs import Job
from core.tables.nodes import Node
from core.tables.workspaces import Workspace, WorkspaceSnapshot
from core.wire.shared_use import SharedUse
from core.wire.workspace_tree import Entry, EntryKind, Tree, parent_of, read_tree
from core.workspaces import writers
from core.workspaces.quota import Quota

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def workspace_view(
    session: Session, person: Person, *, quota: Quota, now: datetime
) -> WorkspaceView:
    """Return the state of a person's workspace."""
    workspace = session.get(Workspace, person.id)
    snapshot = None if workspace is None else current(session, workspace)
    return WorkspaceView(
        used=0 if snapshot is None else snapshot.size,
        max_bytes=quota.max_bytes,
        files=0 if snapshot is None else snapshot.files,
        max_files=quota.max_files,
        snapshot=None if snapshot is None else snapshot.id,
        taken_at=None if snapshot is None else snapshot.taken_at,
        writer=None if workspace is None else _writer(session, workspace, now=now),
        trouble="" if workspace is None else workspace.trouble,
        shared_classes=_shared_classes(session),
        shared=None if workspace is None else _shared(workspace),
    )


def snapshots_of(session: Session, person: Person) -> list[WorkspaceSnapshotView]:
    """Return a person's snapshots, newest first."""
    workspace = session.get(Workspace, person.id)
    rows = session.scalars(
        select(WorkspaceSnapshot)
        .where(WorkspaceSnapshot.user_id == person.id)
        .order_by(WorkspaceSnapshot.id.desc())
    )
    current_id = None if workspace is None else workspace.snapshot_id
    return [snapshot_view(row, is_current=row.id == current_id) for row in rows]


def snapshot_view(row: WorkspaceSnapshot, *, is_current: bool) -> WorkspaceSnapshotView:
    """Return the view of a snapshot."""
    return WorkspaceSnapshotView(
        id=row.id,
        origin=row.origin,
        job=row.job_id,
        epoch=row.epoch,
        used=row.size,
        files=row.files,
        left_out=row.left_out,
        taken_at=row.taken_at,
        is_current=is_current,
    )


def find_snapshot(session: Session, person: Person, snapshot_id: str) -> WorkspaceSnapshot:
    """Return a snapshot of this person's. Raises NotFound for any other."""
    found = session.get(WorkspaceSnapshot, snapshot_id)
    if found is None or found.user_id != person.id:
        raise NotFound(
            f"Your workspace has no snapshot {snapshot_id!r}. `trainyard workspace snapshots` "
            "lists them.",
            param="snapshot",
        )
    return found


def tree_in(session: Session, store: Store, person: Person, snapshot_id: str | None) -> Tree:
    """Return the tree of one of a person's snapshots; by default the current one."""
    if snapshot_id is not None:
        return tree_of_snapshot(store, find_snapshot(session, person, snapshot_id))
    workspace = session.get(Workspace, person.id)
    snapshot = None if workspace is None else current(session, workspace)
    return Tree() if snapshot is None else tree_of_snapshot(store, snapshot)


def tree_of_snapshot(store: Store, snapshot: WorkspaceSnapshot) -> Tree:
    """Return the tree of a snapshot. Raises NotFound if the store has lost it."""
    return _tree_at(store.open_path(snapshot.tree))


@lru_cache(maxsize=4)
def _tree_at(path: Path) -> Tree:
    return read_tree(path.read_bytes())  # a file of the store never changes


def current(session: Session, workspace: Workspace) -> WorkspaceSnapshot | None:
    """Return the snapshot that the next program begins with."""
    if workspace.snapshot_id is None:
        return None
    return session.get_one(WorkspaceSnapshot, workspace.snapshot_id)


def entries_below(
    tree: Tree, folder: str, *, is_deep: bool, after: str | None, limit: int
) -> tuple[list[WorkspaceEntryView], bool]:
    """Return what is in a folder, by path, and True if there is more. Raises NotFound."""
    if folder and (at := tree.by_path.get(folder)) is not None and at.kind is not EntryKind.FOLDER:
        return [entry_view(at)], False
    if folder and folder not in tree.by_path:
        raise NotFound(f"Your workspace has no folder {folder!r}.", param="below")
    found: list[Entry] = []
    for entry in tree.below(folder):
        if after is not None and entry.path <= after:
            continue
        if is_deep or parent_of(entry.path) == folder:
            found.append(entry)
        if len(found) > limit:
            break
    return [entry_view(entry) for entry in found[:limit]], len(found) > limit


def entry_view(entry: Entry) -> WorkspaceEntryView:
    """Return the view of an entry."""
    is_file = entry.kind is EntryKind.FILE
    return WorkspaceEntryView(
        path=entry.path,
        kind=entry.kind,
        size=entry.size,
        modified_at=modified_at(entry) if is_file else None,
        executable=entry.executable,
        sha256=entry.sha256,
        target=entry.target,
    )


def modified_at(entry: Entry) -> datetime | None:
    """Return the time of a file's last change; None if a program has set one beyond year 9999."""
    try:
        return EPOCH + timedelta(microseconds=entry.modified_ns // 1000)
    except OverflowError:
        return None


def find_file(tree: Tree, path: str) -> Entry:
    """Return a file of a tree. Raises NotFound if there is none, or it is something else."""
    found = tree.by_path.get(path)
    if found is None:
        raise NotFound(f"Your workspace has no file {path!r}.", param="path")
    if found.kind is not EntryKind.FILE:
        raise NotFound(f"{path!r} is a {found.kind}, not a file.", param="path")
    return found


def _writer(session: Session, workspace: Workspace, *, now: datetime) -> WorkspaceWriterView | None:
    holder = writers.holder_of(session, workspace, now=now)
    if holder is None:
        return None
    job = session.get_one(Job, holder.job_id)
    return WorkspaceWriterView(
        job=job.id, name=job.name, epoch=holder.epoch, since=holder.assigned_at
    )


def _shared(workspace: Workspace) -> SharedUseView | None:
    if workspace.shared is None or workspace.shared_seen_at is None:
        return None
    use = SharedUse.model_validate(workspace.shared)
    return SharedUseView(
        used=use.size,
        files=use.files,
        is_whole=use.is_whole,
        top=[SharedEntryView(**dict(entry)) for entry in use.top],
        seen_at=workspace.shared_seen_at,
    )


def _shared_classes(session: Session) -> list[str]:
    rows = session.execute(
        select(Node.class_name, Node.inventory).where(Node.state != NodeState.RETIRED)
    )
    return sorted({name for name, inventory in rows if inventory.get("shared_workspaces")})
