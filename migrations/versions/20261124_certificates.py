"""the certificate of a job: its first steps held against one rank"""

import sqlalchemy as sa
from alembic import op

revision = "20261124_certificates"
down_revision = "20261123_live_rows"


def upgrade() -> None:
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.add_column(sa.Column("certificate", sa.JSON(), nullable=True))
