"""when the owner of an offer first heard of it"""

import sqlalchemy as sa
from alembic import op

from core.database.database import UtcDateTime

revision = "20261216_offer_told_at"
down_revision = "20261215_forfeited_hours"


def upgrade() -> None:
    op.add_column("offers", sa.Column("told_at", UtcDateTime(timezone=True), nullable=True))
