"""Code and secrets of people's own scripts."""

from datetime import datetime

from sqlalchemy import JSON, BigInteger, ForeignKey, LargeBinary
from sqlalchemy.orm import Mapped, mapped_column

from core.tables.base import Base


class CodeArchive(Base):
    """An archive of code that a user has uploaded, by content; checked, never unpacked here."""

    __tablename__ = "code_archives"

    user_id: Mapped[str] = mapped_column(ForeignKey("users.id"), primary_key=True)
    sha256: Mapped[str] = mapped_column(ForeignKey("files.sha256"), primary_key=True)
    size: Mapped[int] = mapped_column(BigInteger)
    paths: Mapped[list[str]] = mapped_column(JSON)
    """Paths of its files."""
    unpacked_size: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[datetime]


class Secret(Base):
    """A value that only its owner's scripts ever see; encrypted with a key outside the database."""

    __tablename__ = "secrets"

    user_id: Mapped[str] = mapped_column(ForeignKey("users.id"), primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    sealed: Mapped[bytes] = mapped_column(LargeBinary)
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]
