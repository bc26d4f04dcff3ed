"""Writers of workspaces: one attempt at a time, fenced by its epoch.

The scheduler gives an attempt the workspace when it assigns it; the attempt's last snapshot, or its
loss, gives it back. A second program of the same person meanwhile reads it.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from core.base.words import clock, in_words
from core.database.database import insert_into
from core.states import AttemptState
from core.tables.jobs import Attempt, AttemptPart, Job
from core.tables.kinds import WorkspaceAccess
from core.tables.workspaces import Workspace, WorkspaceSnapshot
from core.transitions import note

PATIENCE = timedelta(minutes=10)  # for the last snapshot of a program that has ended
READ_ONLY, FIRST_WRITES = "workspace_read_only", "workspace_first_node_writes"
LOST = "workspace_went_back"


def workspace_of(session: Session, user_id: str, *, now: datetime) -> Workspace:
    """Return a person's workspace, made if need be, and lock it until the transaction ends."""
    made = insert_into(session, Workspace).values(user_id=user_id, trouble="", created_at=now)
    session.execute(made.on_conflict_do_nothing(index_elements=[Workspace.user_id]))
    return session.scalars(
        select(Workspace)
        .where(Workspace.user_id == user_id)
        .with_for_update()
        .execution_options(populate_existing=True)
    ).one()


def take(
    session: Session,
    job: Job,
    attempt: Attempt,
    node_names: Sequence[str],
    *,
    shared: bool,
    now: datetime,
    actor: str,
) -> None:
    """Give a new attempt its owner's workspace: to write if nobody else does, else to read.

    Of several nodes only the first writes. `shared`: all of its nodes have people's workspaces in
    the site's shared folder, where all of them write.
    """
    workspace = workspace_of(session, job.user_id, now=now)
    if workspace.number is None:
        last = session.scalar(select(func.max(Workspace.number))) or 0
        workspace.number = last + 1
    if shared:
        attempt.workspace_access = WorkspaceAccess.SHARED
        return
    attempt.workspace_snapshot_id = workspace.snapshot_id
    holder = holder_of(session, workspace, now=now)
    if holder is None:
        workspace.writer_id = attempt.id
        attempt.workspace_access = WorkspaceAccess.WRITE
        if len(node_names) > 1:
            note(
                session,
                job.id,
                FIRST_WRITES,
                now=now,
                message=f"Its owner's workspace is written on {node_names[0]} alone; "
                f"{in_words(node_names[1:])} have it read-only, "
                f"{taken_words(session, workspace, now=now)}.",
                actor=actor,
                epoch=attempt.epoch,
            )
        return
    attempt.workspace_access = WorkspaceAccess.READ
    name = session.get_one(Job, holder.job_id).name
    note(
        session,
        job.id,
        READ_ONLY,
        now=now,
        message=f"It gets its owner's workspace read-only, "
        f"{taken_words(session, workspace, now=now)}: {name} ({holder.job_id}) writes to it.",
        actor=actor,
        epoch=attempt.epoch,
    )


def holder_of(session: Session, workspace: Workspace, *, now: datetime) -> Attempt | None:
    """Return the attempt that writes to a workspace; None if nobody does, or its node has not
    brought the last snapshot in time."""
    holder = session.get(Attempt, workspace.writer_id) if workspace.writer_id else None
    if holder is None or (holder.state is AttemptState.EXITED and not is_closing(holder, now=now)):
        return None
    return holder


def is_closing(holder: Attempt, *, now: datetime) -> bool:
    """Return True if an attempt has ended whose last snapshot is still on its way."""
    if holder.state is not AttemptState.EXITED or holder.files_kept or holder.exit is None:
        return False
    return holder.ended_at is not None and now - holder.ended_at < PATIENCE


def expectation(session: Session, user_id: str, *, now: datetime) -> str:
    """Say what a program of this person would get now, for the plan of a job that brings its
    owner's workspace."""
    workspace = session.get(Workspace, user_id)
    holder = None if workspace is None else holder_of(session, workspace, now=now)
    if workspace is None or holder is None:
        found = "empty" if workspace is None else taken_words(session, workspace, now=now)
        return f"It may write to your workspace, {found}."
    name = session.get_one(Job, holder.job_id).name
    return (
        f"{name} ({holder.job_id}) writes to your workspace now; if it still does when this job "
        "starts, this job gets it read-only."
    )


def release(session: Session, attempt_id: str) -> None:
    """Let the next program write, if this attempt held the workspace."""
    session.execute(
        update(Workspace).where(Workspace.writer_id == attempt_id).values(writer_id=None)
    )


def note_loss(session: Session, attempt: Attempt, *, now: datetime, actor: str) -> None:
    """Release the workspace of an attempt whose first node is lost: its last snapshot holds."""
    first = session.get(AttemptPart, (attempt.id, 0))
    if attempt.workspace_access is not WorkspaceAccess.WRITE or first is None or not first.lost:
        return
    workspace = session.scalars(
        select(Workspace).where(Workspace.writer_id == attempt.id).with_for_update()
    ).one_or_none()
    if workspace is None:
        return
    workspace.writer_id = None
    note(
        session,
        attempt.job_id,
        LOST,
        now=now,
        message="The workspace on the lost node cannot be read any more. It is now "
        f"{taken_words(session, workspace, now=now)}.",
        actor=actor,
        epoch=attempt.epoch,
    )


def taken_words(session: Session, workspace: Workspace, *, now: datetime) -> str:
    """Return words such as `as it was at 14:32 UTC` for its current snapshot."""
    found = workspace.snapshot_id and session.get(WorkspaceSnapshot, workspace.snapshot_id)
    if not found:
        return "empty, as nothing was ever kept"
    return f"as it was at {clock(found.taken_at, now)}"
