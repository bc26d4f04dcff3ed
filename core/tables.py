"""The database. These classes never leave the process: `api/schemas.py` is the public contract.

Times are UTC. Ids are `core.ids`, except of rows that only streams number. JSON columns hold what a
pydantic model dumped; the model is named beside them.
"""

from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    CheckConstraint,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from core.database import EnumText, UtcDateTime
from core.states import (
    AttemptState,
    Desired,
    JobState,
    LeaseState,
    NodeState,
    Outcome,
)
from strategies.trust.scaling import StudyKind

Document = dict[str, Any]
Serial = BigInteger().with_variant(Integer, "sqlite")


def one_of(column: str, enum: type[StrEnum]) -> str:
    """SQL that holds `column` to the values of `enum`."""
    values = ", ".join(f"'{member}'" for member in enum)
    return f"{column} IN ({values})"


class Role(StrEnum):
    """What a person may do; each includes the ones before."""

    USER = "user"
    STAFF = "staff"
    ADMIN = "admin"


class TokenKind(StrEnum):
    """How a bearer token came about."""

    API = "api"
    SESSION = "session"
    NODE = "node"


class LinkKind(StrEnum):
    """What a single-use secret opens."""

    FIRST_START = "first_start"
    LOGIN = "login"
    ENROL = "enrol"


class LeaseKind(StrEnum):
    """Booked on the hour grid, or walked in on a free node."""

    BOOKED = "booked"
    WALK_IN = "walk_in"


class OccupancyKind(StrEnum):
    """What may hold a node's hours."""

    LEASE = "lease"
    OFFER = "offer"
    MAINTENANCE = "maintenance"
    DOWN = "down"


ENUMS: tuple[type[StrEnum], ...] = (
    AttemptState,
    Desired,
    JobState,
    LeaseKind,
    LeaseState,
    LinkKind,
    NodeState,
    OccupancyKind,
    Outcome,
    Role,
    StudyKind,
    TokenKind,
)

COLUMN_TYPES: dict[Any, Any] = {datetime: UtcDateTime, Document: JSON(none_as_null=True), str: Text}
COLUMN_TYPES |= {enum: EnumText(enum) for enum in ENUMS}


class Base(DeclarativeBase):
    """All tables, with predictable constraint names."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_name)s",
            "uq": "uq_%(table_name)s_%(column_0_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = COLUMN_TYPES


# ---------------------------------------------------------------------------------------- people


class User(Base):
    """A person. Quotas are checked under a lock on this row."""

    __tablename__ = "users"
    __table_args__ = (CheckConstraint(one_of("role", Role), name="role"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    role: Mapped[Role]
    password_hash: Mapped[str | None]
    zone: Mapped[str] = mapped_column(default="UTC")
    """IANA name of the zone in which this person wants to see times."""
    disabled: Mapped[bool] = mapped_column(default=False)
    created_at: Mapped[datetime]


class Lab(Base):
    """A group of people who share a budget."""

    __tablename__ = "labs"

    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    created_at: Mapped[datetime]


class Membership(Base):
    """A person in a lab."""

    __tablename__ = "memberships"

    lab_id: Mapped[str] = mapped_column(ForeignKey("labs.id"), primary_key=True)
    user_id: Mapped[str] = mapped_column(ForeignKey("users.id"), primary_key=True, index=True)
    is_lead: Mapped[bool] = mapped_column(default=False)


class Token(Base):
    """A bearer token of a person or of a node; only its SHA-256 is kept."""

    __tablename__ = "tokens"
    __table_args__ = (
        CheckConstraint(one_of("kind", TokenKind), name="kind"),
        CheckConstraint("(user_id IS NULL) <> (node_id IS NULL)", name="one_holder"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    kind: Mapped[TokenKind]
    user_id: Mapped[str | None] = mapped_column(ForeignKey("users.id"), index=True)
    node_id: Mapped[str | None] = mapped_column(ForeignKey("nodes.id"), index=True)
    name: Mapped[str]
    sha256: Mapped[str] = mapped_column(String(64), unique=True)
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime | None]
    last_used_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]


class Link(Base):
    """A secret that works once: first start, login, enrolment of a node."""

    __tablename__ = "links"
    __table_args__ = (CheckConstraint(one_of("kind", LinkKind), name="kind"),)

    sha256: Mapped[str] = mapped_column(String(64), primary_key=True)
    kind: Mapped[LinkKind]
    user_id: Mapped[str | None] = mapped_column(ForeignKey("users.id"))
    node_name: Mapped[str | None]
    node_class: Mapped[str | None]
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime]
    used_at: Mapped[datetime | None]


class AuditEntry(Base):
    """Who did what; appended, never changed."""

    __tablename__ = "audit"

    id: Mapped[int] = mapped_column(Serial, primary_key=True, autoincrement=True)
    at: Mapped[datetime] = mapped_column(index=True)
    actor: Mapped[str]
    """Id of a user or node, or the name of a process."""
    action: Mapped[str]
    """Such as `node.drain`."""
    subject: Mapped[str]
    details: Mapped[Document]


class IdempotentAnswer(Base):
    """What a create answered, so that a repeated request gets the same answer."""

    __tablename__ = "idempotency"

    user_id: Mapped[str] = mapped_column(ForeignKey("users.id"), primary_key=True)
    key: Mapped[str] = mapped_column(String(200), primary_key=True)
    body_sha256: Mapped[str] = mapped_column(String(64))
    """Of method, path and body."""
    subject: Mapped[str]
    """Id of what was created; the answer is read from it again."""
    created_at: Mapped[datetime] = mapped_column(index=True)


# --------------------------------------------------------------------------------- nodes, leases


class NodeClass(Base):
    """Interchangeable nodes; a change of the hardware is a new version."""

    __tablename__ = "node_classes"

    name: Mapped[str] = mapped_column(primary_key=True)
    version: Mapped[int] = mapped_column(default=1)
    hardware: Mapped[Document]
    """`strategies.planning.planner.Hardware`"""


class Node(Base):
    """A machine with GPUs, or with CPU slots."""

    __tablename__ = "nodes"
    __table_args__ = (CheckConstraint(one_of("state", NodeState), name="state"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    class_name: Mapped[str] = mapped_column(ForeignKey("node_classes.name"), index=True)
    state: Mapped[NodeState]
    reason: Mapped[str] = mapped_column(default="")
    """Why it is in this state, in a sentence."""
    inventory: Mapped[Document]
    """`core.messages.Inventory`"""
    telemetry: Mapped[Document | None]
    """`core.messages.Telemetry`, the last one."""
    boot_id: Mapped[str] = mapped_column(default="")
    incarnation: Mapped[str] = mapped_column(default="")
    """Changes with every start of the worker."""
    clean: Mapped[bool] = mapped_column(default=False)
    """The node's last word: no process of a finished attempt is left on it."""
    last_seen_at: Mapped[datetime | None]
    unreachable_since: Mapped[datetime | None]
    """A condition, not a state: what cannot be seen is not dead."""
    created_at: Mapped[datetime]


class Lease(Base):
    """The exclusive use of a node by one user for hour blocks."""

    __tablename__ = "leases"
    __table_args__ = (
        CheckConstraint(one_of("state", LeaseState), name="state"),
        CheckConstraint(one_of("kind", LeaseKind), name="kind"),
        CheckConstraint("hold_start < hold_end", name="hold"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    user_id: Mapped[str] = mapped_column(ForeignKey("users.id"), index=True)
    node_id: Mapped[str] = mapped_column(ForeignKey("nodes.id"), index=True)
    kind: Mapped[LeaseKind]
    state: Mapped[LeaseState] = mapped_column(index=True)
    reason: Mapped[str] = mapped_column(default="")
    hold_start: Mapped[datetime]
    hold_end: Mapped[datetime]
    grace_s: Mapped[int]
    """Taken off the end of the hold; what is left is usable. Kept per row: a changed policy does
    not move what was sold."""
    created_at: Mapped[datetime]


class Occupancy(Base):
    """Who holds a whole node from when to when; the database refuses overlaps of live rows.

    PostgreSQL: exclusion constraint `one_holder`; SQLite: triggers of the same name (migrations).
    """

    __tablename__ = "occupancy"
    __table_args__ = (
        CheckConstraint(one_of("kind", OccupancyKind), name="kind"),
        CheckConstraint("hold_start < hold_end", name="hold"),
        Index("ix_occupancy_node_hold", "node_id", "hold_end"),
        Index("ix_occupancy_hold_end", "hold_end"),
    )

    id: Mapped[int] = mapped_column(Serial, primary_key=True, autoincrement=True)
    node_id: Mapped[str] = mapped_column(ForeignKey("nodes.id"))
    lease_id: Mapped[str | None] = mapped_column(ForeignKey("leases.id"), index=True)
    kind: Mapped[OccupancyKind]
    hold_start: Mapped[datetime]
    hold_end: Mapped[datetime]
    live: Mapped[bool] = mapped_column(default=True)


# ----------------------------------------------------------------------------- jobs and attempts


class Job(Base):
    """What a user asked for."""

    __tablename__ = "jobs"
    __table_args__ = (
        CheckConstraint(one_of("state", JobState), name="state"),
        CheckConstraint(one_of("desired", Desired), name="desired"),
        Index("ix_jobs_user_id_id", "user_id", "id"),
        Index("ix_jobs_user_id_state", "user_id", "state"),
        Index("ix_jobs_state", "state"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    user_id: Mapped[str] = mapped_column(ForeignKey("users.id"))
    name: Mapped[str]
    spec: Mapped[Document]
    """`core.spec.JobSpec`; never changes."""
    plan: Mapped[Document]
    """`strategies.planning.planner.Plan` for the class it was planned on; never changes."""
    dataset_id: Mapped[str | None] = mapped_column(ForeignKey("datasets.id"))
    """None for a built-in dataset."""
    model_id: Mapped[str | None] = mapped_column(ForeignKey("models.id"))
    """The uploaded model that training starts from, if any."""
    lease_id: Mapped[str | None] = mapped_column(ForeignKey("leases.id"), index=True)
    """The booked lease the owner named, if any."""
    cloned_from: Mapped[str | None]
    state: Mapped[JobState]
    desired: Mapped[Desired]
    epoch: Mapped[int] = mapped_column(default=0)
    """Number of the newest attempt; 0 before the first."""
    reason_code: Mapped[str]
    reason: Mapped[str]
    """Why it is in this state, in a sentence for its owner."""
    predicted_start: Mapped[datetime | None]
    not_before: Mapped[datetime | None]
    """Back-off after a failed start."""
    wall_time_s: Mapped[int]
    used_s: Mapped[int] = mapped_column(default=0)
    """Of the wall time, by attempts that have ended."""
    infrastructure_failures: Mapped[int] = mapped_column(default=0)
    interruptions: Mapped[int] = mapped_column(default=0)
    steps: Mapped[int]
    last_step: Mapped[int] = mapped_column(default=0)
    last_loss: Mapped[float | None]
    last_tokens_per_s: Mapped[float | None]
    result: Mapped[Document | None]
    """`strategies.run_directory.Result` of the attempt that succeeded."""
    certificate: Mapped[Document | None]
    """`strategies.trust.certificate.Certificate` of the newest attempt that began at step 1."""
    created_at: Mapped[datetime]
    queued_at: Mapped[datetime | None]
    """When its owner resumed it, which puts it behind those who wait already; None: `created_at`.
    What the platform queues again keeps its place."""
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]


class Study(Base):
    """Jobs that one user submitted together, to compare them."""

    __tablename__ = "studies"
    __table_args__ = (
        CheckConstraint(one_of("kind", StudyKind), name="kind"),
        Index("ix_studies_user_id_id", "user_id", "id"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    user_id: Mapped[str] = mapped_column(ForeignKey("users.id"))
    name: Mapped[str]
    kind: Mapped[StudyKind]
    created_at: Mapped[datetime]


class StudyJob(Base):
    """A job of a study."""

    __tablename__ = "study_jobs"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    study_id: Mapped[str] = mapped_column(ForeignKey("studies.id"), index=True)
    position: Mapped[int]
    """From 0, which the others are compared with."""


class Attempt(Base):
    """One try at running a job; its epoch fences every write about it."""

    __tablename__ = "attempts"
    __table_args__ = (
        CheckConstraint(one_of("state", AttemptState), name="state"),
        CheckConstraint(f"outcome IS NULL OR {one_of('outcome', Outcome)}", name="outcome"),
        UniqueConstraint("job_id", "epoch"),
        Index(
            "uq_attempts_live_job",
            "job_id",
            unique=True,
            sqlite_where=text("state <> 'exited'"),
            postgresql_where=text("state <> 'exited'"),
        ),
        Index("ix_attempts_node_state", "node_id", "state"),
        Index("ix_attempts_state", "state"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"))
    epoch: Mapped[int]
    node_id: Mapped[str] = mapped_column(ForeignKey("nodes.id"))
    lease_id: Mapped[str] = mapped_column(ForeignKey("leases.id"), index=True)
    state: Mapped[AttemptState]
    outcome: Mapped[Outcome | None]
    reason: Mapped[str] = mapped_column(default="")
    launcher: Mapped[str] = mapped_column(default="")
    """`torchrun` or `warm`, as the node reported."""
    boot_id: Mapped[str] = mapped_column(default="")
    stop_reason: Mapped[Outcome | None]
    """Why it was asked to stop, if it was."""
    request: Mapped[Document | None]
    """`core.messages.Request`, the newest."""
    resume_checkpoint_id: Mapped[str | None] = mapped_column(ForeignKey("checkpoints.id"))
    exit: Mapped[Document | None]
    """`core.messages.ExitRecord`"""
    files_kept: Mapped[bool] = mapped_column(default=False)
    """Exit, checkpoints, artifacts, metrics and logs are all here: the node may wipe its copy."""
    assigned_at: Mapped[datetime]
    missing_since: Mapped[datetime | None]
    """Time of the first heartbeat without it, if the last one was without it too. A condition:
    the API sets it, and clears it when the node lists the attempt again."""
    started_at: Mapped[datetime | None]
    first_step_at: Mapped[datetime | None]
    last_step_at: Mapped[datetime | None]
    ended_at: Mapped[datetime | None]


class Event(Base):
    """What happened to a job, lease or node, in order; appended, never changed."""

    __tablename__ = "events"
    __table_args__ = (Index("ix_events_subject_id", "subject", "id"),)

    id: Mapped[int] = mapped_column(Serial, primary_key=True, autoincrement=True)
    at: Mapped[datetime]
    subject: Mapped[str]
    """Id of the job, lease or node."""
    epoch: Mapped[int | None]
    kind: Mapped[str]
    """A past participle, such as `submitted`; for a change of state, the new state."""
    from_state: Mapped[str | None]
    to_state: Mapped[str | None]
    reason_code: Mapped[str] = mapped_column(default="")
    message: Mapped[str]
    """One sentence for a person."""
    actor: Mapped[str] = mapped_column(default="")


class Leadership(Base):
    """Which scheduler decides. The term rises with every change of holder and fences its writes."""

    __tablename__ = "leadership"

    name: Mapped[str] = mapped_column(primary_key=True)
    holder: Mapped[str]
    term: Mapped[int]
    expires_at: Mapped[datetime]


# ----------------------------------------------------------------------- files, metrics and logs


class StoredFile(Base):
    """A file in the store, by content."""

    __tablename__ = "files"

    sha256: Mapped[str] = mapped_column(String(64), primary_key=True)
    size: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[datetime]


class Dataset(Base):
    """A user's text, JSON lines or images, uploaded and checked."""

    __tablename__ = "datasets"
    __table_args__ = (UniqueConstraint("user_id", "name"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    user_id: Mapped[str] = mapped_column(ForeignKey("users.id"))
    name: Mapped[str]
    format: Mapped[str]
    """`text`, `jsonl` or `npz`"""
    sha256: Mapped[str] = mapped_column(ForeignKey("files.sha256"))
    """Of the bytes that training reads: UTF-8 text, or an archive of arrays."""
    size: Mapped[int] = mapped_column(BigInteger)
    report: Mapped[Document]
    """Lines, characters, warnings with line numbers; of images what they are, as `images`."""
    deleted_at: Mapped[datetime | None]
    created_at: Mapped[datetime]


class Model(Base):
    """A user's Hugging Face model, uploaded and checked."""

    __tablename__ = "models"
    __table_args__ = (UniqueConstraint("user_id", "name"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    user_id: Mapped[str] = mapped_column(ForeignKey("users.id"))
    name: Mapped[str]
    size: Mapped[int] = mapped_column(BigInteger)
    files: Mapped[list[Document]] = mapped_column(JSON)
    """`core.messages.FileRef` of each file of its folder."""
    config: Mapped[str]
    """Its config.json."""
    has_tokenizer: Mapped[bool]
    deleted_at: Mapped[datetime | None]
    created_at: Mapped[datetime]


class Checkpoint(Base):
    """A verified checkpoint of an attempt whose files are all in the store."""

    __tablename__ = "checkpoints"
    __table_args__ = (UniqueConstraint("job_id", "epoch", "step"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"))
    epoch: Mapped[int]
    step: Mapped[int]
    size: Mapped[int] = mapped_column(BigInteger)
    files: Mapped[list[Document]] = mapped_column(JSON)
    """`core.messages.FileRef` of each file, `manifest.json` among them."""
    created_at: Mapped[datetime]


class Artifact(Base):
    """A file that an attempt left behind: a sample, exported weights, a profile."""

    __tablename__ = "artifacts"
    __table_args__ = (UniqueConstraint("job_id", "epoch", "path"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"))
    epoch: Mapped[int]
    path: Mapped[str]
    sha256: Mapped[str] = mapped_column(ForeignKey("files.sha256"))
    size: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[datetime]


class StreamCursor(Base):
    """How far an attempt's stream has been stored; what makes a replay harmless."""

    __tablename__ = "stream_cursors"

    attempt_id: Mapped[str] = mapped_column(ForeignKey("attempts.id"), primary_key=True)
    stream: Mapped[str] = mapped_column(primary_key=True)
    """`metrics/<rank>`, `stdout/<rank>` or `stderr/<rank>`."""
    position: Mapped[int] = mapped_column(BigInteger, default=0)
    """The next metrics line, or the next byte of a log."""


class MetricChunk(Base):
    """Consecutive points of one series, packed: no row per point."""

    __tablename__ = "metric_chunks"
    __table_args__ = (Index("ix_metric_chunks_series", "attempt_id", "key", "rank", "first_line"),)

    id: Mapped[int] = mapped_column(Serial, primary_key=True, autoincrement=True)
    attempt_id: Mapped[str] = mapped_column(ForeignKey("attempts.id"))
    rank: Mapped[int]
    key: Mapped[str]
    first_line: Mapped[int] = mapped_column(BigInteger)
    count: Mapped[int]
    steps: Mapped[bytes] = mapped_column(LargeBinary)
    """int64 little-endian, deflated."""
    values: Mapped[bytes] = mapped_column(LargeBinary)
    """float64 little-endian."""


class LogChunk(Base):
    """A piece of one rank's output, in order."""

    __tablename__ = "log_chunks"
    __table_args__ = (
        Index("ix_log_chunks_stream", "attempt_id", "rank", "stream", "first_byte"),
        Index("ix_log_chunks_attempt_id_id", "attempt_id", "id"),
    )

    id: Mapped[int] = mapped_column(Serial, primary_key=True, autoincrement=True)
    attempt_id: Mapped[str] = mapped_column(ForeignKey("attempts.id"))
    rank: Mapped[int]
    """-1 for the launcher's own output."""
    stream: Mapped[str]
    """`stdout` or `stderr`"""
    first_byte: Mapped[int] = mapped_column(BigInteger)
    first_line: Mapped[int] = mapped_column(BigInteger)
    at: Mapped[datetime]
    content: Mapped[str]
