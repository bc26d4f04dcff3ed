"""Workspaces of people and their snapshots."""

from datetime import datetime

from sqlalchemy import JSON, BigInteger, CheckConstraint, ForeignKey, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from core.tables.base import Base, Document, one_of
from core.tables.kinds import SnapshotOrigin


class Workspace(Base):
    """A person's folder that outlives leases; made when it is first needed."""

    __tablename__ = "workspaces"

    user_id: Mapped[str] = mapped_column(ForeignKey("users.id"), primary_key=True)
    number: Mapped[int | None] = mapped_column(unique=True)
    """Number of its person, by which programs have a user of their own in a site's shared
    folder."""
    snapshot_id: Mapped[str | None]
    """Snapshot that the next program begins with; None: the workspace is empty."""
    writer_id: Mapped[str | None] = mapped_column(ForeignKey("attempts.id"))
    """The one attempt that may change it now; others read it."""
    trouble: Mapped[str] = mapped_column(default="", server_default="")
    """Reason why the last look at it was not kept, or that a limit is near, in a sentence."""
    shared: Mapped[Document | None] = mapped_column(JSON(none_as_null=True))
    """`core.wire.shared_use.SharedUse`: what a node has seen last in the site's shared folder."""
    shared_seen_at: Mapped[datetime | None]
    created_at: Mapped[datetime]


class WorkspaceSnapshot(Base):
    """Snapshot of a workspace: all of its files at one moment; never changed."""

    __tablename__ = "workspace_snapshots"
    __table_args__ = (
        CheckConstraint(one_of("origin", SnapshotOrigin), name="origin"),
        Index("ix_workspace_snapshots_user_id_id", "user_id", "id"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    user_id: Mapped[str] = mapped_column(ForeignKey("users.id"))
    origin: Mapped[SnapshotOrigin]
    job_id: Mapped[str | None]
    """Job of the program that it was taken of."""
    epoch: Mapped[int | None]
    size: Mapped[int] = mapped_column(BigInteger)
    files: Mapped[int]
    """Number of its files, folders and links."""
    tree: Mapped[str] = mapped_column(String(64))
    """SHA-256 of the file of its `core.wire.workspace_tree.Tree`."""
    tree_size: Mapped[int] = mapped_column(BigInteger)
    blobs: Mapped[list[Document]] = mapped_column(JSON)
    """`core.wire.workspace_tree.Blob` of each file of the store that it consists of, beside its
    tree."""
    left_out: Mapped[int] = mapped_column(default=0, server_default="0")
    """Number of files that could not be kept, such as sockets."""
    taken_at: Mapped[datetime]
