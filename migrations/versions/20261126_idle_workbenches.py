"""workbenches that are idle"""

import sqlalchemy as sa
from alembic import op

from core.database.database import UtcDateTime

revision = "20261126_idle_workbenches"
down_revision = "20261126_link_letters"


def upgrade() -> None:
    op.add_column("attempts", sa.Column("idle_since", UtcDateTime(), nullable=True))
    op.add_column("attempts", sa.Column("gpus_used_at", UtcDateTime(), nullable=True))
    op.add_column("attempts", sa.Column("gpu_held_gib", sa.Double(), nullable=True))
