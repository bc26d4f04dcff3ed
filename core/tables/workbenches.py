"""Passes of people to workbenches in the browser."""

from datetime import datetime

from sqlalchemy import ForeignKey, String
from sqlalchemy.orm import Mapped, mapped_column

from core.tables.base import Base


class WorkbenchPass(Base):
    """Pass of one browser to the origin of one attempt: first a ticket, which works once and for a
    short while, then a cookie of that origin."""

    __tablename__ = "workbench_passes"

    ticket_sha256: Mapped[str] = mapped_column(String(64), primary_key=True)
    cookie_sha256: Mapped[str | None] = mapped_column(String(64), unique=True)
    """Hash of the cookie that the ticket was traded for; None: it has not been used."""
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"))
    epoch: Mapped[int]
    token_id: Mapped[str] = mapped_column(ForeignKey("tokens.id"))
    """Session or token of the person that it was made with, and with which it ends."""
    made_at: Mapped[datetime]
    ticket_ends_at: Mapped[datetime]
