"""versions of models, and the checkpoints that they were promoted from"""

import sqlalchemy as sa
from alembic import op

revision = "20261125_model_versions"
down_revision = "20261125_extended_holds"


def upgrade() -> None:
    op.add_column("models", sa.Column("version", sa.Integer(), server_default="1", nullable=False))
    op.add_column("models", sa.Column("origin", sa.JSON(), nullable=True))
