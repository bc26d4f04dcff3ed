"""first tables"""

import sqlalchemy as sa
from alembic import op

import core.database.database

revision = "20261121_first_tables"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "audit",
        sa.Column(
            "id",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
        ),
        sa.Column("at", core.database.database.UtcDateTime(timezone=True), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("details", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit")),
    )
    with op.batch_alter_table("audit", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_audit_at"), ["at"], unique=False)

    op.create_table(
        "events",
        sa.Column(
            "id",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
        ),
        sa.Column("at", core.database.database.UtcDateTime(timezone=True), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=True),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("from_state", sa.Text(), nullable=True),
        sa.Column("to_state", sa.Text(), nullable=True),
        sa.Column("reason_code", sa.Text(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_events")),
    )
    with op.batch_alter_table("events", schema=None) as batch_op:
        batch_op.create_index("ix_events_subject_id", ["subject", "id"], unique=False)

    op.create_table(
        "files",
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("created_at", core.database.database.UtcDateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("sha256", name=op.f("pk_files")),
    )
    op.create_table(
        "labs",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("created_at", core.database.database.UtcDateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_labs")),
        sa.UniqueConstraint("name", name=op.f("uq_labs_name")),
    )
    op.create_table(
        "leadership",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("term", sa.Integer(), nullable=False),
        sa.Column("expires_at", core.database.database.UtcDateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_leadership")),
    )
    op.create_table(
        "node_classes",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("hardware", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_node_classes")),
    )
    op.create_table(
        "users",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("role", sa.String(length=20), nullable=False),
        sa.Column("password_hash", sa.Text(), nullable=True),
        sa.Column("zone", sa.Text(), nullable=False),
        sa.Column("disabled", sa.Boolean(), nullable=False),
        sa.Column("created_at", core.database.database.UtcDateTime(timezone=True), nullable=False),
        sa.CheckConstraint("role IN ('user', 'staff', 'admin')", name=op.f("ck_users_role")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_users")),
        sa.UniqueConstraint("name", name=op.f("uq_users_name")),
    )
    op.create_table(
        "datasets",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("format", sa.Text(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("report", sa.JSON(), nullable=False),
        sa.Column("deleted_at", core.database.database.UtcDateTime(timezone=True), nullable=True),
        sa.Column("created_at", core.database.database.UtcDateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["sha256"], ["files.sha256"], name=op.f("fk_datasets_sha256_files")
        ),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_datasets_user_id_users")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_datasets")),
        sa.UniqueConstraint("user_id", "name", name=op.f("uq_datasets_user_id")),
    )
    op.create_table(
        "idempotency",
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("key", sa.String(length=200), nullable=False),
        sa.Column("body_sha256", sa.String(length=64), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("created_at", core.database.database.UtcDateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name=op.f("fk_idempotency_user_id_users")
        ),
        sa.PrimaryKeyConstraint("user_id", "key", name=op.f("pk_idempotency")),
    )
    with op.batch_alter_table("idempotency", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_idempotency_created_at"), ["created_at"], unique=False)

    op.create_table(
        "links",
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=True),
        sa.Column("node_name", sa.Text(), nullable=True),
        sa.Column("node_class", sa.Text(), nullable=True),
        sa.Column("created_at", core.database.database.UtcDateTime(timezone=True), nullable=False),
        sa.Column("expires_at", core.database.database.UtcDateTime(timezone=True), nullable=False),
        sa.Column("used_at", core.database.database.UtcDateTime(timezone=True), nullable=True),
        sa.CheckConstraint("kind IN ('first_start', 'login', 'enrol')", name=op.f("ck_links_kind")),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_links_user_id_users")),
        sa.PrimaryKeyConstraint("sha256", name=op.f("pk_links")),
    )
    op.create_table(
        "memberships",
        sa.Column("lab_id", sa.Text(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("is_lead", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["lab_id"], ["labs.id"], name=op.f("fk_memberships_lab_id_labs")),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name=op.f("fk_memberships_user_id_users")
        ),
        sa.PrimaryKeyConstraint("lab_id", "user_id", name=op.f("pk_memberships")),
    )
    with op.batch_alter_table("memberships", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_memberships_user_id"), ["user_id"], unique=False)

    op.create_table(
        "nodes",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("class_name", sa.Text(), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("inventory", sa.JSON(), nullable=False),
        sa.Column("telemetry", sa.JSON(), nullable=True),
        sa.Column("boot_id", sa.Text(), nullable=False),
        sa.Column("incarnation", sa.Text(), nullable=False),
        sa.Column("clean", sa.Boolean(), nullable=False),
        sa.Column("last_seen_at", core.database.database.UtcDateTime(timezone=True), nullable=True),
        sa.Column(
            "unreachable_since", core.database.database.UtcDateTime(timezone=True), nullable=True
        ),
        sa.Column("created_at", core.database.database.UtcDateTime(timezone=True), nullable=False),
        sa.CheckConstraint(
            "state IN ('pending', 'ready', 'draining', 'maintenance', 'dirty', 'quarantined', 'retired')",
            name=op.f("ck_nodes_state"),
        ),
        sa.ForeignKeyConstraint(
            ["class_name"], ["node_classes.name"], name=op.f("fk_nodes_class_name_node_classes")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_nodes")),
        sa.UniqueConstraint("name", name=op.f("uq_nodes_name")),
    )
    with op.batch_alter_table("nodes", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_nodes_class_name"), ["class_name"], unique=False)

    op.create_table(
        "leases",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("node_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("hold_start", core.database.database.UtcDateTime(timezone=True), nullable=False),
        sa.Column("hold_end", core.database.database.UtcDateTime(timezone=True), nullable=False),
        sa.Column("grace_s", sa.Integer(), nullable=False),
        sa.Column("created_at", core.database.database.UtcDateTime(timezone=True), nullable=False),
        sa.CheckConstraint("kind IN ('booked', 'walk_in')", name=op.f("ck_leases_kind")),
        sa.CheckConstraint(
            "state IN ('booked', 'active', 'ending', 'ended', 'cancelled')",
            name=op.f("ck_leases_state"),
        ),
        sa.CheckConstraint("hold_start < hold_end", name=op.f("ck_leases_hold")),
        sa.ForeignKeyConstraint(["node_id"], ["nodes.id"], name=op.f("fk_leases_node_id_nodes")),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_leases_user_id_users")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_leases")),
    )
    with op.batch_alter_table("leases", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_leases_node_id"), ["node_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_leases_state"), ["state"], unique=False)
        batch_op.create_index(batch_op.f("ix_leases_user_id"), ["user_id"], unique=False)

    op.create_table(
        "tokens",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=True),
        sa.Column("node_id", sa.Text(), nullable=True),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("created_at", core.database.database.UtcDateTime(timezone=True), nullable=False),
        sa.Column("expires_at", core.database.database.UtcDateTime(timezone=True), nullable=True),
        sa.Column("last_used_at", core.database.database.UtcDateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", core.database.database.UtcDateTime(timezone=True), nullable=True),
        sa.CheckConstraint("kind IN ('api', 'session', 'node')", name=op.f("ck_tokens_kind")),
        sa.CheckConstraint(
            "(user_id IS NULL) <> (node_id IS NULL)", name=op.f("ck_tokens_one_holder")
        ),
        sa.ForeignKeyConstraint(["node_id"], ["nodes.id"], name=op.f("fk_tokens_node_id_nodes")),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_tokens_user_id_users")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tokens")),
        sa.UniqueConstraint("sha256", name=op.f("uq_tokens_sha256")),
    )
    with op.batch_alter_table("tokens", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_tokens_node_id"), ["node_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_tokens_user_id"), ["user_id"], unique=False)

    op.create_table(
        "jobs",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("plan", sa.JSON(), nullable=False),
        sa.Column("dataset_id", sa.Text(), nullable=True),
        sa.Column("lease_id", sa.Text(), nullable=True),
        sa.Column("cloned_from", sa.Text(), nullable=True),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("desired", sa.String(length=20), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("reason_code", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column(
            "predicted_start", core.database.database.UtcDateTime(timezone=True), nullable=True
        ),
        sa.Column("not_before", core.database.database.UtcDateTime(timezone=True), nullable=True),
        sa.Column("wall_time_s", sa.Integer(), nullable=False),
        sa.Column("used_s", sa.Integer(), nullable=False),
        sa.Column("infrastructure_failures", sa.Integer(), nullable=False),
        sa.Column("interruptions", sa.Integer(), nullable=False),
        sa.Column("steps", sa.Integer(), nullable=False),
        sa.Column("last_step", sa.Integer(), nullable=False),
        sa.Column("last_loss", sa.Double(), nullable=True),
        sa.Column("last_tokens_per_s", sa.Double(), nullable=True),
        sa.Column("result", sa.JSON(), nullable=True),
        sa.Column("created_at", core.database.database.UtcDateTime(timezone=True), nullable=False),
        sa.Column("started_at", core.database.database.UtcDateTime(timezone=True), nullable=True),
        sa.Column("finished_at", core.database.database.UtcDateTime(timezone=True), nullable=True),
        sa.CheckConstraint("desired IN ('run', 'pause', 'cancel')", name=op.f("ck_jobs_desired")),
        sa.CheckConstraint(
            "state IN ('queued', 'starting', 'running', 'stopping', 'paused', 'succeeded', 'failed', 'cancelled')",
            name=op.f("ck_jobs_state"),
        ),
        sa.ForeignKeyConstraint(
            ["dataset_id"], ["datasets.id"], name=op.f("fk_jobs_dataset_id_datasets")
        ),
        sa.ForeignKeyConstraint(["lease_id"], ["leases.id"], name=op.f("fk_jobs_lease_id_leases")),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_jobs_user_id_users")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
    )
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_jobs_lease_id"), ["lease_id"], unique=False)
        batch_op.create_index("ix_jobs_state", ["state"], unique=False)
        batch_op.create_index("ix_jobs_user_id_id", ["user_id", "id"], unique=False)
        batch_op.create_index("ix_jobs_user_id_state", ["user_id", "state"], unique=False)

    op.create_table(
        "occupancy",
        sa.Column(
            "id",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
        ),
        sa.Column("node_id", sa.Text(), nullable=False),
        sa.Column("lease_id", sa.Text(), nullable=True),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("hold_start", core.database.database.UtcDateTime(timezone=True), nullable=False),
        sa.Column("hold_end", core.database.database.UtcDateTime(timezone=True), nullable=False),
        sa.Column("live", sa.Boolean(), nullable=False),
        sa.CheckConstraint(
            "kind IN ('lease', 'offer', 'maintenance', 'down')", name=op.f("ck_occupancy_kind")
        ),
        sa.CheckConstraint("hold_start < hold_end", name=op.f("ck_occupancy_hold")),
        sa.ForeignKeyConstraint(
            ["lease_id"], ["leases.id"], name=op.f("fk_occupancy_lease_id_leases")
        ),
        sa.ForeignKeyConstraint(["node_id"], ["nodes.id"], name=op.f("fk_occupancy_node_id_nodes")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_occupancy")),
    )
    with op.batch_alter_table("occupancy", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_occupancy_lease_id"), ["lease_id"], unique=False)
        batch_op.create_index("ix_occupancy_node_hold", ["node_id", "hold_end"], unique=False)

    op.create_table(
        "artifacts",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("created_at", core.database.database.UtcDateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_artifacts_job_id_jobs")),
        sa.ForeignKeyConstraint(
            ["sha256"], ["files.sha256"], name=op.f("fk_artifacts_sha256_files")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_artifacts")),
        sa.UniqueConstraint("job_id", "epoch", "path", name=op.f("uq_artifacts_job_id")),
    )
    op.create_table(
        "checkpoints",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("files", sa.JSON(), nullable=False),
        sa.Column("created_at", core.database.database.UtcDateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_checkpoints_job_id_jobs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_checkpoints")),
        sa.UniqueConstraint("job_id", "epoch", "step", name=op.f("uq_checkpoints_job_id")),
    )
    op.create_table(
        "attempts",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("node_id", sa.Text(), nullable=False),
        sa.Column("lease_id", sa.Text(), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("outcome", sa.String(length=20), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("launcher", sa.Text(), nullable=False),
        sa.Column("boot_id", sa.Text(), nullable=False),
        sa.Column("stop_reason", sa.String(length=20), nullable=True),
        sa.Column("resume_checkpoint_id", sa.Text(), nullable=True),
        sa.Column("exit", sa.JSON(), nullable=True),
        sa.Column("files_kept", sa.Boolean(), nullable=False),
        sa.Column("assigned_at", core.database.database.UtcDateTime(timezone=True), nullable=False),
        sa.Column("started_at", core.database.database.UtcDateTime(timezone=True), nullable=True),
        sa.Column(
            "first_step_at", core.database.database.UtcDateTime(timezone=True), nullable=True
        ),
        sa.Column("last_step_at", core.database.database.UtcDateTime(timezone=True), nullable=True),
        sa.Column("ended_at", core.database.database.UtcDateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "outcome IS NULL OR outcome IN ('succeeded', 'user_error', 'diverged', 'out_of_memory', 'bad_data', 'bad_checkpoint', 'start_failed', 'stalled', 'killed', 'time_limit', 'node_lost', 'shim_lost', 'preempted', 'lease_ended', 'paused', 'cancelled')",
            name=op.f("ck_attempts_outcome"),
        ),
        sa.CheckConstraint(
            "state IN ('assigned', 'starting', 'running', 'stopping', 'exited')",
            name=op.f("ck_attempts_state"),
        ),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_attempts_job_id_jobs")),
        sa.ForeignKeyConstraint(
            ["lease_id"], ["leases.id"], name=op.f("fk_attempts_lease_id_leases")
        ),
        sa.ForeignKeyConstraint(["node_id"], ["nodes.id"], name=op.f("fk_attempts_node_id_nodes")),
        sa.ForeignKeyConstraint(
            ["resume_checkpoint_id"],
            ["checkpoints.id"],
            name=op.f("fk_attempts_resume_checkpoint_id_checkpoints"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_attempts")),
        sa.UniqueConstraint("job_id", "epoch", name=op.f("uq_attempts_job_id")),
    )
    with op.batch_alter_table("attempts", schema=None) as batch_op:
        batch_op.create_index("ix_attempts_node_state", ["node_id", "state"], unique=False)
        batch_op.create_index(
            "uq_attempts_live_job",
            ["job_id"],
            unique=True,
            sqlite_where=sa.text("state <> 'exited'"),
            postgresql_where=sa.text("state <> 'exited'"),
        )

    op.create_table(
        "log_chunks",
        sa.Column(
            "id",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
        ),
        sa.Column("attempt_id", sa.Text(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("stream", sa.Text(), nullable=False),
        sa.Column("first_byte", sa.BigInteger(), nullable=False),
        sa.Column("first_line", sa.BigInteger(), nullable=False),
        sa.Column("at", core.database.database.UtcDateTime(timezone=True), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["attempt_id"], ["attempts.id"], name=op.f("fk_log_chunks_attempt_id_attempts")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_log_chunks")),
    )
    with op.batch_alter_table("log_chunks", schema=None) as batch_op:
        batch_op.create_index(
            "ix_log_chunks_stream", ["attempt_id", "rank", "stream", "first_byte"], unique=False
        )
        batch_op.create_index("ix_log_chunks_attempt_id_id", ["attempt_id", "id"], unique=False)

    op.create_table(
        "metric_chunks",
        sa.Column(
            "id",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
        ),
        sa.Column("attempt_id", sa.Text(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("first_line", sa.BigInteger(), nullable=False),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.Column("steps", sa.LargeBinary(), nullable=False),
        sa.Column("values", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["attempt_id"], ["attempts.id"], name=op.f("fk_metric_chunks_attempt_id_attempts")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_metric_chunks")),
    )
    with op.batch_alter_table("metric_chunks", schema=None) as batch_op:
        batch_op.create_index(
            "ix_metric_chunks_series", ["attempt_id", "key", "rank", "first_line"], unique=False
        )

    op.create_table(
        "stream_cursors",
        sa.Column("attempt_id", sa.Text(), nullable=False),
        sa.Column("stream", sa.Text(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["attempt_id"], ["attempts.id"], name=op.f("fk_stream_cursors_attempt_id_attempts")
        ),
        sa.PrimaryKeyConstraint("attempt_id", "stream", name=op.f("pk_stream_cursors")),
    )
    if op.get_bind().dialect.name == "postgresql":
        op.execute("CREATE EXTENSION IF NOT EXISTS btree_gist")
        op.execute(
            "ALTER TABLE occupancy ADD CONSTRAINT one_holder EXCLUDE USING gist "
            "(node_id WITH =, tstzrange(hold_start, hold_end) WITH &&) WHERE (live)"
        )
    else:
        for moment in ("INSERT", "UPDATE"):
            op.execute(
                f"CREATE TRIGGER one_holder_{moment.lower()} BEFORE {moment} ON occupancy "
                "WHEN NEW.live BEGIN SELECT RAISE(ABORT, 'one_holder') WHERE EXISTS ("
                "SELECT 1 FROM occupancy AS held WHERE held.node_id = NEW.node_id AND held.live "
                "AND held.hold_start < NEW.hold_end AND held.hold_end > NEW.hold_start "
                "AND held.id IS NOT NEW.id); END"
            )
