"""/v1/node/workspaces: a node brings what a program has changed in its owner's workspace."""

from fastapi import APIRouter

from api.files.store import Store
from api.nodes import files, workspace_reports
from api.web.auth import NodeOnly
from api.web.process import ProcessDep
from core.base.clock import utc_now
from core.base.errors import Conflict
from core.wire.messages import (
    MissingFiles,
    MissingQuery,
    SharedLook,
    SharedLookAck,
    SnapshotAck,
    SnapshotReport,
)

router = APIRouter(prefix="/v1/node/workspaces", tags=["node protocol"])


@router.post("/missing", summary="Ask which files the store lacks")
def ask_missing_files(message: MissingQuery, node: NodeOnly, process: ProcessDep) -> MissingFiles:
    """Return those of the hashes that have to be uploaded before a snapshot is reported."""
    with process.read() as session:
        if not files.has_files_to_bring(session, node):
            raise Conflict(f"{node.name} has no attempt with files that are still to be uploaded.")
        lacking = workspace_reports.missing_files(session, process.service(Store), message)
    return MissingFiles(files=lacking)


@router.post("/snapshots", summary="Report a snapshot of a workspace")
def report_workspace_snapshot(
    message: SnapshotReport, node: NodeOnly, process: ProcessDep
) -> SnapshotAck:
    """Keep a snapshot whose files have all been uploaded. One beyond the quota is not kept, and
    the answer says so."""
    tree = workspace_reports.tree_of_report(process, message)
    return process.transact(
        workspace_reports.take_snapshot,
        message,
        node,
        tree=tree,
        quota=process.settings.workspace_quota,
        now=utc_now(),
    )


@router.post("/shared", summary="Report a look at a shared workspace")
def report_shared_look(message: SharedLook, node: NodeOnly, process: ProcessDep) -> SharedLookAck:
    """Note what a workspace in the site's shared folder holds, for its owner to see. The answer
    warns near and beyond the quota."""
    return process.transact(
        workspace_reports.take_shared_look,
        message,
        node,
        quota=process.settings.workspace_quota,
        now=utc_now(),
    )
