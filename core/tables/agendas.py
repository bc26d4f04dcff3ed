"""Agendas: jobs that run in one lease, in their order."""

from datetime import datetime

from sqlalchemy import CheckConstraint, ForeignKey, Index, false
from sqlalchemy.orm import Mapped, mapped_column

from core.database.database import EnumText
from core.tables.base import Base, one_of
from core.tables.kinds import OnFailure


class Agenda(Base):
    """Jobs of one user for one lease."""

    __tablename__ = "agendas"
    __table_args__ = (
        CheckConstraint(one_of("on_failure", OnFailure), name="on_failure"),
        Index("ix_agendas_user_id_id", "user_id", "id"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    user_id: Mapped[str] = mapped_column(ForeignKey("users.id"))
    name: Mapped[str]
    lease_id: Mapped[str] = mapped_column(ForeignKey("leases.id"), index=True)
    """Lease that it was made for. Jobs left over when it ends continue elsewhere, like any job."""
    side_by_side: Mapped[bool] = mapped_column(default=False, server_default=false())
    """True: jobs run side by side where slots are free. False: one after the other."""
    on_failure: Mapped[OnFailure] = mapped_column(EnumText(OnFailure))
    created_at: Mapped[datetime]


class AgendaJob(Base):
    """A job of an agenda."""

    __tablename__ = "agenda_jobs"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    agenda_id: Mapped[str] = mapped_column(ForeignKey("agendas.id"), index=True)
    position: Mapped[int]
    """Position from 0, in the order in which the jobs start."""
