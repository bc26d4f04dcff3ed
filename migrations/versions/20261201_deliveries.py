"""how people want to be told, and each notice on its way"""

import sqlalchemy as sa
from alembic import op

from core.database.database import UtcDateTime

revision = "20261201_deliveries"
down_revision = "20261150_policies"

CHANNELS = "channel IN ('mail', 'webhook', 'digest', 'off')"
STATES = "state IN ('waiting', 'sent', 'failed', 'kept')"


def upgrade() -> None:
    op.create_table(
        "notification_choices",
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("channel", sa.String(length=20), nullable=False),
        sa.CheckConstraint(CHANNELS, name="channel"),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name="fk_notification_choices_user_id_users"
        ),
        sa.PrimaryKeyConstraint("user_id", "kind", name="pk_notification_choices"),
    )
    op.create_table(
        "webhooks",
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("secret", sa.Text(), nullable=False),
        sa.Column("created_at", UtcDateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name="fk_webhooks_user_id_users"),
        sa.PrimaryKeyConstraint("user_id", name="pk_webhooks"),
    )
    serial = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "deliveries",
        sa.Column("notice_id", serial, autoincrement=False, nullable=False),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("channel", sa.String(length=20), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("due_at", UtcDateTime(timezone=True), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("claimed_until", UtcDateTime(timezone=True), nullable=True),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("sent_at", UtcDateTime(timezone=True), nullable=True),
        sa.CheckConstraint(CHANNELS, name="channel"),
        sa.CheckConstraint(STATES, name="state"),
        sa.ForeignKeyConstraint(
            ["notice_id"], ["notices.id"], name="fk_deliveries_notice_id_notices"
        ),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name="fk_deliveries_user_id_users"),
        sa.PrimaryKeyConstraint("notice_id", name="pk_deliveries"),
    )
    op.create_index("ix_deliveries_state_due_at", "deliveries", ["state", "due_at"])
    op.create_index("ix_deliveries_user_id", "deliveries", ["user_id"])
