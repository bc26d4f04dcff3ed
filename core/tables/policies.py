"""All applied versions of the booking policies, and the windows that hold now."""

from datetime import datetime

from sqlalchemy import JSON, CheckConstraint, ForeignKey
from sqlalchemy.orm import Mapped, mapped_column

from core.tables.base import Base, partial_index


class AppliedPolicy(Base):
    """One version of a policy document. At most one of each policy is active."""

    __tablename__ = "policies"
    __table_args__ = (
        partial_index("uq_policies_active", "policy_id", unique=True, where="active"),
    )

    policy_id: Mapped[str] = mapped_column(primary_key=True)
    """The `id` that the document gives itself."""
    version: Mapped[int] = mapped_column(primary_key=True)
    document: Mapped[str]
    """Text as its author wrote it, comments included."""
    sha256: Mapped[str]
    """SHA-256 of the document's bytes."""
    active: Mapped[bool]
    applied_by: Mapped[str] = mapped_column(ForeignKey("users.id"))
    applied_at: Mapped[datetime]
    """The last time, if an old version was applied again."""


class PoolWindow(Base):
    """Time in which leases may lie on a policy's pools. First from the document; staff may change
    it."""

    __tablename__ = "windows"
    __table_args__ = (CheckConstraint("starts_at < ends_at", name="time"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    policy_id: Mapped[str] = mapped_column(index=True)
    pools: Mapped[list[str]] = mapped_column(JSON)
    starts_at: Mapped[datetime]
    ends_at: Mapped[datetime]
    opens_at: Mapped[datetime | None]
    """Time from which it may be booked; None: at once."""
    from_document: Mapped[bool]
    created_by: Mapped[str] = mapped_column(ForeignKey("users.id"))
    created_at: Mapped[datetime]
