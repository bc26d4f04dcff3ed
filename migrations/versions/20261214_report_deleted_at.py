"""when the owner of a report deleted it; its hash stays, so that what was handed in can be checked"""

import sqlalchemy as sa
from alembic import op

from core.database.database import UtcDateTime

revision = "20261214_report_deleted_at"
down_revision = "20261213_made_with"


def upgrade() -> None:
    op.add_column("reports", sa.Column("deleted_at", UtcDateTime(timezone=True), nullable=True))
