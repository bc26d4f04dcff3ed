"""Leases, their appointments and holds, and the waitlist."""

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
    """The exclusive use of a node, or of some of its slots, by one user for hour blocks."""

    __tablename__ = "leases"
    __table_args__ = (
        CheckConstraint(one_of("state", LeaseState), name="state"),
        CheckConstraint(one_of("kind", LeaseKind), name="kind"),
        CheckConstraint("hold_start < hold_end", name="hold"),
        CheckConstraint("num_slots > 0", name="num_slots"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    user_id: Mapped[str] = mapped_column(ForeignKey("users.id"), index=True)
    node_id: Mapped[str] = mapped_column(ForeignKey("nodes.id"), index=True)
    kind: Mapped[LeaseKind]
    state: Mapped[LeaseState] = mapped_column(index=True)
    reason: Mapped[str] = mapped_column(default="")
    hold_start: Mapped[datetime]
    hold_end: Mapped[datetime]
    num_slots: Mapped[int | None]
    """Number of slots that were asked for; None: the whole node."""
    grace_s: Mapped[int]
    """Seconds taken off the end of the hold; the rest is usable. Stored per row: a changed policy
    does not change the hours of existing leases."""
    checkpoint_s: Mapped[int] = mapped_column(default=600, server_default="600")
    """Seconds before the end of the hold at which its jobs save a checkpoint."""
    kill_after_s: Mapped[int] = mapped_column(default=30, server_default="30")
    """Seconds after the usable end at which its remaining processes are killed."""
    generation: Mapped[int] = mapped_column(default=0, server_default="0")
    """Rises with every change of its node or hours: older appointments are void."""
    together: Mapped[str | None] = mapped_column(index=True)
    """Id of the first of the leases that were booked with it, all or nothing."""
    lab_id: Mapped[str | None] = mapped_column(ForeignKey("labs.id"), index=True)
    """Lab of its owner when it was made; the hours used stay with that lab."""
    booked_node_id: Mapped[str | None] = mapped_column(ForeignKey("nodes.id"))
    """Node that it was booked on, which quotas bill, if a fault has moved it to another node."""
    policy_id: Mapped[str | None]
    policy_version: Mapped[int | None]
    verdict: Mapped[Document | None]
    """`core.policy.Verdict` as it was granted."""
    protected: Mapped[bool] = mapped_column(default=False, server_default=false())
    """True if clean-ups pass it by."""
    tags: Mapped[list[str]] = mapped_column(JSON, default=list, server_default="[]")
    """Names that staff gave it, such as a project's, to find it by in a clean-up."""
    counts: Mapped[bool] = mapped_column(default=True, server_default=true())
    """True if it counts against quotas. False: refunded, or a walk-in that is not charged."""
    settled_as: Mapped[str] = mapped_column(default="", server_default="")
    """Reason why it counts or does not, once that is known: `late_cancel`, `node_fault`, ..."""
    charged_end: Mapped[datetime | None]
    """End of the unbroken stretch that is charged, if it is not the end of the hold.

    For a walk-in, the moment at which it ended; for forfeited hours, the point from which others
    have them.
    """
    charged_s: Mapped[int | None]
    """Seconds charged if it has forfeited hours, including stretches after others' hours."""
    forfeited_end: Mapped[datetime | None] = mapped_column(index=True)
    """End of hours given back too late to be free of charge. The lease is charged for its hours up
    to here that no other lease has, or had and counts for, or has forfeited after it."""
    forfeited_at: Mapped[datetime | None]
    refund_if_rebooked: Mapped[bool] = mapped_column(default=False, server_default=false())
    """True if it stops counting while others have all the hours that it is charged for."""
    unusable_s: Mapped[int] = mapped_column(default=0, server_default="0")
    """Seconds in which its node could not be used in it."""
    began_at: Mapped[datetime | None]
    ended_at: Mapped[datetime | None]
    cancelled_at: Mapped[datetime | None]
    created_at: Mapped[datetime]


class Appointment(Base):
    """Event due in the life of a lease; claimed, then carried out once."""

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
    """An entry of the waitlist: so many hours, of a class or a node, that start within a range."""

    __tablename__ = "waitlist"
    __table_args__ = (
        CheckConstraint(one_of("state", WaitState), name="state"),
        CheckConstraint("num_slots > 0", name="num_slots"),
        Index("ix_waitlist_state_place", "state", "queued_at"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    user_id: Mapped[str] = mapped_column(ForeignKey("users.id"), index=True)
    node_class: Mapped[str | None] = mapped_column(ForeignKey("node_classes.name"))
    node_id: Mapped[str | None] = mapped_column(ForeignKey("nodes.id"))
    first_start: Mapped[datetime]
    last_start: Mapped[datetime]
    hours: Mapped[int]
    num_slots: Mapped[int | None]
    """Number of slots of one node; None: a whole node."""
    priority: Mapped[bool] = mapped_column(default=False)
    """True if a fault has taken a lease from this user: served first."""
    state: Mapped[WaitState]
    reason: Mapped[str] = mapped_column(default="")
    queued_at: Mapped[datetime]
    """Place in the line; an offer that is let pass moves it to the end."""
    created_at: Mapped[datetime]


class Offer(Base):
    """A block held for a user on the waitlist, for minutes; accepted once or not at all."""

    __tablename__ = "offers"
    __table_args__ = (
        CheckConstraint(one_of("state", OfferState), name="state"),
        CheckConstraint("hold_start < hold_end", name="hold"),
        CheckConstraint("num_slots > 0", name="num_slots"),
        Index("ix_offers_state_expires_at", "state", "expires_at"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    wait_id: Mapped[str] = mapped_column(ForeignKey("waitlist.id"), index=True)
    user_id: Mapped[str] = mapped_column(ForeignKey("users.id"), index=True)
    node_id: Mapped[str] = mapped_column(ForeignKey("nodes.id"))
    hold_start: Mapped[datetime]
    hold_end: Mapped[datetime]
    num_slots: Mapped[int | None]
    """Number of slots; None: the whole node."""
    state: Mapped[OfferState]
    lease_id: Mapped[str | None] = mapped_column(ForeignKey("leases.id"))
    """Lease that it became, if accepted."""
    told_at: Mapped[datetime | None]
    """Time at which its owner first heard of it: read it, or was sent a mail or a call."""
    expires_at: Mapped[datetime]
    """Time from which the scheduler ends it; it can be accepted until the scheduler does."""
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
    """Owner, who made the feed; it shows their leases unless `node_id` is set."""
    node_id: Mapped[str | None] = mapped_column(ForeignKey("nodes.id"))
    """Node whose leases it shows instead, for staff."""
    sha256: Mapped[str] = mapped_column(String(64), unique=True)
    created_at: Mapped[datetime]
    last_used_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]


class Occupancy(Base):
    """Hold of a node, or of some of its slots, from `hold_start` to `hold_end`.

    The database refuses a live row with which more slots would be held, at any moment of it, than
    the node has: by triggers named `one_holder` (migrations). They let rows of kind `down` pass,
    which state a fact, and changes that only shrink a hold. A migration that copies this table on
    SQLite has to make the triggers again.
    """

    __tablename__ = "occupancy"
    __table_args__ = (
        CheckConstraint(one_of("kind", OccupancyKind), name="kind"),
        CheckConstraint("hold_start < hold_end", name="hold"),
        CheckConstraint("num_slots > 0", name="num_slots"),
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
    num_slots: Mapped[int | None]
    """Number of slots held; None: the whole node."""
    live: Mapped[bool] = mapped_column(default=True)
