"""how long the leader's cycles take"""

import sqlalchemy as sa
from alembic import op

revision = "20261217_cycle_numbers"
down_revision = "20261216_offer_told_at"


def upgrade() -> None:
    op.add_column("leadership", sa.Column("cycles", sa.JSON(none_as_null=True), nullable=True))
