"""Notices to people, and their delivery."""

from datetime import datetime

from sqlalchemy import CheckConstraint, ForeignKey, Index
from sqlalchemy.orm import Mapped, mapped_column

from core.database.database import EnumText
from core.tables.base import Base, Document, Serial, one_of
from core.tables.kinds import Channel, DeliveryState, LetterKind, NoticeState

EVERY_KIND = "*"


class Notice(Base):
    """Message for a person; sent by mail or webhook, and shown in their account."""

    __tablename__ = "notices"
    __table_args__ = (
        CheckConstraint(one_of("state", NoticeState), name="state"),
        Index("ix_notices_state_id", "state", "id"),
        Index("ix_notices_user_id_id", "user_id", "id"),
    )

    id: Mapped[int] = mapped_column(Serial, primary_key=True, autoincrement=True)
    user_id: Mapped[str] = mapped_column(ForeignKey("users.id"))
    kind: Mapped[str]
    """`core.notices.notices.NoticeKind`"""
    subject: Mapped[str]
    """Id of the lease, job, offer or account it is about."""
    facts: Mapped[Document]
    """Source of the text: `message`, a sentence, and its numbers and moments."""
    state: Mapped[NoticeState]
    created_at: Mapped[datetime]
    sent_at: Mapped[datetime | None]


class ChannelChoice(Base):
    """One person's channel for one kind of notice, or for EVERY_KIND."""

    __tablename__ = "notification_choices"
    __table_args__ = (CheckConstraint(one_of("channel", Channel), name="channel"),)

    user_id: Mapped[str] = mapped_column(ForeignKey("users.id"), primary_key=True)
    kind: Mapped[str] = mapped_column(primary_key=True)
    channel: Mapped[Channel] = mapped_column(EnumText(Channel))


class Webhook(Base):
    """The address that a person's notices are posted to."""

    __tablename__ = "webhooks"

    user_id: Mapped[str] = mapped_column(ForeignKey("users.id"), primary_key=True)
    url: Mapped[str]
    secret: Mapped[str]
    """Secret that signs each post; kept in the clear, since each signature is made with it."""
    created_at: Mapped[datetime]


class Delivery(Base):
    """A notice on its way: one row for each, claimed by a sender until the claim ends."""

    __tablename__ = "deliveries"
    __table_args__ = (
        CheckConstraint(one_of("channel", Channel), name="channel"),
        CheckConstraint(one_of("state", DeliveryState), name="state"),
        Index("ix_deliveries_state_due_at", "state", "due_at"),
    )

    notice_id: Mapped[int] = mapped_column(
        Serial, ForeignKey("notices.id"), primary_key=True, autoincrement=False
    )
    user_id: Mapped[str] = mapped_column(ForeignKey("users.id"), index=True)
    channel: Mapped[Channel] = mapped_column(EnumText(Channel))
    state: Mapped[DeliveryState] = mapped_column(EnumText(DeliveryState))
    due_at: Mapped[datetime]
    attempts: Mapped[int] = mapped_column(default=0)
    claimed_until: Mapped[datetime | None]
    """End of a sender's claim; past that moment another sender takes it."""
    error: Mapped[str] = mapped_column(default="")
    """Reason why it has not left, in a sentence for its owner."""
    sent_at: Mapped[datetime | None]


class LinkLetter(Base):
    """Mail with a link that works once. The link is made when the letter is sent, so that its
    secret is kept nowhere."""

    __tablename__ = "link_letters"
    __table_args__ = (
        CheckConstraint(one_of("kind", LetterKind), name="kind"),
        Index("ix_link_letters_address_created_at", "address", "created_at"),
        Index("ix_link_letters_done_due_at", "done", "due_at"),
    )

    id: Mapped[int] = mapped_column(Serial, primary_key=True, autoincrement=True)
    kind: Mapped[LetterKind] = mapped_column(EnumText(LetterKind))
    address: Mapped[str]
    """Mail address, in small letters. A letter about a password is for the person who has it."""
    invite_id: Mapped[str | None] = mapped_column(ForeignKey("invites.id"))
    url: Mapped[str]
    """Address of the platform, which the link begins with."""
    expires_at: Mapped[datetime]
    """End of the link, and of all tries to send it."""
    due_at: Mapped[datetime]
    attempts: Mapped[int] = mapped_column(default=0)
    claimed_until: Mapped[datetime | None]
    done: Mapped[bool] = mapped_column(default=False)
    error: Mapped[str] = mapped_column(default="")
    """Reason why it has not left, or was not sent at all."""
    created_at: Mapped[datetime]
