"""Snapshots of workspaces: added, counted, and the old ones deleted.

The newest KEPT stay for KEPT_FOR, so that a mistake can be undone; the current one stays for ever,
and so does one that a live attempt began with.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from sqlalchemy import delete, or_, select
from sqlalchemy.orm import Session

from core.base.ids import IdKind, new_id
from core.states import LIVE_ATTEMPT
from core.tables.jobs import Attempt
from core.tables.kinds import SnapshotOrigin
from core.tables.workspaces import Workspace, WorkspaceSnapshot
from core.wire.workspace_tree import Blob, Tree

KEPT, KEPT_FOR = 24, timedelta(days=7)


def add_snapshot(
    session: Session,
    workspace: Workspace,
    tree: Tree,
    stored: Blob,
    *,
    origin: SnapshotOrigin,
    job_id: str | None = None,
    epoch: int | None = None,
    left_out: int = 0,
    now: datetime,
) -> WorkspaceSnapshot:
    """Make a tree, whose file is `stored`, the current snapshot of a locked workspace."""
    snapshot = WorkspaceSnapshot(
        id=new_id(IdKind.SNAPSHOT),
        user_id=workspace.user_id,
        origin=origin,
        job_id=job_id,
        epoch=epoch,
        size=tree.size,
        files=len(tree.entries),
        tree=stored.sha256,
        tree_size=stored.size,
        blobs=[blob.model_dump() for blob in tree.blobs],
        left_out=left_out,
        taken_at=now,
    )
    session.add(snapshot)
    workspace.snapshot_id = snapshot.id
    session.flush()
    prune(session, workspace.user_id, now=now)
    return snapshot


def prune(session: Session, user_id: str, *, now: datetime) -> None:
    """Delete the snapshots of a person that are neither among the newest nor needed."""
    rows = session.execute(
        select(WorkspaceSnapshot.id, WorkspaceSnapshot.taken_at)
        .where(WorkspaceSnapshot.user_id == user_id)
        .order_by(WorkspaceSnapshot.id.desc())
    ).all()
    surplus = [
        row.id for number, row in enumerate(rows) if number >= KEPT or now - row.taken_at > KEPT_FOR
    ]
    workspace = session.get(Workspace, user_id)
    if workspace is not None and surplus:
        drop_unneeded(session, workspace, surplus)


def drop_unneeded(session: Session, workspace: Workspace, snapshot_ids: Sequence[str]) -> None:
    """Delete those of the snapshots that are not current and that no live attempt began with."""
    begun_with = session.scalars(
        select(Attempt.workspace_snapshot_id).where(
            Attempt.workspace_snapshot_id.in_(snapshot_ids), Attempt.state.in_(LIVE_ATTEMPT)
        )
    )
    needed = {workspace.snapshot_id, *begun_with}
    session.execute(
        delete(WorkspaceSnapshot).where(
            WorkspaceSnapshot.id.in_([one for one in snapshot_ids if one not in needed])
        )
    )


def owners_of_old(session: Session, *, now: datetime) -> Sequence[str]:
    """Return the ids of people with snapshots that are too old and not current."""
    old = WorkspaceSnapshot.taken_at < now - KEPT_FOR
    is_current = Workspace.snapshot_id == WorkspaceSnapshot.id
    return session.scalars(
        select(WorkspaceSnapshot.user_id)
        .join(Workspace, Workspace.user_id == WorkspaceSnapshot.user_id)
        .where(old, or_(Workspace.snapshot_id.is_(None), ~is_current))
        .distinct()
    ).all()


def named_by(snapshot: WorkspaceSnapshot) -> Iterator[str]:
    """Yield the hashes of the files of the store that a snapshot consists of."""
    yield snapshot.tree
    yield from (str(blob["sha256"]) for blob in snapshot.blobs)
