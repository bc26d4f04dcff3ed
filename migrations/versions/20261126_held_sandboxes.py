"""sandboxes of failed attempts that are held for their owners"""

import sqlalchemy as sa
from alembic import op

from core.database.database import UtcDateTime

revision = "20261126_held_sandboxes"
down_revision = "20261126_workbenches"


def upgrade() -> None:
    op.add_column("attempts", sa.Column("held_until", UtcDateTime(), nullable=True))
    op.add_column("attempts", sa.Column("held_outcome", sa.String(length=20), nullable=True))
