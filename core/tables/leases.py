"""Leases, what their life waits for, and who waits for one."""

from datetime import datetime

from sqlalchemy import (
    JSON,
    CheckConstraint,
    ForeignKey,
    Index,
    String,
    UniqueConstraint,
    false,
    true,
)
from sqlalchemy.orm import Mapped, mapped_column

from core.states import LeaseState
from core.tables.base import Base, Document, Serial, one_of
from core.tables.kinds import (
    AppointmentKind,
    AppointmentState,
    LeaseKind,
    OccupancyKind,
    OfferState,
    WaitState,
)


class Lease(Base):
    """The exclusive use of a node by one user for hour blocks."""

    __tablename__ = "leases"
    __table_args__ = (
        CheckConstraint(one_of("state", LeaseState), name="state"),
        CheckConstraint(one_of("kind", LeaseKind), name="kind"),
        CheckConstraint("hold_start < hold_end", name="hold"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    user_id: Mapped[str] = mapped_column(ForeignKey("users.id"), index=True)
    node_id: Mapped[str] = mapped_column(ForeignKey("nodes.id"), index=True)
    kind: Mapped[LeaseKind]
    state: Mapped[LeaseState] = mapped_column(index=True)
    reason: Mapped[str] = mapped_column(default="")
    hold_start: Mapped[datetime]
    hold_end: Mapped[datetime]
    grace_s: Mapped[int]
    """Taken off the end of the hold; what is left is usable. Kept per row: a changed policy does
    not move what was sold."""
    checkpoint_s: Mapped[int] = mapped_column(default=600, server_default="600")
    """Before the end of the hold: when its jobs save a checkpoint."""
    kill_after_s: Mapped[int] = mapped_column(default=30, server_default="30")
    """After the usable end: when what is left of its jobs is killed."""
    generation: Mapped[int] = mapped_column(default=0, server_default="0")
    """Rises with every change of its node or hours: older appointments are void."""
    together: Mapped[str | None] = mapped_column(index=True)
    """Id of the first of the leases that were booked with it, all or nothing."""
    lab_id: Mapped[str | None] = mapped_column(ForeignKey("labs.id"), index=True)
    """Of its owner when it was made; what was used stays with that lab."""
    booked_node_id: Mapped[str | None] = mapped_column(ForeignKey("nodes.id"))
    """What quotas look at, if a fault has moved it to another node."""
    policy_id: Mapped[str | None]
    policy_version: Mapped[int | None]
    verdict: Mapped[Document | None]
    """`core.policy.Verdict` as it was granted."""
    protected: Mapped[bool] = mapped_column(default=False, server_default=false())
    """Clean-ups pass it by."""
    tags: Mapped[list[str]] = mapped_column(JSON, default=list)
    """Names that staff gave it, such as a project's, to find it by in a clean-up."""
    counts: Mapped[bool] = mapped_column(default=True, server_default=true())
    """Against quotas. False: refunded, or a walk-in that is not charged."""
    settled_as: Mapped[str] = mapped_column(default="", server_default="")
    """Why it counts or does not, once that is known: `late_cancel`, `node_fault`, ..."""
    charged_end: Mapped[datetime | None]
    """What it is charged to without a break, if not to the end of the hold: a walk-in to where it
    ended; hours that were forfeited up to where others have them."""
    charged_s: Mapped[int | None]
    """For how long it is charged, if it has forfeited hours: with those after others' too."""
    forfeited_end: Mapped[datetime | None] = mapped_column(index=True)
    """Given back too late to be free of charge: it is charged for its hours up to here that nobody
    else has, or had and counts for, or has forfeited after it."""
    forfeited_at: Mapped[datetime | None]
    refund_if_rebooked: Mapped[bool] = mapped_column(default=False, server_default=false())
    """It counts no longer while others have all that it is charged for."""
    unusable_s: Mapped[int] = mapped_column(default=0, server_default="0")
    """How long its node could not be used in it."""
    began_at: Mapped[datetime | None]
    ended_at: Mapped[datetime | None]
    cancelled_at: Mapped[datetime | None]
    created_at: Mapped[datetime]


class Appointment(Base):
    """What is to happen in the life of a lease, and when; claimed, then carried out once."""

    __tablename__ = "appointments"
    __table_args__ = (
        CheckConstraint(one_of("kind", AppointmentKind), name="kind"),
        CheckConstraint(one_of("state", AppointmentState), name="state"),
        UniqueConstraint("lease_id", "generation", "kind", "due_at"),
        Index("ix_appointments_state_due_at", "state", "due_at"),
    )

    id: Mapped[int] = mapped_column(Serial, primary_key=True, autoincrement=True)
    lease_id: Mapped[str] = mapped_column(ForeignKey("leases.id"))
    generation: Mapped[int]
    kind: Mapped[AppointmentKind]
    due_at: Mapped[datetime]
    state: Mapped[AppointmentState]
    claimed_by: Mapped[str | None]
    claim_expires_at: Mapped[datetime | None]
    kept_at: Mapped[datetime | None]


class Wait(Base):
    """A wish on the waitlist: so many hours, of a class or a node, that start within a range."""

    __tablename__ = "waitlist"
    __table_args__ = (
        CheckConstraint(one_of("state", WaitState), name="state"),
        Index("ix_waitlist_state_place", "state", "queued_at"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    user_id: Mapped[str] = mapped_column(ForeignKey("users.id"), index=True)
    node_class: Mapped[str | None] = mapped_column(ForeignKey("node_classes.name"))
    node_id: Mapped[str | None] = mapped_column(ForeignKey("nodes.id"))
    first_start: Mapped[datetime]
    last_start: Mapped[datetime]
    hours: Mapped[int]
    priority: Mapped[bool] = mapped_column(default=False)
    """A fault has taken a lease from this user: served first."""
    state: Mapped[WaitState]
    reason: Mapped[str] = mapped_column(default="")
    queued_at: Mapped[datetime]
    """Its place in the line; an offer that is let pass moves it to the end."""
    created_at: Mapped[datetime]


class Offer(Base):
    """A block held for somebody on the waitlist, for minutes; taken up once or not at all."""

    __tablename__ = "offers"
    __table_args__ = (
        CheckConstraint(one_of("state", OfferState), name="state"),
        CheckConstraint("hold_start < hold_end", name="hold"),
        Index("ix_offers_state_expires_at", "state", "expires_at"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    wait_id: Mapped[str] = mapped_column(ForeignKey("waitlist.id"), index=True)
    user_id: Mapped[str] = mapped_column(ForeignKey("users.id"), index=True)
    node_id: Mapped[str] = mapped_column(ForeignKey("nodes.id"))
    hold_start: Mapped[datetime]
    hold_end: Mapped[datetime]
    state: Mapped[OfferState]
    lease_id: Mapped[str | None] = mapped_column(ForeignKey("leases.id"))
    """What it became."""
    told_at: Mapped[datetime | None]
    """When its owner first heard of it: read it, or was sent a mail or a call."""
    expires_at: Mapped[datetime]
    """From when on the scheduler ends it; until then and until it does it can be accepted."""
    created_at: Mapped[datetime]


class Maintenance(Base):
    """Hours that staff keep for themselves, once or again and again."""

    __tablename__ = "maintenance"

    id: Mapped[str] = mapped_column(primary_key=True)
    why: Mapped[str]
    rule: Mapped[str | None]
    """RFC 5545 recurrence rule; None: once."""
    zone: Mapped[str]
    """IANA name: occurrences keep its clock time when the clocks change."""
    first_start: Mapped[datetime]
    hours: Mapped[int]
    created_by: Mapped[str] = mapped_column(ForeignKey("users.id"))
    created_at: Mapped[datetime]
    cancelled_at: Mapped[datetime | None]


class CalendarFeed(Base):
    """A secret address at which a calendar program reads leases; only its SHA-256 is kept."""

    __tablename__ = "calendar_feeds"

    id: Mapped[str] = mapped_column(primary_key=True)
    user_id: Mapped[str] = mapped_column(ForeignKey("users.id"), index=True)
    """Whose leases, and who made it."""
    node_id: Mapped[str | None] = mapped_column(ForeignKey("nodes.id"))
    """Of a node instead, for staff."""
    sha256: Mapped[str] = mapped_column(String(64), unique=True)
    created_at: Mapped[datetime]
    last_used_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]


class Occupancy(Base):
    """Who holds a whole node from when to when; the database refuses overlaps of live rows.

    PostgreSQL: exclusion constraint `one_holder`; SQLite: triggers of the same name (migrations).
    """

    __tablename__ = "occupancy"
    __table_args__ = (
        CheckConstraint(one_of("kind", OccupancyKind), name="kind"),
        CheckConstraint("hold_start < hold_end", name="hold"),
        Index("ix_occupancy_node_hold", "node_id", "hold_end"),
        Index("ix_occupancy_hold_end", "hold_end"),
    )

    id: Mapped[int] = mapped_column(Serial, primary_key=True, autoincrement=True)
    node_id: Mapped[str] = mapped_column(ForeignKey("nodes.id"))
    lease_id: Mapped[str | None] = mapped_column(ForeignKey("leases.id"), index=True)
    offer_id: Mapped[str | None] = mapped_column(ForeignKey("offers.id"), index=True)
    maintenance_id: Mapped[str | None] = mapped_column(ForeignKey("maintenance.id"), index=True)
    kind: Mapped[OccupancyKind]
    hold_start: Mapped[datetime]
    hold_end: Mapped[datetime]
    live: Mapped[bool] = mapped_column(default=True)
