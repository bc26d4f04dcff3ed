"""the whole schema, as the first release has it"""

import sqlalchemy as sa
from alembic import op

from core.database.database import UtcDateTime

revision = "20261123_first_release"
down_revision = None

SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "audit",
        sa.Column("id", SERIAL, autoincrement=True, nullable=False),
        sa.Column("at", UtcDateTime(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("details", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit")),
    )
    op.create_index(op.f("ix_audit_at"), "audit", ["at"])

    op.create_table(
        "claims",
        sa.Column("chore", sa.Text(), nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("until", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("chore", name=op.f("pk_claims")),
    )

    op.create_table(
        "events",
        sa.Column("id", SERIAL, autoincrement=True, nullable=False),
        sa.Column("at", UtcDateTime(), nullable=False),
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
    op.create_index("ix_events_subject_id", "events", ["subject", "id"])

    op.create_table(
        "files",
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("named_at", UtcDateTime(), nullable=True),
        sa.Column("gone_at", UtcDateTime(), nullable=True),
        sa.PrimaryKeyConstraint("sha256", name=op.f("pk_files")),
    )

    op.create_table(
        "labs",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("weight", sa.Double(), server_default="1", nullable=False),
        sa.Column("groups", sa.JSON(), server_default="[]", nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_labs")),
        sa.UniqueConstraint("name", name=op.f("uq_labs_name")),
    )

    op.create_table(
        "leadership",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("term", sa.Integer(), nullable=False),
        sa.Column("expires_at", UtcDateTime(), nullable=False),
        sa.Column("cycles", sa.JSON(), nullable=True),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_leadership")),
    )

    op.create_table(
        "node_classes",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("hardware", sa.JSON(), nullable=False),
        sa.Column("fabric", sa.JSON(), server_default="{}", nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_node_classes")),
    )

    op.create_table(
        "users",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("role", sa.String(length=20), nullable=False),
        sa.Column("password_hash", sa.Text(), nullable=True),
        sa.Column("zone", sa.Text(), nullable=False),
        sa.Column("email", sa.Text(), nullable=True),
        sa.Column("attributes", sa.JSON(), server_default="{}", nullable=False),
        sa.Column("disabled", sa.Boolean(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.CheckConstraint("role IN ('user', 'staff', 'admin')", name=op.f("ck_users_role")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_users")),
        sa.UniqueConstraint("name", name=op.f("uq_users_name")),
    )
    op.create_index("uq_users_email", "users", ["email"], unique=True)

    op.create_table(
        "cleanups",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("selector", sa.JSON(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("made_by", sa.Text(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("expires_at", UtcDateTime(), nullable=False),
        sa.Column("applied_by", sa.Text(), nullable=True),
        sa.Column("applied_at", UtcDateTime(), nullable=True),
        sa.Column("undone_by", sa.Text(), nullable=True),
        sa.Column("undone_at", UtcDateTime(), nullable=True),
        sa.ForeignKeyConstraint(
            ["applied_by"], ["users.id"], name=op.f("fk_cleanups_applied_by_users")
        ),
        sa.ForeignKeyConstraint(["made_by"], ["users.id"], name=op.f("fk_cleanups_made_by_users")),
        sa.ForeignKeyConstraint(
            ["undone_by"], ["users.id"], name=op.f("fk_cleanups_undone_by_users")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_cleanups")),
    )

    op.create_table(
        "code_archives",
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("paths", sa.JSON(), nullable=False),
        sa.Column("unpacked_size", sa.BigInteger(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["sha256"], ["files.sha256"], name=op.f("fk_code_archives_sha256_files")
        ),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name=op.f("fk_code_archives_user_id_users")
        ),
        sa.PrimaryKeyConstraint("user_id", "sha256", name=op.f("pk_code_archives")),
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
        sa.Column("deleted_at", UtcDateTime(), nullable=True),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["sha256"], ["files.sha256"], name=op.f("fk_datasets_sha256_files")
        ),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_datasets_user_id_users")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_datasets")),
        sa.UniqueConstraint("user_id", "name", name=op.f("uq_datasets_user_id")),
    )

    op.create_table(
        "grants",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("rule", sa.Text(), nullable=False),
        sa.Column("extra", sa.Integer(), nullable=False),
        sa.Column("starts_at", UtcDateTime(), nullable=False),
        sa.Column("ends_at", UtcDateTime(), nullable=False),
        sa.Column("granted_by", sa.Text(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("revoked_at", UtcDateTime(), nullable=True),
        sa.CheckConstraint("starts_at < ends_at", name=op.f("ck_grants_time")),
        sa.ForeignKeyConstraint(
            ["granted_by"], ["users.id"], name=op.f("fk_grants_granted_by_users")
        ),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_grants_user_id_users")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_grants")),
    )
    op.create_index(op.f("ix_grants_user_id"), "grants", ["user_id"])

    op.create_table(
        "idempotency",
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("key", sa.String(length=200), nullable=False),
        sa.Column("body_sha256", sa.String(length=64), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name=op.f("fk_idempotency_user_id_users")
        ),
        sa.PrimaryKeyConstraint("user_id", "key", name=op.f("pk_idempotency")),
    )
    op.create_index(op.f("ix_idempotency_created_at"), "idempotency", ["created_at"])

    op.create_table(
        "identities",
        sa.Column("issuer", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("email", sa.Text(), nullable=True),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("last_used_at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name=op.f("fk_identities_user_id_users")
        ),
        sa.PrimaryKeyConstraint("issuer", "subject", name=op.f("pk_identities")),
    )
    op.create_index(op.f("ix_identities_user_id"), "identities", ["user_id"])

    op.create_table(
        "invites",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("lab_id", sa.Text(), nullable=True),
        sa.Column("email", sa.Text(), nullable=True),
        sa.Column("attributes", sa.JSON(), nullable=False),
        sa.Column("invited_by", sa.Text(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("expires_at", UtcDateTime(), nullable=False),
        sa.Column("used_at", UtcDateTime(), nullable=True),
        sa.Column("used_by", sa.Text(), nullable=True),
        sa.Column("revoked_at", UtcDateTime(), nullable=True),
        sa.ForeignKeyConstraint(
            ["invited_by"], ["users.id"], name=op.f("fk_invites_invited_by_users")
        ),
        sa.ForeignKeyConstraint(["lab_id"], ["labs.id"], name=op.f("fk_invites_lab_id_labs")),
        sa.ForeignKeyConstraint(["used_by"], ["users.id"], name=op.f("fk_invites_used_by_users")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_invites")),
        sa.UniqueConstraint("sha256", name=op.f("uq_invites_sha256")),
    )
    op.create_index(op.f("ix_invites_lab_id"), "invites", ["lab_id"])

    op.create_table(
        "maintenance",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("rule", sa.Text(), nullable=True),
        sa.Column("zone", sa.Text(), nullable=False),
        sa.Column("first_start", UtcDateTime(), nullable=False),
        sa.Column("hours", sa.Integer(), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("cancelled_at", UtcDateTime(), nullable=True),
        sa.ForeignKeyConstraint(
            ["created_by"], ["users.id"], name=op.f("fk_maintenance_created_by_users")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_maintenance")),
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
    op.create_index(op.f("ix_memberships_user_id"), "memberships", ["user_id"])

    op.create_table(
        "models",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("files", sa.JSON(), nullable=False),
        sa.Column("config", sa.Text(), nullable=False),
        sa.Column("has_tokenizer", sa.Boolean(), nullable=False),
        sa.Column("deleted_at", UtcDateTime(), nullable=True),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_models_user_id_users")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_models")),
        sa.UniqueConstraint("user_id", "name", name=op.f("uq_models_user_id")),
    )

    op.create_table(
        "nodes",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("class_name", sa.Text(), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("inventory", sa.JSON(), nullable=False),
        sa.Column("telemetry", sa.JSON(), nullable=True),
        sa.Column("peer_address", sa.Text(), server_default="", nullable=False),
        sa.Column("boot_id", sa.Text(), nullable=False),
        sa.Column("incarnation", sa.Text(), nullable=False),
        sa.Column("clean", sa.Boolean(), nullable=False),
        sa.Column("unfit_slots", sa.JSON(), server_default="[]", nullable=False),
        sa.Column("last_seen_at", UtcDateTime(), nullable=True),
        sa.Column("unreachable_since", UtcDateTime(), nullable=True),
        sa.Column("created_at", UtcDateTime(), nullable=False),
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
    op.create_index("ix_nodes_folded_name", "nodes", [sa.text("lower(name)")], unique=True)
    op.create_index(op.f("ix_nodes_class_name"), "nodes", ["class_name"])

    op.create_table(
        "notices",
        sa.Column("id", SERIAL, autoincrement=True, nullable=False),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("facts", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("sent_at", UtcDateTime(), nullable=True),
        sa.CheckConstraint("state IN ('waiting', 'sent', 'failed')", name=op.f("ck_notices_state")),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_notices_user_id_users")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_notices")),
    )
    op.create_index("ix_notices_state_id", "notices", ["state", "id"])
    op.create_index("ix_notices_user_id_id", "notices", ["user_id", "id"])

    op.create_table(
        "notification_choices",
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("channel", sa.String(length=20), nullable=False),
        sa.CheckConstraint(
            "channel IN ('mail', 'webhook', 'digest', 'off')",
            name=op.f("ck_notification_choices_channel"),
        ),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name=op.f("fk_notification_choices_user_id_users")
        ),
        sa.PrimaryKeyConstraint("user_id", "kind", name=op.f("pk_notification_choices")),
    )

    op.create_table(
        "policies",
        sa.Column("policy_id", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("active", sa.Boolean(), nullable=False),
        sa.Column("applied_by", sa.Text(), nullable=False),
        sa.Column("applied_at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["applied_by"], ["users.id"], name=op.f("fk_policies_applied_by_users")
        ),
        sa.PrimaryKeyConstraint("policy_id", "version", name=op.f("pk_policies")),
    )
    op.create_index(
        "uq_policies_active",
        "policies",
        ["policy_id"],
        unique=True,
        postgresql_where=sa.text("active"),
        sqlite_where=sa.text("active"),
    )

    op.create_table(
        "reports",
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.Column("made_at", UtcDateTime(), nullable=False),
        sa.Column("deleted_at", UtcDateTime(), nullable=True),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_reports_user_id_users")),
        sa.PrimaryKeyConstraint("sha256", name=op.f("pk_reports")),
    )
    op.create_index("ix_reports_user_id_made_at", "reports", ["user_id", "made_at"])

    op.create_table(
        "proofs",
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("node_id", sa.Text(), nullable=False),
        sa.Column("proven_at", UtcDateTime(), nullable=False),
        sa.Column("content", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["node_id"], ["nodes.id"], name=op.f("fk_proofs_node_id_nodes")),
        sa.PrimaryKeyConstraint("sha256", name=op.f("pk_proofs")),
    )
    op.create_index("ix_proofs_node_id_proven_at", "proofs", ["node_id", "proven_at"])

    op.create_table(
        "secrets",
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("sealed", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("updated_at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_secrets_user_id_users")),
        sa.PrimaryKeyConstraint("user_id", "name", name=op.f("pk_secrets")),
    )

    op.create_table(
        "studies",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.CheckConstraint("kind IN ('strong', 'weak', 'schedules')", name=op.f("ck_studies_kind")),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_studies_user_id_users")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_studies")),
    )
    op.create_index("ix_studies_user_id_id", "studies", ["user_id", "id"])

    op.create_table(
        "webhooks",
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("secret", sa.Text(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_webhooks_user_id_users")),
        sa.PrimaryKeyConstraint("user_id", name=op.f("pk_webhooks")),
    )

    op.create_table(
        "windows",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("policy_id", sa.Text(), nullable=False),
        sa.Column("pools", sa.JSON(), nullable=False),
        sa.Column("starts_at", UtcDateTime(), nullable=False),
        sa.Column("ends_at", UtcDateTime(), nullable=False),
        sa.Column("opens_at", UtcDateTime(), nullable=True),
        sa.Column("from_document", sa.Boolean(), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.CheckConstraint("starts_at < ends_at", name=op.f("ck_windows_time")),
        sa.ForeignKeyConstraint(
            ["created_by"], ["users.id"], name=op.f("fk_windows_created_by_users")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_windows")),
    )
    op.create_index(op.f("ix_windows_policy_id"), "windows", ["policy_id"])

    op.create_table(
        "calendar_feeds",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("node_id", sa.Text(), nullable=True),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("last_used_at", UtcDateTime(), nullable=True),
        sa.Column("revoked_at", UtcDateTime(), nullable=True),
        sa.ForeignKeyConstraint(
            ["node_id"], ["nodes.id"], name=op.f("fk_calendar_feeds_node_id_nodes")
        ),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name=op.f("fk_calendar_feeds_user_id_users")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_calendar_feeds")),
        sa.UniqueConstraint("sha256", name=op.f("uq_calendar_feeds_sha256")),
    )
    op.create_index(op.f("ix_calendar_feeds_user_id"), "calendar_feeds", ["user_id"])

    op.create_table(
        "deliveries",
        sa.Column("notice_id", SERIAL, autoincrement=False, nullable=False),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("channel", sa.String(length=20), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("due_at", UtcDateTime(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("claimed_until", UtcDateTime(), nullable=True),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("sent_at", UtcDateTime(), nullable=True),
        sa.CheckConstraint(
            "channel IN ('mail', 'webhook', 'digest', 'off')", name=op.f("ck_deliveries_channel")
        ),
        sa.CheckConstraint(
            "state IN ('waiting', 'sent', 'failed', 'kept')", name=op.f("ck_deliveries_state")
        ),
        sa.ForeignKeyConstraint(
            ["notice_id"], ["notices.id"], name=op.f("fk_deliveries_notice_id_notices")
        ),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name=op.f("fk_deliveries_user_id_users")
        ),
        sa.PrimaryKeyConstraint("notice_id", name=op.f("pk_deliveries")),
    )
    op.create_index("ix_deliveries_state_due_at", "deliveries", ["state", "due_at"])
    op.create_index(op.f("ix_deliveries_user_id"), "deliveries", ["user_id"])

    op.create_table(
        "leases",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("node_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("hold_start", UtcDateTime(), nullable=False),
        sa.Column("hold_end", UtcDateTime(), nullable=False),
        sa.Column("grace_s", sa.Integer(), nullable=False),
        sa.Column("checkpoint_s", sa.Integer(), server_default="600", nullable=False),
        sa.Column("kill_after_s", sa.Integer(), server_default="30", nullable=False),
        sa.Column("generation", sa.Integer(), server_default="0", nullable=False),
        sa.Column("together", sa.Text(), nullable=True),
        sa.Column("lab_id", sa.Text(), nullable=True),
        sa.Column("booked_node_id", sa.Text(), nullable=True),
        sa.Column("policy_id", sa.Text(), nullable=True),
        sa.Column("policy_version", sa.Integer(), nullable=True),
        sa.Column("verdict", sa.JSON(), nullable=True),
        sa.Column("protected", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("tags", sa.JSON(), server_default="[]", nullable=False),
        sa.Column("counts", sa.Boolean(), server_default=sa.true(), nullable=False),
        sa.Column("settled_as", sa.Text(), server_default="", nullable=False),
        sa.Column("charged_end", UtcDateTime(), nullable=True),
        sa.Column("charged_s", sa.Integer(), nullable=True),
        sa.Column("forfeited_end", UtcDateTime(), nullable=True),
        sa.Column("forfeited_at", UtcDateTime(), nullable=True),
        sa.Column("refund_if_rebooked", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("unusable_s", sa.Integer(), server_default="0", nullable=False),
        sa.Column("began_at", UtcDateTime(), nullable=True),
        sa.Column("ended_at", UtcDateTime(), nullable=True),
        sa.Column("cancelled_at", UtcDateTime(), nullable=True),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.CheckConstraint("kind IN ('booked', 'walk_in')", name=op.f("ck_leases_kind")),
        sa.CheckConstraint(
            "state IN ('booked', 'active', 'ending', 'ended', 'cancelled')",
            name=op.f("ck_leases_state"),
        ),
        sa.CheckConstraint("hold_start < hold_end", name=op.f("ck_leases_hold")),
        sa.ForeignKeyConstraint(
            ["booked_node_id"], ["nodes.id"], name=op.f("fk_leases_booked_node_id_nodes")
        ),
        sa.ForeignKeyConstraint(["lab_id"], ["labs.id"], name=op.f("fk_leases_lab_id_labs")),
        sa.ForeignKeyConstraint(["node_id"], ["nodes.id"], name=op.f("fk_leases_node_id_nodes")),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_leases_user_id_users")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_leases")),
    )
    op.create_index(op.f("ix_leases_forfeited_end"), "leases", ["forfeited_end"])
    op.create_index(op.f("ix_leases_lab_id"), "leases", ["lab_id"])
    op.create_index(op.f("ix_leases_node_id"), "leases", ["node_id"])
    op.create_index(op.f("ix_leases_state"), "leases", ["state"])
    op.create_index(op.f("ix_leases_together"), "leases", ["together"])
    op.create_index(op.f("ix_leases_user_id"), "leases", ["user_id"])

    op.create_table(
        "tokens",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=True),
        sa.Column("node_id", sa.Text(), nullable=True),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("scopes", sa.JSON(), server_default="[]", nullable=False),
        sa.Column("made_with", sa.Text(), nullable=True),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("expires_at", UtcDateTime(), nullable=True),
        sa.Column("last_used_at", UtcDateTime(), nullable=True),
        sa.Column("revoked_at", UtcDateTime(), nullable=True),
        sa.CheckConstraint("kind IN ('api', 'session', 'node')", name=op.f("ck_tokens_kind")),
        sa.CheckConstraint(
            "(user_id IS NULL) <> (node_id IS NULL)", name=op.f("ck_tokens_one_holder")
        ),
        sa.ForeignKeyConstraint(
            ["made_with"], ["tokens.id"], name=op.f("fk_tokens_made_with_tokens")
        ),
        sa.ForeignKeyConstraint(["node_id"], ["nodes.id"], name=op.f("fk_tokens_node_id_nodes")),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_tokens_user_id_users")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tokens")),
        sa.UniqueConstraint("sha256", name=op.f("uq_tokens_sha256")),
    )
    op.create_index(op.f("ix_tokens_made_with"), "tokens", ["made_with"])
    op.create_index(op.f("ix_tokens_node_id"), "tokens", ["node_id"])
    op.create_index(op.f("ix_tokens_user_id"), "tokens", ["user_id"])

    op.create_table(
        "waitlist",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("node_class", sa.Text(), nullable=True),
        sa.Column("node_id", sa.Text(), nullable=True),
        sa.Column("first_start", UtcDateTime(), nullable=False),
        sa.Column("last_start", UtcDateTime(), nullable=False),
        sa.Column("hours", sa.Integer(), nullable=False),
        sa.Column("priority", sa.Boolean(), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("queued_at", UtcDateTime(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.CheckConstraint(
            "state IN ('waiting', 'offered', 'served', 'left', 'over')",
            name=op.f("ck_waitlist_state"),
        ),
        sa.ForeignKeyConstraint(
            ["node_class"], ["node_classes.name"], name=op.f("fk_waitlist_node_class_node_classes")
        ),
        sa.ForeignKeyConstraint(["node_id"], ["nodes.id"], name=op.f("fk_waitlist_node_id_nodes")),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_waitlist_user_id_users")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_waitlist")),
    )
    op.create_index("ix_waitlist_state_place", "waitlist", ["state", "queued_at"])
    op.create_index(op.f("ix_waitlist_user_id"), "waitlist", ["user_id"])

    op.create_table(
        "agendas",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("lease_id", sa.Text(), nullable=False),
        sa.Column("side_by_side", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("on_failure", sa.String(length=20), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.CheckConstraint("on_failure IN ('go_on', 'stop')", name=op.f("ck_agendas_on_failure")),
        sa.ForeignKeyConstraint(
            ["lease_id"], ["leases.id"], name=op.f("fk_agendas_lease_id_leases")
        ),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_agendas_user_id_users")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_agendas")),
    )
    op.create_index(op.f("ix_agendas_lease_id"), "agendas", ["lease_id"])
    op.create_index("ix_agendas_user_id_id", "agendas", ["user_id", "id"])

    op.create_table(
        "appointments",
        sa.Column("id", SERIAL, autoincrement=True, nullable=False),
        sa.Column("lease_id", sa.Text(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("due_at", UtcDateTime(), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("claimed_by", sa.Text(), nullable=True),
        sa.Column("claim_expires_at", UtcDateTime(), nullable=True),
        sa.Column("kept_at", UtcDateTime(), nullable=True),
        sa.CheckConstraint(
            "kind IN ('begin', 'warn', 'reclaim', 'notify', 'stop', 'end')",
            name=op.f("ck_appointments_kind"),
        ),
        sa.CheckConstraint(
            "state IN ('due', 'claimed', 'kept', 'void')", name=op.f("ck_appointments_state")
        ),
        sa.ForeignKeyConstraint(
            ["lease_id"], ["leases.id"], name=op.f("fk_appointments_lease_id_leases")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_appointments")),
        sa.UniqueConstraint(
            "lease_id", "generation", "kind", "due_at", name=op.f("uq_appointments_lease_id")
        ),
    )
    op.create_index("ix_appointments_state_due_at", "appointments", ["state", "due_at"])

    op.create_table(
        "cleanup_rows",
        sa.Column("cleanup_id", sa.Text(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("lease_id", sa.Text(), nullable=False),
        sa.Column("code", sa.Text(), nullable=False),
        sa.Column("rule", sa.Text(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("version", sa.String(length=64), nullable=False),
        sa.Column("refund_hours", sa.Integer(), nullable=False),
        sa.Column("result", sa.String(length=20), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("restored_as", sa.Text(), nullable=True),
        sa.CheckConstraint(
            "result IN ('planned', 'spared', 'removed', 'skipped', 'restored', 'lost')",
            name=op.f("ck_cleanup_rows_result"),
        ),
        sa.ForeignKeyConstraint(
            ["cleanup_id"], ["cleanups.id"], name=op.f("fk_cleanup_rows_cleanup_id_cleanups")
        ),
        sa.ForeignKeyConstraint(
            ["lease_id"], ["leases.id"], name=op.f("fk_cleanup_rows_lease_id_leases")
        ),
        sa.ForeignKeyConstraint(
            ["restored_as"], ["leases.id"], name=op.f("fk_cleanup_rows_restored_as_leases")
        ),
        sa.PrimaryKeyConstraint("cleanup_id", "position", name=op.f("pk_cleanup_rows")),
    )
    op.create_index(op.f("ix_cleanup_rows_lease_id"), "cleanup_rows", ["lease_id"])

    op.create_table(
        "jobs",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("plan", sa.JSON(), nullable=False),
        sa.Column("dataset_id", sa.Text(), nullable=True),
        sa.Column("model_id", sa.Text(), nullable=True),
        sa.Column("code_sha256", sa.String(length=64), nullable=True),
        sa.Column("lease_id", sa.Text(), nullable=True),
        sa.Column("cloned_from", sa.Text(), nullable=True),
        sa.Column("traceparent", sa.Text(), nullable=True),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("desired", sa.String(length=20), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("reason_code", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("predicted_start", UtcDateTime(), nullable=True),
        sa.Column("not_before", UtcDateTime(), nullable=True),
        sa.Column("wall_time_s", sa.Integer(), nullable=False),
        sa.Column("used_s", sa.Integer(), nullable=False),
        sa.Column("infrastructure_failures", sa.Integer(), nullable=False),
        sa.Column("interruptions", sa.Integer(), nullable=False),
        sa.Column("steps", sa.Integer(), nullable=False),
        sa.Column("last_step", sa.Integer(), nullable=False),
        sa.Column("last_loss", sa.Double(), nullable=True),
        sa.Column("last_tokens_per_s", sa.Double(), nullable=True),
        sa.Column("result", sa.JSON(), nullable=True),
        sa.Column("certificate", sa.JSON(), nullable=True),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("queued_at", UtcDateTime(), nullable=True),
        sa.Column("started_at", UtcDateTime(), nullable=True),
        sa.Column("finished_at", UtcDateTime(), nullable=True),
        sa.CheckConstraint("desired IN ('run', 'pause', 'cancel')", name=op.f("ck_jobs_desired")),
        sa.CheckConstraint(
            "state IN ('queued', 'starting', 'running', 'stopping', 'paused', 'succeeded', 'failed', 'cancelled')",
            name=op.f("ck_jobs_state"),
        ),
        sa.ForeignKeyConstraint(
            ["code_sha256"], ["files.sha256"], name=op.f("fk_jobs_code_sha256_files")
        ),
        sa.ForeignKeyConstraint(
            ["dataset_id"], ["datasets.id"], name=op.f("fk_jobs_dataset_id_datasets")
        ),
        sa.ForeignKeyConstraint(["lease_id"], ["leases.id"], name=op.f("fk_jobs_lease_id_leases")),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name=op.f("fk_jobs_model_id_models")),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_jobs_user_id_users")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
    )
    op.create_index(op.f("ix_jobs_lease_id"), "jobs", ["lease_id"])
    op.create_index("ix_jobs_state", "jobs", ["state"])
    op.create_index("ix_jobs_user_id_id", "jobs", ["user_id", "id"])
    op.create_index("ix_jobs_user_id_state", "jobs", ["user_id", "state"])

    op.create_table(
        "links",
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=True),
        sa.Column("node_name", sa.Text(), nullable=True),
        sa.Column("node_class", sa.Text(), nullable=True),
        sa.Column("made_with", sa.Text(), nullable=True),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("expires_at", UtcDateTime(), nullable=False),
        sa.Column("used_at", UtcDateTime(), nullable=True),
        sa.CheckConstraint(
            "kind IN ('first_start', 'login', 'password', 'enrol', 'oidc')",
            name=op.f("ck_links_kind"),
        ),
        sa.ForeignKeyConstraint(
            ["made_with"], ["tokens.id"], name=op.f("fk_links_made_with_tokens")
        ),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_links_user_id_users")),
        sa.PrimaryKeyConstraint("sha256", name=op.f("pk_links")),
    )

    op.create_table(
        "offers",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("wait_id", sa.Text(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("node_id", sa.Text(), nullable=False),
        sa.Column("hold_start", UtcDateTime(), nullable=False),
        sa.Column("hold_end", UtcDateTime(), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("lease_id", sa.Text(), nullable=True),
        sa.Column("told_at", UtcDateTime(), nullable=True),
        sa.Column("expires_at", UtcDateTime(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.CheckConstraint(
            "state IN ('open', 'accepted', 'declined', 'expired')", name=op.f("ck_offers_state")
        ),
        sa.CheckConstraint("hold_start < hold_end", name=op.f("ck_offers_hold")),
        sa.ForeignKeyConstraint(
            ["lease_id"], ["leases.id"], name=op.f("fk_offers_lease_id_leases")
        ),
        sa.ForeignKeyConstraint(["node_id"], ["nodes.id"], name=op.f("fk_offers_node_id_nodes")),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_offers_user_id_users")),
        sa.ForeignKeyConstraint(
            ["wait_id"], ["waitlist.id"], name=op.f("fk_offers_wait_id_waitlist")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_offers")),
    )
    op.create_index("ix_offers_state_expires_at", "offers", ["state", "expires_at"])
    op.create_index(op.f("ix_offers_user_id"), "offers", ["user_id"])
    op.create_index(op.f("ix_offers_wait_id"), "offers", ["wait_id"])

    op.create_table(
        "agenda_jobs",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("agenda_id", sa.Text(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["agenda_id"], ["agendas.id"], name=op.f("fk_agenda_jobs_agenda_id_agendas")
        ),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_agenda_jobs_job_id_jobs")),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_agenda_jobs")),
    )
    op.create_index(op.f("ix_agenda_jobs_agenda_id"), "agenda_jobs", ["agenda_id"])

    op.create_table(
        "artifacts",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
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
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("deleted_at", UtcDateTime(), nullable=True),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_checkpoints_job_id_jobs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_checkpoints")),
        sa.UniqueConstraint("job_id", "epoch", "step", name=op.f("uq_checkpoints_job_id")),
    )

    op.create_table(
        "occupancy",
        sa.Column("id", SERIAL, autoincrement=True, nullable=False),
        sa.Column("node_id", sa.Text(), nullable=False),
        sa.Column("lease_id", sa.Text(), nullable=True),
        sa.Column("offer_id", sa.Text(), nullable=True),
        sa.Column("maintenance_id", sa.Text(), nullable=True),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("hold_start", UtcDateTime(), nullable=False),
        sa.Column("hold_end", UtcDateTime(), nullable=False),
        sa.Column("live", sa.Boolean(), nullable=False),
        sa.CheckConstraint(
            "kind IN ('lease', 'offer', 'maintenance', 'down')", name=op.f("ck_occupancy_kind")
        ),
        sa.CheckConstraint("hold_start < hold_end", name=op.f("ck_occupancy_hold")),
        sa.ForeignKeyConstraint(
            ["lease_id"], ["leases.id"], name=op.f("fk_occupancy_lease_id_leases")
        ),
        sa.ForeignKeyConstraint(
            ["maintenance_id"],
            ["maintenance.id"],
            name=op.f("fk_occupancy_maintenance_id_maintenance"),
        ),
        sa.ForeignKeyConstraint(["node_id"], ["nodes.id"], name=op.f("fk_occupancy_node_id_nodes")),
        sa.ForeignKeyConstraint(
            ["offer_id"], ["offers.id"], name=op.f("fk_occupancy_offer_id_offers")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_occupancy")),
    )
    op.create_index("ix_occupancy_hold_end", "occupancy", ["hold_end"])
    op.create_index(op.f("ix_occupancy_lease_id"), "occupancy", ["lease_id"])
    op.create_index(op.f("ix_occupancy_maintenance_id"), "occupancy", ["maintenance_id"])
    op.create_index("ix_occupancy_node_hold", "occupancy", ["node_id", "hold_end"])
    op.create_index(op.f("ix_occupancy_offer_id"), "occupancy", ["offer_id"])

    op.create_table(
        "study_jobs",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("study_id", sa.Text(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_study_jobs_job_id_jobs")),
        sa.ForeignKeyConstraint(
            ["study_id"], ["studies.id"], name=op.f("fk_study_jobs_study_id_studies")
        ),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_study_jobs")),
    )
    op.create_index(op.f("ix_study_jobs_study_id"), "study_jobs", ["study_id"])

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
        sa.Column("rendezvous", sa.JSON(), nullable=True),
        sa.Column("prepared_at", UtcDateTime(), nullable=True),
        sa.Column("stop_reason", sa.String(length=20), nullable=True),
        sa.Column("request", sa.JSON(), nullable=True),
        sa.Column("preflight", sa.JSON(), nullable=True),
        sa.Column("resume_checkpoint_id", sa.Text(), nullable=True),
        sa.Column("exit", sa.JSON(), nullable=True),
        sa.Column("files_kept", sa.Boolean(), nullable=False),
        sa.Column("assigned_at", UtcDateTime(), nullable=False),
        sa.Column("started_at", UtcDateTime(), nullable=True),
        sa.Column("first_step_at", UtcDateTime(), nullable=True),
        sa.Column("last_step_at", UtcDateTime(), nullable=True),
        sa.Column("ended_at", UtcDateTime(), nullable=True),
        sa.CheckConstraint(
            "outcome IS NULL OR outcome IN ('succeeded', 'user_error', 'diverged', 'out_of_memory', 'bad_data', 'bad_checkpoint', 'start_failed', 'gpu_failed', 'stalled', 'killed', 'time_limit', 'node_lost', 'shim_lost', 'preempted', 'lease_ended', 'paused', 'cancelled')",
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
    op.create_index(op.f("ix_attempts_lease_id"), "attempts", ["lease_id"])
    op.create_index("ix_attempts_state", "attempts", ["state"])
    op.create_index(
        "uq_attempts_live_job",
        "attempts",
        ["job_id"],
        unique=True,
        sqlite_where=sa.text("state <> 'exited'"),
        postgresql_where=sa.text("state <> 'exited'"),
    )

    op.create_table(
        "attempt_parts",
        sa.Column("attempt_id", sa.Text(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("node_id", sa.Text(), nullable=False),
        sa.Column("lease_id", sa.Text(), nullable=False),
        sa.Column("slots", sa.JSON(), nullable=False),
        sa.Column("phase", sa.String(length=20), nullable=True),
        sa.Column("boot_id", sa.Text(), nullable=False),
        sa.Column("missing_since", UtcDateTime(), nullable=True),
        sa.Column("exit", sa.JSON(), nullable=True),
        sa.Column("lost", sa.Text(), nullable=True),
        sa.Column("files_kept", sa.Boolean(), nullable=False),
        sa.Column("ended_at", UtcDateTime(), nullable=True),
        sa.CheckConstraint(
            "phase IS NULL OR phase IN ('preparing', 'ready', 'starting', 'running', 'stopping', 'exited')",
            name=op.f("ck_attempt_parts_phase"),
        ),
        sa.ForeignKeyConstraint(
            ["attempt_id"], ["attempts.id"], name=op.f("fk_attempt_parts_attempt_id_attempts")
        ),
        sa.ForeignKeyConstraint(
            ["lease_id"], ["leases.id"], name=op.f("fk_attempt_parts_lease_id_leases")
        ),
        sa.ForeignKeyConstraint(
            ["node_id"], ["nodes.id"], name=op.f("fk_attempt_parts_node_id_nodes")
        ),
        sa.PrimaryKeyConstraint("attempt_id", "position", name=op.f("pk_attempt_parts")),
    )
    op.create_index(op.f("ix_attempt_parts_lease_id"), "attempt_parts", ["lease_id"])
    op.create_index("ix_attempt_parts_node_id_ended_at", "attempt_parts", ["node_id", "ended_at"])

    op.create_table(
        "checkpoint_parts",
        sa.Column("attempt_id", sa.Text(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("files", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(
            ["attempt_id"], ["attempts.id"], name=op.f("fk_checkpoint_parts_attempt_id_attempts")
        ),
        sa.PrimaryKeyConstraint("attempt_id", "step", "position", name=op.f("pk_checkpoint_parts")),
    )

    op.create_table(
        "log_chunks",
        sa.Column("id", SERIAL, autoincrement=True, nullable=False),
        sa.Column("attempt_id", sa.Text(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("stream", sa.Text(), nullable=False),
        sa.Column("first_byte", sa.BigInteger(), nullable=False),
        sa.Column("first_line", sa.BigInteger(), nullable=False),
        sa.Column("at", UtcDateTime(), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["attempt_id"], ["attempts.id"], name=op.f("fk_log_chunks_attempt_id_attempts")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_log_chunks")),
    )
    op.create_index("ix_log_chunks_attempt_id_id", "log_chunks", ["attempt_id", "id"])
    op.create_index(
        "ix_log_chunks_stream", "log_chunks", ["attempt_id", "rank", "stream", "first_byte"]
    )

    op.create_table(
        "metric_chunks",
        sa.Column("id", SERIAL, autoincrement=True, nullable=False),
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
    op.create_index(
        "ix_metric_chunks_series", "metric_chunks", ["attempt_id", "key", "rank", "first_line"]
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

    _refuse_overlapping_holds()


def _refuse_overlapping_holds() -> None:
    """Let the database itself refuse two live holds of one node at one time."""
    if op.get_bind().dialect.name == "postgresql":
        op.execute("CREATE EXTENSION IF NOT EXISTS btree_gist")
        op.execute(
            "ALTER TABLE occupancy ADD CONSTRAINT one_holder EXCLUDE USING gist "
            "(node_id WITH =, tstzrange(hold_start, hold_end) WITH &&) WHERE (live)"
        )
        return
    for moment in ("INSERT", "UPDATE"):
        op.execute(
            f"CREATE TRIGGER one_holder_{moment.lower()} BEFORE {moment} ON occupancy "
            "WHEN NEW.live BEGIN SELECT RAISE(ABORT, 'one_holder') WHERE EXISTS ("
            "SELECT 1 FROM occupancy AS held WHERE held.node_id = NEW.node_id AND held.live "
            "AND held.hold_start < NEW.hold_end AND held.hold_end > NEW.hold_start "
            "AND held.id IS NOT NEW.id); END"
        )
