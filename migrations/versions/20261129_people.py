"""mail addresses, attributes, lab weights, invites, exceptions, links for a new password"""

import sqlalchemy as sa
from alembic import op

import core.database.database

revision = "20261129_people"
down_revision = "20261128_lease_life"

LINK_KINDS = "kind IN ('first_start', 'login', 'password', 'enrol')"


def upgrade() -> None:
    op.add_column("users", sa.Column("email", sa.Text(), nullable=True))
    op.add_column("users", sa.Column("attributes", sa.JSON(), nullable=False, server_default="{}"))
    op.create_index("uq_users_email", "users", ["email"], unique=True)
    op.add_column("labs", sa.Column("weight", sa.Double(), nullable=False, server_default="1"))
    op.add_column("labs", sa.Column("groups", sa.JSON(), nullable=False, server_default="[]"))
    with op.batch_alter_table("links", schema=None) as batch_op:
        batch_op.drop_constraint("kind", type_="check")
        batch_op.create_check_constraint("kind", LINK_KINDS)
    op.create_table(
        "invites",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("lab_id", sa.Text(), nullable=True),
        sa.Column("email", sa.Text(), nullable=True),
        sa.Column("attributes", sa.JSON(), nullable=False),
        sa.Column("invited_by", sa.Text(), nullable=False),
        sa.Column("created_at", core.database.database.UtcDateTime(timezone=True), nullable=False),
        sa.Column("expires_at", core.database.database.UtcDateTime(timezone=True), nullable=False),
        sa.Column("used_at", core.database.database.UtcDateTime(timezone=True), nullable=True),
        sa.Column("used_by", sa.Text(), nullable=True),
        sa.Column("revoked_at", core.database.database.UtcDateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["lab_id"], ["labs.id"], name="fk_invites_lab_id_labs"),
        sa.ForeignKeyConstraint(["invited_by"], ["users.id"], name="fk_invites_invited_by_users"),
        sa.ForeignKeyConstraint(["used_by"], ["users.id"], name="fk_invites_used_by_users"),
        sa.PrimaryKeyConstraint("id", name="pk_invites"),
        sa.UniqueConstraint("sha256", name="uq_invites_sha256"),
    )
    op.create_index("ix_invites_lab_id", "invites", ["lab_id"])
    op.create_table(
        "grants",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("rule", sa.Text(), nullable=False),
        sa.Column("extra", sa.Integer(), nullable=False),
        sa.Column("starts_at", core.database.database.UtcDateTime(timezone=True), nullable=False),
        sa.Column("ends_at", core.database.database.UtcDateTime(timezone=True), nullable=False),
        sa.Column("granted_by", sa.Text(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("created_at", core.database.database.UtcDateTime(timezone=True), nullable=False),
        sa.Column("revoked_at", core.database.database.UtcDateTime(timezone=True), nullable=True),
        sa.CheckConstraint("starts_at < ends_at", name="time"),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name="fk_grants_user_id_users"),
        sa.ForeignKeyConstraint(["granted_by"], ["users.id"], name="fk_grants_granted_by_users"),
        sa.PrimaryKeyConstraint("id", name="pk_grants"),
    )
    op.create_index("ix_grants_user_id", "grants", ["user_id"])
