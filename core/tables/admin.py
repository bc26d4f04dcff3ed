"""Records of administration: the audit log, and clean-ups of leases."""

from datetime import datetime

from sqlalchemy import CheckConstraint, ForeignKey, String
from sqlalchemy.orm import Mapped, mapped_column

from core.database.database import EnumText
from core.tables.base import Base, Document, Serial, one_of
from core.tables.kinds import RowResult


class AuditEntry(Base):
    """Audited action and its actor; appended, never changed."""

    __tablename__ = "audit"

    id: Mapped[int] = mapped_column(Serial, primary_key=True, autoincrement=True)
    at: Mapped[datetime] = mapped_column(index=True)
    actor: Mapped[str]
    """Id of a user or node, or the name of a process."""
    action: Mapped[str]
    """Name of the action, such as `node.drain`."""
    subject: Mapped[str]
    details: Mapped[Document]


class Cleanup(Base):
    """One clean-up: previewed, then applied with the hash of the preview, perhaps undone."""

    __tablename__ = "cleanups"

    id: Mapped[str] = mapped_column(primary_key=True)
    selector: Mapped[Document]
    """`api.admin.schemas_cleanups.Selector`"""
    reason: Mapped[str]
    """Reason for the clean-up; sent to the owners."""
    sha256: Mapped[str] = mapped_column(String(64))
    """SHA-256 over (lease id, row version) of all rows."""
    made_by: Mapped[str] = mapped_column(ForeignKey("users.id"))
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime]
    """End of the time in which it may be applied."""
    applied_by: Mapped[str | None] = mapped_column(ForeignKey("users.id"))
    applied_at: Mapped[datetime | None]
    """Time at which its last row was done, and the owners were told."""
    undone_by: Mapped[str | None] = mapped_column(ForeignKey("users.id"))
    undone_at: Mapped[datetime | None]


class CleanupRow(Base):
    """A lease in a clean-up."""

    __tablename__ = "cleanup_rows"
    __table_args__ = (CheckConstraint(one_of("result", RowResult), name="result"),)

    cleanup_id: Mapped[str] = mapped_column(ForeignKey("cleanups.id"), primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    lease_id: Mapped[str] = mapped_column(ForeignKey("leases.id"), index=True)
    code: Mapped[str]
    """Kind of finding, such as `over_quota`."""
    rule: Mapped[str]
    """The exact rule that it breaks, such as `quota_main`."""
    message: Mapped[str]
    """Finding, in a sentence."""
    version: Mapped[str] = mapped_column(String(64))
    """Version of the lease's row when it was seen."""
    refund_hours: Mapped[int]
    result: Mapped[RowResult] = mapped_column(EnumText(RowResult))
    outcome: Mapped[str]
    """Reason why the lease was spared, skipped or lost, in a sentence."""
    restored_as: Mapped[str | None] = mapped_column(ForeignKey("leases.id"))
