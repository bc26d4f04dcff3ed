"""Placing of a workspace on this node, before its owner's program starts."""

import os
from dataclasses import asdict
from pathlib import Path

from core.base.words import size_text
from core.states import Outcome
from core.wire.messages import FileRef, WorkspaceOrder
from core.wire.workspace_tree import BadTree, Blob, read_tree
from core.workspaces.quota import Quota
from worker.node.attempts import Attempt
from worker.preparing.fetching import Fetcher
from worker.preparing.preparing_script import CannotStart, ScriptHost
from worker.workspaces.apart import Restoring, Summing, restore_apart, sum_up_apart
from worker.workspaces.folders import WorkspaceFiles, WorkspaceMount, WorkspaceState
from worker.workspaces.packing import empty_folder
from worker.workspaces.restoring import BadContent

MOST_COUNTED = 10_000_000  # entries of a folder that is too full already


def place_workspace(
    attempt: Attempt,
    order: WorkspaceOrder,
    fetcher: Fetcher,
    host: ScriptHost,
    *,
    is_workbench: bool,
) -> WorkspaceMount:
    """Have the workspace of an attempt on this node: its folder of the site, or made of the store.

    Raises CannotStart, and OSError of the disk.
    """
    files = WorkspaceFiles(attempt)
    state = WorkspaceState(
        access=order.access,
        max_bytes=order.max_bytes,
        max_files=order.max_files,
        is_kept=order.access == "read",
    )
    if order.access == "shared":
        mount = _shared_folder(order, host)
        quota = quota_of(Path(mount.folder), order, is_workbench=is_workbench)
        shared = {"shared_folder": mount.folder, **asdict(quota)}
        files.write_state(state.model_copy(update=shared))
        return mount
    empty_folder(files.folder).chmod(0o755)
    files.look_file.unlink(missing_ok=True)
    _restore(files, order, fetcher)
    files.write_state(state)
    return WorkspaceMount(folder=str(files.folder), writable=order.access == "write")


def _restore(files: WorkspaceFiles, order: WorkspaceOrder, fetcher: Fetcher) -> None:
    if order.tree is None:
        return

    def fetch(blob: Blob) -> Path:
        file = FileRef(path=blob.sha256, sha256=blob.sha256, size=blob.size)
        return fetcher.file(file, "the workspace")

    document = fetch(Blob(sha256=order.tree.sha256, size=order.tree.size))
    try:
        tree = read_tree(document.read_bytes())
        task = Restoring(
            root=files.folder,
            look_file=files.look_file,
            document=document,
            blobs={blob.sha256: fetch(blob) for blob in tree.blobs},
        )
        fetcher.tell(
            f"Placing the workspace: {len(tree.entries):,} files and folders, "
            f"{size_text(tree.size)}."
        )
        restore_apart(task)
    except (BadTree, BadContent) as error:
        raise CannotStart(
            Outcome.START_FAILED, f"The workspace cannot be placed on this node: {error}."
        ) from error


def _shared_folder(order: WorkspaceOrder, host: ScriptHost) -> WorkspaceMount:
    """Return the person's folder in the site's shared one, made if need be."""
    if host.workspaces is None:
        raise CannotStart(
            Outcome.START_FAILED,
            "This node no longer has the site's shared folder of workspaces "
            "(TRAINYARD_WORKSPACES).",
        )
    folder = host.workspaces / order.person
    uid = host.workspace_uid + order.number if os.geteuid() == 0 else None
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        if uid is not None and folder.stat().st_uid != uid:
            os.chown(folder, uid, uid)
            folder.chmod(0o700)
    except OSError as error:
        raise CannotStart(
            Outcome.START_FAILED,
            f"The workspace's folder {folder} cannot be made: {error.strerror}. An administrator "
            "must let the worker's user create folders and give them to people's users in it.",
        ) from error
    return WorkspaceMount(folder=str(folder), writable=True, uid=uid)


def quota_of(folder: Path, order: WorkspaceOrder, *, is_workbench: bool) -> Quota:
    """Return what a shared folder may hold while the program runs: what it may hold at all, or, for
    a workbench, what it holds already, so that its owner can delete something there.

    Raises CannotStart if it holds too much for another program.
    """
    quota = Quota(order.max_bytes, order.max_files)
    most = MOST_COUNTED if is_workbench else quota.max_files
    use = sum_up_apart(Summing(root=folder, max_entries=most))
    if is_workbench:
        return Quota(max(quota.max_bytes, use.size), max(quota.max_files, use.files))
    if refused := quota.why_not_started(use.size, use.files):
        raise CannotStart(Outcome.USER_ERROR, refused)
    return quota
