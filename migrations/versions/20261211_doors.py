"""scopes of API tokens, those of before keep what they had; who people are at a provider"""

import sqlalchemy as sa
from alembic import op

from core.database.database import UtcDateTime

revision = "20261211_doors"
down_revision = "20261210_preflights"

LINK_KINDS = "kind IN ('first_start', 'login', 'password', 'enrol', 'oidc')"


def upgrade() -> None:
    op.add_column("tokens", sa.Column("scopes", sa.JSON(), nullable=False, server_default="[]"))
    tokens = sa.table("tokens", sa.column("user_id", sa.Text()), sa.column("scopes", sa.JSON()))
    op.execute(tokens.update().where(tokens.c.user_id.is_not(None)).values(scopes=["all"]))
    with op.batch_alter_table("links", schema=None) as batch_op:
        batch_op.drop_constraint("kind", type_="check")
        batch_op.create_check_constraint("kind", LINK_KINDS)
    op.create_table(
        "identities",
        sa.Column("issuer", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("email", sa.Text(), nullable=True),
        sa.Column("created_at", UtcDateTime(timezone=True), nullable=False),
        sa.Column("last_used_at", UtcDateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name="fk_identities_user_id_users"),
        sa.PrimaryKeyConstraint("issuer", "subject", name="pk_identities"),
    )
    op.create_index("ix_identities_user_id", "identities", ["user_id"])
