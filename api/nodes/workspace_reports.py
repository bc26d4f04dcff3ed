"""Looks of nodes at workspaces that attempts write to: which files are missing, what is kept."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from api.files.store import Store
from api.nodes import reports
from api.nodes.fencing import fence
from api.web.bells import Bells
from api.web.identity import NodeIdentity
from api.web.process import Process
from core.base.errors import BadRequest, StaleEpoch
from core.tables.files import StoredFile
from core.tables.jobs import Attempt, Job
from core.tables.kinds import SnapshotOrigin, WorkspaceAccess
from core.tables.workspaces import Workspace, WorkspaceSnapshot
from core.transitions import note
from core.wire.messages import (
    FileRef,
    MissingQuery,
    SharedLook,
    SharedLookAck,
    SnapshotAck,
    SnapshotReport,
)
from core.wire.workspace_tree import BadTree, Blob, Tree, read_tree
from core.workspaces import writers
from core.workspaces.quota import Quota
from core.workspaces.snapshots import add_snapshot

CHUNK = 500  # hashes in one query
BEGINNING = 20  # characters that tell a refusal from a warning; the numbers after them change
NOT_KEPT, NEARLY_FULL = "workspace_not_kept", "workspace_nearly_full"
OVER = "workspace_over_quota"


def missing_files(session: Session, store: Store, query: MissingQuery) -> list[str]:
    """Return those of the files that are not in the store, in the order of the question."""
    known: set[str] = set()
    for start in range(0, len(query.files), CHUNK):
        part = query.files[start : start + CHUNK]
        known.update(
            session.scalars(
                select(StoredFile.sha256).where(
                    StoredFile.sha256.in_(part), StoredFile.gone_at.is_(None)
                )
            )
        )
    return [sha256 for sha256 in query.files if sha256 not in known or not store.has(sha256)]


def tree_of_report(process: Process, report: SnapshotReport) -> Tree | None:
    """Read the tree that a report brings. Raises BadRequest if it is none."""
    if report.tree is None:
        return None
    path = process.service(Store).open_path(report.tree.sha256)
    try:
        return read_tree(path.read_bytes())
    except BadTree as error:
        raise BadRequest(f"tree: {error}.", code="bad_tree", param="tree") from error


def take_snapshot(
    session: Session,
    bells: Bells,
    report: SnapshotReport,
    node: NodeIdentity,
    *,
    tree: Tree | None,
    quota: Quota,
    now: datetime,
) -> SnapshotAck:
    """Keep a snapshot of the workspace that the attempt writes to, or say why not.

    Raises NotFound, StaleEpoch; BadRequest if one of its files is not in the store.
    """
    fenced = fence(session, node, report.job_id, report.epoch)
    owner = session.get_one(Job, report.job_id).user_id
    workspace = writers.workspace_of(session, owner, now=now)
    if workspace.writer_id != fenced.attempt_id or fenced.position != 0:
        raise StaleEpoch(
            f"Attempt {report.epoch} of {report.job_id} does not write to this workspace (any "
            "more).",
            param="epoch",
        )
    size, files = (report.size, report.files) if tree is None else (tree.size, len(tree.entries))
    refused = quota.why_refused(size, files)
    if tree is not None and report.tree is not None and not refused:
        _keep(session, workspace, tree, report, now=now)
    trouble = refused or quota.warning(size, files)
    if trouble and trouble[:BEGINNING] != workspace.trouble[:BEGINNING]:  # told once, not each time
        kind = NOT_KEPT if refused else NEARLY_FULL
        _tell(session, report, kind, trouble, node, now=now)
    workspace.trouble = trouble
    if report.final:
        writers.release(session, fenced.attempt_id)
        bells.scheduler = True  # another program may wait for it
    bells.jobs.add(report.job_id)
    return SnapshotAck(kept=not refused and tree is not None, message=trouble)


def take_shared_look(
    session: Session,
    bells: Bells,
    look: SharedLook,
    node: NodeIdentity,
    *,
    quota: Quota,
    now: datetime,
) -> SharedLookAck:
    """Note what a workspace in the site's shared folder holds, and tell its owner near the quota.

    Raises NotFound, StaleEpoch.
    """
    fenced = fence(session, node, look.job_id, look.epoch)
    attempt = session.get_one(Attempt, fenced.attempt_id)
    if attempt.workspace_access is not WorkspaceAccess.SHARED:
        raise StaleEpoch(
            f"Attempt {look.epoch} of {look.job_id} uses no shared workspace.", param="epoch"
        )
    owner = session.get_one(Job, look.job_id).user_id
    workspace = writers.workspace_of(session, owner, now=now)
    over = quota.why_over(look.use.size, look.use.files)
    trouble = over or quota.warning(look.use.size, look.use.files)
    if trouble and trouble[:BEGINNING] != workspace.trouble[:BEGINNING]:
        _tell(session, look, OVER if over else NEARLY_FULL, trouble, node, now=now)
    workspace.trouble = trouble
    workspace.shared = look.use.model_dump(mode="json")
    workspace.shared_seen_at = now
    bells.jobs.add(look.job_id)
    return SharedLookAck(message=trouble)


def _keep(
    session: Session, workspace: Workspace, tree: Tree, report: SnapshotReport, *, now: datetime
) -> None:
    assert report.tree is not None
    current = workspace.snapshot_id and session.get(WorkspaceSnapshot, workspace.snapshot_id)
    if current and current.tree == report.tree.sha256:
        return  # nothing has changed since
    stored = Blob(sha256=report.tree.sha256, size=report.tree.size)
    reports.require_stored(session, file_refs([stored, *tree.blobs]))
    add_snapshot(
        session,
        workspace,
        tree,
        stored,
        origin=SnapshotOrigin.PROGRAM,
        job_id=report.job_id,
        epoch=report.epoch,
        left_out=report.left_out,
        now=now,
    )


def _tell(
    session: Session,
    report: SnapshotReport | SharedLook,
    kind: str,
    sentence: str,
    node: NodeIdentity,
    *,
    now: datetime,
) -> None:
    note(
        session,
        report.job_id,
        kind,
        now=now,
        message=sentence,
        actor=node.id,
        epoch=report.epoch,
    )


def file_refs(blobs: Sequence[Blob]) -> list[FileRef]:
    """Return files of the store under their hashes."""
    return [FileRef(path=blob.sha256, sha256=blob.sha256, size=blob.size) for blob in blobs]
