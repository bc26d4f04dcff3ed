"""Courses, their exercises, and what students handed in."""

from datetime import datetime

from sqlalchemy import JSON, ForeignKey, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from core.tables.base import Base


class Course(Base):
    """A course that was applied from a bundle."""

    __tablename__ = "courses"

    id: Mapped[str] = mapped_column(primary_key=True)
    owner_id: Mapped[str] = mapped_column(ForeignKey("users.id"))
    """Person who applied it, and owns all that it hands out."""
    name: Mapped[str] = mapped_column(unique=True)
    title: Mapped[str]
    zone: Mapped[str]
    group: Mapped[str]
    """Name of the lab or group of its students."""
    first_day: Mapped[str]
    """ISO date of day 1."""
    texts: Mapped[dict[str, str]] = mapped_column(JSON)
    """Files of the bundle that are text, by path, without the list of people."""
    applied_at: Mapped[datetime]


class Exercise(Base):
    """Work that a student books, starts and hands in."""

    __tablename__ = "exercises"
    __table_args__ = (UniqueConstraint("course_id", "name"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    course_id: Mapped[str] = mapped_column(ForeignKey("courses.id"))
    position: Mapped[int]
    name: Mapped[str]
    title: Mapped[str]
    notes: Mapped[str]
    """Markdown."""
    template_id: Mapped[str] = mapped_column(ForeignKey("templates.id"))
    opens_at: Mapped[datetime]
    due_at: Mapped[datetime]
    hours: Mapped[int]


class HandIn(Base):
    """A report that a student handed in; a later one takes its place."""

    __tablename__ = "hand_ins"

    exercise_id: Mapped[str] = mapped_column(ForeignKey("exercises.id"), primary_key=True)
    user_id: Mapped[str] = mapped_column(ForeignKey("users.id"), primary_key=True)
    report_sha256: Mapped[str] = mapped_column(ForeignKey("reports.sha256"))
    made_at: Mapped[datetime]
