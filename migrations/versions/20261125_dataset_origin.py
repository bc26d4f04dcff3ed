"""repositories of the hub that datasets were fetched from"""

import sqlalchemy as sa
from alembic import op

revision = "20261125_dataset_origin"
down_revision = "20261125_tokenizers"


def upgrade() -> None:
    op.add_column("datasets", sa.Column("origin", sa.JSON(), nullable=True))
