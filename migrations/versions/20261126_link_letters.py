"""letters with a link that works once"""

import sqlalchemy as sa
from alembic import op

from core.database.database import UtcDateTime

revision = "20261126_link_letters"
down_revision = "20261126_held_sandboxes"


def upgrade() -> None:
    serial = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "link_letters",
        sa.Column("id", serial, autoincrement=True, nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("address", sa.Text(), nullable=False),
        sa.Column("invite_id", sa.Text(), nullable=True),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("expires_at", UtcDateTime(), nullable=False),
        sa.Column("due_at", UtcDateTime(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("claimed_until", UtcDateTime(), nullable=True),
        sa.Column("done", sa.Boolean(), nullable=False),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.CheckConstraint("kind IN ('invitation', 'password')", name=op.f("ck_link_letters_kind")),
        sa.ForeignKeyConstraint(
            ["invite_id"], ["invites.id"], name=op.f("fk_link_letters_invite_id_invites")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_link_letters")),
    )
    op.create_index("ix_link_letters_address_created_at", "link_letters", ["address", "created_at"])
    op.create_index("ix_link_letters_done_due_at", "link_letters", ["done", "due_at"])
