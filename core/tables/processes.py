"""Shared facts of the control plane's processes: the leader, claimed chores, answers given."""

from datetime import datetime

from sqlalchemy import ForeignKey, String
from sqlalchemy.orm import Mapped, mapped_column

from core.tables.base import Base, Document


class IdempotentAnswer(Base):
    """Answer to a create, so that a repeated request gets the same answer."""

    __tablename__ = "idempotency"

    user_id: Mapped[str] = mapped_column(ForeignKey("users.id"), primary_key=True)
    key: Mapped[str] = mapped_column(String(200), primary_key=True)
    body_sha256: Mapped[str] = mapped_column(String(64))
    """SHA-256 of method, path and body."""
    subject: Mapped[str]
    """Id of the created object; the answer is read from it again."""
    created_at: Mapped[datetime] = mapped_column(index=True)


class Leadership(Base):
    """Leading scheduler. The term rises with every change of holder and fences its writes."""

    __tablename__ = "leadership"

    name: Mapped[str] = mapped_column(primary_key=True)
    holder: Mapped[str]
    term: Mapped[int]
    expires_at: Mapped[datetime]
    cycles: Mapped[Document | None]
    """`core.process.cycle_numbers.CycleNumbers` of the holder, as of its last renewal."""


class Claim(Base):
    """Claim of a process on a chore that one process at a time does."""

    __tablename__ = "claims"

    chore: Mapped[str] = mapped_column(primary_key=True)
    holder: Mapped[str]
    until: Mapped[datetime]
