"""Base of all tables: column types, constraint names.

These classes never leave the process: the schemas of `api/` are the public contract. Times are UTC.
Ids are `core.base.ids`, except of rows that only streams number. JSON columns hold dumps of
pydantic models; the model is named beside them.
"""

from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import JSON, BigInteger, Index, Integer, MetaData, Text
from sqlalchemy.orm import DeclarativeBase

from core.database.database import EnumText, UtcDateTime
from core.spec.inputs import InputKind
from core.states import (
    AttemptState,
    Desired,
    JobState,
    LeaseState,
    NodeState,
    Outcome,
    Phase,
    Sharing,
)
from core.tables.kinds import (
    AppointmentKind,
    AppointmentState,
    LeaseKind,
    LinkKind,
    ListOwner,
    NoticeState,
    OccupancyKind,
    OfferState,
    Role,
    SlotState,
    SnapshotOrigin,
    TokenKind,
    WaitState,
    WorkspaceAccess,
)
from strategies.plan.trust.scaling import StudyKind

Document = dict[str, Any]
Serial = BigInteger().with_variant(Integer, "sqlite")


def one_of(column: str, enum: type[StrEnum]) -> str:
    """Return the SQL condition that restricts `column` to the values of `enum`."""
    values = ", ".join(f"'{member}'" for member in enum)
    return f"{column} IN ({values})"


def partial_index(name: str, *columns: str, where: str, unique: bool = False) -> Index:
    """Return an index of the rows for which a condition holds.

    The migrations make it so. Here the condition is only told (`info`): as an argument of
    PostgreSQL's it would import that dialect, 4 MiB, into every process on SQLite.
    """
    return Index(name, *columns, unique=unique, info={"where": where})


ENUMS: tuple[type[StrEnum], ...] = (
    AppointmentKind,
    AppointmentState,
    AttemptState,
    Desired,
    InputKind,
    JobState,
    LeaseKind,
    LeaseState,
    LinkKind,
    ListOwner,
    NodeState,
    NoticeState,
    OccupancyKind,
    OfferState,
    Outcome,
    Phase,
    Role,
    Sharing,
    SlotState,
    SnapshotOrigin,
    StudyKind,
    TokenKind,
    WaitState,
    WorkspaceAccess,
)

COLUMN_TYPES: dict[Any, Any] = {datetime: UtcDateTime, Document: JSON(none_as_null=True), str: Text}
COLUMN_TYPES |= {enum: EnumText(enum) for enum in ENUMS}


class Base(DeclarativeBase):
    """Base class of all tables, with predictable constraint names."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_name)s",
            "uq": "uq_%(table_name)s_%(column_0_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = COLUMN_TYPES
