"""courses, their exercises, and what students handed in"""

import sqlalchemy as sa
from alembic import op

revision = "20261126_courses"
down_revision = "20261126_templates"


def upgrade() -> None:
    op.create_table(
        "courses",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("owner_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("zone", sa.Text(), nullable=False),
        sa.Column("group", sa.Text(), nullable=False),
        sa.Column("first_day", sa.Text(), nullable=False),
        sa.Column("texts", sa.JSON(), nullable=False),
        sa.Column("applied_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["owner_id"], ["users.id"], name=op.f("fk_courses_owner_id_users")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_courses")),
        sa.UniqueConstraint("name", name=op.f("uq_courses_name")),
    )
    op.create_table(
        "exercises",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("course_id", sa.Text(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("notes", sa.Text(), nullable=False),
        sa.Column("template_id", sa.Text(), nullable=False),
        sa.Column("opens_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("due_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("hours", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["course_id"], ["courses.id"], name=op.f("fk_exercises_course_id_courses")
        ),
        sa.ForeignKeyConstraint(
            ["template_id"], ["templates.id"], name=op.f("fk_exercises_template_id_templates")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_exercises")),
        sa.UniqueConstraint("course_id", "name", name=op.f("uq_exercises_course_id")),
    )
    op.create_table(
        "hand_ins",
        sa.Column("exercise_id", sa.Text(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("report_sha256", sa.String(length=64), nullable=False),
        sa.Column("made_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["exercise_id"], ["exercises.id"], name=op.f("fk_hand_ins_exercise_id_exercises")
        ),
        sa.ForeignKeyConstraint(
            ["report_sha256"], ["reports.sha256"], name=op.f("fk_hand_ins_report_sha256_reports")
        ),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_hand_ins_user_id_users")),
        sa.PrimaryKeyConstraint("exercise_id", "user_id", name=op.f("pk_hand_ins")),
    )
