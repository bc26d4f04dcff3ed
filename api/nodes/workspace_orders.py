"""Orders about workspaces for nodes."""

from sqlalchemy.orm import Session

from core.tables.jobs import Attempt, AttemptPart, Job
from core.tables.kinds import WorkspaceAccess
from core.tables.workspaces import Workspace, WorkspaceSnapshot
from core.wire.messages import StoredBlob, WorkspaceOrder
from core.workspaces.quota import Quota


def workspace_order(
    session: Session, job: Job, attempt: Attempt, part: AttemptPart, quota: Quota
) -> WorkspaceOrder | None:
    """Return what the attempt may do with its owner's workspace on one of its nodes.

    Of several nodes only the first writes, unless they share a folder.
    """
    access = attempt.workspace_access
    if access is None:
        return None
    if access is WorkspaceAccess.WRITE and part.position > 0:
        access = WorkspaceAccess.READ
    workspace = session.get_one(Workspace, job.user_id)
    assert workspace.number is not None
    snapshot = None
    if attempt.workspace_snapshot_id is not None:
        snapshot = session.get_one(WorkspaceSnapshot, attempt.workspace_snapshot_id)
    return WorkspaceOrder(
        access=access.value,
        person=job.user_id,
        number=workspace.number,
        tree=None
        if snapshot is None
        else StoredBlob(sha256=snapshot.tree, size=snapshot.tree_size),
        max_bytes=quota.max_bytes,
        max_files=quota.max_files,
    )
