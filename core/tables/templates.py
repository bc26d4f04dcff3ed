"""Templates, and what people started from them."""

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, ForeignKey, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from core.tables.base import Base, Document


class Template(Base):
    """A job, script or agenda with locked and open fields."""

    __tablename__ = "templates"
    __table_args__ = (UniqueConstraint("user_id", "name"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    user_id: Mapped[str] = mapped_column(ForeignKey("users.id"))
    name: Mapped[str]
    version: Mapped[int] = mapped_column(default=1)
    """Number of the content: each change of it is the next."""
    description: Mapped[str]
    spec: Mapped[Document]
    """Job or agenda, with all things named with their owner."""
    open: Mapped[list[dict[str, Any]]] = mapped_column(JSON)
    """`core.spec.template.OpenField` of each."""
    created_at: Mapped[datetime]
    changed_at: Mapped[datetime]
    deleted_at: Mapped[datetime | None]


class TemplateStart(Base):
    """A job or agenda that somebody started from a template."""

    __tablename__ = "template_starts"

    subject: Mapped[str] = mapped_column(primary_key=True)
    """Id of the job or agenda."""
    template_id: Mapped[str] = mapped_column(ForeignKey("templates.id"), index=True)
    version: Mapped[int]
    user_id: Mapped[str] = mapped_column(ForeignKey("users.id"), index=True)
    created_at: Mapped[datetime]
