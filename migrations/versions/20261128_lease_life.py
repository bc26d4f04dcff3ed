"""the life of leases: appointments, waitlist and offers, maintenance, calendars, notices"""

from datetime import timedelta

import sqlalchemy as sa
from alembic import op

from core.database.database import EnumText, UtcDateTime
from core.tables.kinds import AppointmentKind, AppointmentState, NoticeState, OfferState, WaitState

revision = "20261128_lease_life"
down_revision = "20261127_requests"

SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    _waitlist()
    _maintenance()
    _calendar_feeds()
    _notices()
    _lease_columns()
    _appointments()


def _waitlist() -> None:
    op.create_table(
        "waitlist",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("node_class", sa.Text(), nullable=True),
        sa.Column("node_id", sa.Text(), nullable=True),
        sa.Column("first_start", _moment(), nullable=False),
        sa.Column("last_start", _moment(), nullable=False),
        sa.Column("hours", sa.Integer(), nullable=False),
        sa.Column("priority", sa.Boolean(), nullable=False),
        sa.Column("state", EnumText(WaitState), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("queued_at", _moment(), nullable=False),
        sa.Column("created_at", _moment(), nullable=False),
        sa.CheckConstraint(
            "state IN ('waiting', 'offered', 'served', 'left', 'over')",
            name=op.f("ck_waitlist_state"),
        ),
        _refers("waitlist", "user_id", "users"),
        _refers("waitlist", "node_class", "node_classes", "name"),
        _refers("waitlist", "node_id", "nodes"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_waitlist")),
    )
    op.create_index(op.f("ix_waitlist_user_id"), "waitlist", ["user_id"])
    op.create_index("ix_waitlist_state_place", "waitlist", ["state", "queued_at"])
    op.create_table(
        "offers",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("wait_id", sa.Text(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("node_id", sa.Text(), nullable=False),
        sa.Column("hold_start", _moment(), nullable=False),
        sa.Column("hold_end", _moment(), nullable=False),
        sa.Column("state", EnumText(OfferState), nullable=False),
        sa.Column("lease_id", sa.Text(), nullable=True),
        sa.Column("expires_at", _moment(), nullable=False),
        sa.Column("created_at", _moment(), nullable=False),
        sa.CheckConstraint(
            "state IN ('open', 'accepted', 'declined', 'expired')", name=op.f("ck_offers_state")
        ),
        sa.CheckConstraint("hold_start < hold_end", name=op.f("ck_offers_hold")),
        _refers("offers", "wait_id", "waitlist"),
        _refers("offers", "user_id", "users"),
        _refers("offers", "node_id", "nodes"),
        _refers("offers", "lease_id", "leases"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_offers")),
    )
    op.create_index(op.f("ix_offers_wait_id"), "offers", ["wait_id"])
    op.create_index(op.f("ix_offers_user_id"), "offers", ["user_id"])
    op.create_index("ix_offers_state_expires_at", "offers", ["state", "expires_at"])


def _maintenance() -> None:
    op.create_table(
        "maintenance",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("rule", sa.Text(), nullable=True),
        sa.Column("zone", sa.Text(), nullable=False),
        sa.Column("first_start", _moment(), nullable=False),
        sa.Column("hours", sa.Integer(), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("created_at", _moment(), nullable=False),
        sa.Column("cancelled_at", _moment(), nullable=True),
        _refers("maintenance", "created_by", "users"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_maintenance")),
    )
    # Not as a batch, which would make the table anew and lose its triggers.
    for column, table in (("offer_id", "offers"), ("maintenance_id", "maintenance")):
        _add_reference("occupancy", column, table)
        op.create_index(op.f(f"ix_occupancy_{column}"), "occupancy", [column])


def _calendar_feeds() -> None:
    op.create_table(
        "calendar_feeds",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("node_id", sa.Text(), nullable=True),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("created_at", _moment(), nullable=False),
        sa.Column("last_used_at", _moment(), nullable=True),
        sa.Column("revoked_at", _moment(), nullable=True),
        _refers("calendar_feeds", "user_id", "users"),
        _refers("calendar_feeds", "node_id", "nodes"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_calendar_feeds")),
        sa.UniqueConstraint("sha256", name=op.f("uq_calendar_feeds_sha256")),
    )
    op.create_index(op.f("ix_calendar_feeds_user_id"), "calendar_feeds", ["user_id"])


def _notices() -> None:
    op.create_table(
        "notices",
        sa.Column("id", SERIAL, autoincrement=True, nullable=False),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("facts", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("state", EnumText(NoticeState), nullable=False),
        sa.Column("created_at", _moment(), nullable=False),
        sa.Column("sent_at", _moment(), nullable=True),
        sa.CheckConstraint("state IN ('waiting', 'sent', 'failed')", name=op.f("ck_notices_state")),
        _refers("notices", "user_id", "users"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_notices")),
    )
    op.create_index("ix_notices_state_id", "notices", ["state", "id"])
    op.create_index("ix_notices_user_id_id", "notices", ["user_id", "id"])


def _lease_columns() -> None:
    for column in (
        sa.Column("generation", sa.Integer(), server_default="0", nullable=False),
        sa.Column("together", sa.Text(), nullable=True),
        sa.Column("policy_id", sa.Text(), nullable=True),
        sa.Column("policy_version", sa.Integer(), nullable=True),
        sa.Column("verdict", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("protected", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("counts", sa.Boolean(), server_default=sa.true(), nullable=False),
        sa.Column("settled_as", sa.Text(), server_default="", nullable=False),
        sa.Column("unusable_s", sa.Integer(), server_default="0", nullable=False),
        sa.Column("began_at", _moment(), nullable=True),
        sa.Column("ended_at", _moment(), nullable=True),
        sa.Column("cancelled_at", _moment(), nullable=True),
    ):
        op.add_column("leases", column)
    _add_reference("leases", "lab_id", "labs")
    _add_reference("leases", "booked_node_id", "nodes")
    op.create_index(op.f("ix_leases_lab_id"), "leases", ["lab_id"])
    op.create_index(op.f("ix_leases_together"), "leases", ["together"])


def _appointments() -> None:
    table = op.create_table(
        "appointments",
        sa.Column("id", SERIAL, autoincrement=True, nullable=False),
        sa.Column("lease_id", sa.Text(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("kind", EnumText(AppointmentKind), nullable=False),
        sa.Column("due_at", _moment(), nullable=False),
        sa.Column("state", EnumText(AppointmentState), nullable=False),
        sa.Column("claimed_by", sa.Text(), nullable=True),
        sa.Column("claim_expires_at", _moment(), nullable=True),
        sa.Column("kept_at", _moment(), nullable=True),
        sa.CheckConstraint(
            "kind IN ('begin', 'warn', 'reclaim', 'notify', 'stop', 'end')",
            name=op.f("ck_appointments_kind"),
        ),
        sa.CheckConstraint(
            "state IN ('due', 'claimed', 'kept', 'void')", name=op.f("ck_appointments_state")
        ),
        _refers("appointments", "lease_id", "leases"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_appointments")),
        sa.UniqueConstraint(
            "lease_id", "generation", "kind", "due_at", name=op.f("uq_appointments_lease_id")
        ),
    )
    op.create_index("ix_appointments_state_due_at", "appointments", ["state", "due_at"])
    rows = _appointments_of_live_leases()
    if rows:
        op.bulk_insert(table, rows)


def _appointments_of_live_leases() -> list[dict[str, object]]:
    """What was to happen to the leases that are here already."""
    leases = sa.table(
        "leases",
        sa.column("id", sa.Text()),
        sa.column("state", sa.Text()),
        sa.column("hold_start", _moment()),
        sa.column("hold_end", _moment()),
        sa.column("grace_s", sa.Integer()),
    )
    live = op.get_bind().execute(
        sa.select(leases).where(leases.c.state.in_(("booked", "active", "ending")))
    )
    rows: list[dict[str, object]] = []
    for lease in live:
        due = {
            AppointmentKind.STOP: lease.hold_end - timedelta(seconds=lease.grace_s),
            AppointmentKind.END: lease.hold_end,
        }
        if lease.state == "booked":
            due[AppointmentKind.BEGIN] = lease.hold_start
        for kind, due_at in due.items():
            rows.append(
                {
                    "lease_id": lease.id,
                    "generation": 0,
                    "kind": kind,
                    "due_at": due_at,
                    "state": AppointmentState.DUE,
                }
            )
    return rows


def _moment() -> UtcDateTime:
    return UtcDateTime(timezone=True)


def _refers(table: str, column: str, to: str, to_column: str = "id") -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(
        [column], [f"{to}.{to_column}"], name=op.f(f"fk_{table}_{column}_{to}")
    )


def _add_reference(table: str, column: str, to: str) -> None:
    op.execute(
        f"ALTER TABLE {table} ADD COLUMN {column} TEXT "
        f"CONSTRAINT fk_{table}_{column}_{to} REFERENCES {to} (id)"
    )
