"""tags of jobs, and the columns of a person's lists of them"""

import sqlalchemy as sa
from alembic import op

revision = "20261126_tags_of_jobs"
down_revision = "20261126_shared_workspaces"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("tags", sa.JSON(), server_default="[]", nullable=False))
    op.add_column("users", sa.Column("job_columns", sa.JSON(), nullable=True))
