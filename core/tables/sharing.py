"""Things that their owners let others read."""

from datetime import datetime

from sqlalchemy import CheckConstraint, ForeignKey, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from core.database.database import EnumText
from core.tables.base import Base, one_of
from core.tables.kinds import AudienceKind, SharedKind


class Share(Base):
    """Permission to read one thing of its owner, for a person, a group or everybody."""

    __tablename__ = "shares"
    __table_args__ = (
        CheckConstraint(one_of("audience", AudienceKind), name="audience"),
        UniqueConstraint("kind", "thing_id", "audience", "audience_id"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    kind: Mapped[SharedKind] = mapped_column(EnumText(SharedKind))
    thing_id: Mapped[str]
    """Id of the thing; of a report its hash."""
    owner_id: Mapped[str] = mapped_column(ForeignKey("users.id"), index=True)
    audience: Mapped[AudienceKind] = mapped_column(EnumText(AudienceKind))
    audience_id: Mapped[str]
    """Id of the person, name of the group; empty for everybody."""
    created_at: Mapped[datetime]
