"""Metrics and logs of attempts, in chunks."""

from datetime import datetime

from sqlalchemy import BigInteger, ForeignKey, Index, LargeBinary
from sqlalchemy.orm import Mapped, mapped_column

from core.tables.base import Base, Serial


class StreamCursor(Base):
    """Position up to which an attempt's stream has been stored; makes a replay harmless."""

    __tablename__ = "stream_cursors"

    attempt_id: Mapped[str] = mapped_column(ForeignKey("attempts.id"), primary_key=True)
    stream: Mapped[str] = mapped_column(primary_key=True)
    """`metrics/<rank>`, `stdout/<rank>` or `stderr/<rank>`."""
    position: Mapped[int] = mapped_column(BigInteger, default=0)
    """The next metrics line, or the next byte of a log."""


class MetricChunk(Base):
    """Consecutive points of one series, or of all series of a batch, packed: no row per point."""

    __tablename__ = "metric_chunks"
    __table_args__ = (Index("ix_metric_chunks_series", "attempt_id", "key", "rank", "first_line"),)

    id: Mapped[int] = mapped_column(Serial, primary_key=True, autoincrement=True)
    attempt_id: Mapped[str] = mapped_column(ForeignKey("attempts.id"))
    rank: Mapped[int]
    key: Mapped[str]
    """Empty for a batch."""
    keys: Mapped[str | None]
    """Keys of a batch, with spaces between; their columns stand in `values` in this order."""
    first_line: Mapped[int] = mapped_column(BigInteger)
    count: Mapped[int]
    steps: Mapped[bytes] = mapped_column(LargeBinary)
    """int64 little-endian, deflated."""
    values: Mapped[bytes] = mapped_column(LargeBinary)
    """float64 little-endian."""


class LogChunk(Base):
    """A piece of one rank's output, in order."""

    __tablename__ = "log_chunks"
    __table_args__ = (
        Index("ix_log_chunks_stream", "attempt_id", "rank", "stream", "first_byte"),
        Index("ix_log_chunks_attempt_id_id", "attempt_id", "id"),
    )

    id: Mapped[int] = mapped_column(Serial, primary_key=True, autoincrement=True)
    attempt_id: Mapped[str] = mapped_column(ForeignKey("attempts.id"))
    rank: Mapped[int]
    """-1 for the launcher's own output."""
    stream: Mapped[str]
    """`stdout` or `stderr`"""
    first_byte: Mapped[int] = mapped_column(BigInteger)
    first_line: Mapped[int] = mapped_column(BigInteger)
    at: Mapped[datetime]
    content: Mapped[str]
