"""Files that were uploaded or trained, and the datasets, models, checkpoints made of them."""

from datetime import datetime

from sqlalchemy import JSON, BigInteger, ForeignKey, Index, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from core.tables.base import Base, Document


class StoredFile(Base):
    """A file in the store, by content."""

    __tablename__ = "files"

    sha256: Mapped[str] = mapped_column(String(64), primary_key=True)
    size: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[datetime]
    named_at: Mapped[datetime | None]
    """Last time a row came to need the file, if later than `created_at`. A file that no row names,
    or has named for a day, may be removed."""
    gone_at: Mapped[datetime | None]
    """Time of its removal from the store, because nothing needed it any more."""


class Dataset(Base):
    """A user's text, JSON lines or images, uploaded and checked."""

    __tablename__ = "datasets"
    __table_args__ = (UniqueConstraint("user_id", "name"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    user_id: Mapped[str] = mapped_column(ForeignKey("users.id"))
    name: Mapped[str]
    format: Mapped[str]
    """`text`, `jsonl`, `npz`, `parquet` or `arrow`: of every file."""
    files: Mapped[list[Document] | None] = mapped_column(JSON(none_as_null=True))
    """`core.wire.messages.FileRef` of each file, sorted by path; None if it has one only."""
    sha256: Mapped[str] = mapped_column(ForeignKey("files.sha256"))
    """SHA-256 of its only file; of several, `core.spec.inputs.tree_sha256`, whose listing is in the
    store."""
    size: Mapped[int] = mapped_column(BigInteger)
    report: Mapped[Document]
    """Lines, characters, warnings with line numbers; for images their properties, as `images`."""
    origin: Mapped[Document | None]
    """Job and epoch that fetched it, and `hub`, `owner/name@COMMIT`; None if it was uploaded."""
    deleted_at: Mapped[datetime | None]
    created_at: Mapped[datetime]


class Upload(Base):
    """A file that arrives in parts. It becomes one of a dataset's or model's, or a code archive."""

    __tablename__ = "uploads"
    __table_args__ = (UniqueConstraint("user_id", "fingerprint"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    user_id: Mapped[str] = mapped_column(ForeignKey("users.id"))
    fingerprint: Mapped[str]
    """The sender's own mark of the content: the same mark finds the upload that was broken off."""
    path: Mapped[str]
    """Path of the file within what it is for, such as `train/00003.jsonl`."""
    format: Mapped[str]
    """Check that it must pass: that of a dataset of this format; `file` for none."""
    size: Mapped[int] = mapped_column(BigInteger)
    received: Mapped[int] = mapped_column(BigInteger, default=0)
    """Bytes that are safe on the disk. Only the request that began at this number may raise it."""
    sha256: Mapped[str | None] = mapped_column(String(64))
    """Hash of the whole; None until it has arrived and passed its check."""
    report: Mapped[Document | None]
    touched_at: Mapped[datetime]
    """Last time that bytes arrived."""
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
    """`core.wire.messages.FileRef` of each file of its folder."""
    config: Mapped[str]
    """Content of its config.json."""
    has_tokenizer: Mapped[bool]
    version: Mapped[int] = mapped_column(default=1, server_default="1")
    """Number among the models that have had this name; the newest has it, others are NAME@1."""
    origin: Mapped[Document | None]
    """Job, step and epoch of the checkpoint that it was promoted from; of a model from the hub the
    job that fetched it, and `hub`, its `owner/name@COMMIT`. None if it was uploaded."""
    deleted_at: Mapped[datetime | None]
    created_at: Mapped[datetime]


class Tokenizer(Base):
    """A user's own tokenizer, uploaded or made by a job."""

    __tablename__ = "tokenizers"
    __table_args__ = (UniqueConstraint("user_id", "name"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    user_id: Mapped[str] = mapped_column(ForeignKey("users.id"))
    name: Mapped[str]
    size: Mapped[int] = mapped_column(BigInteger)
    files: Mapped[list[Document]] = mapped_column(JSON)
    """`core.wire.messages.FileRef` of each file, `tokenizer.json` among them."""
    vocabulary_size: Mapped[int]
    job_id: Mapped[str | None] = mapped_column(ForeignKey("jobs.id"))
    """Job that made it; None if it was uploaded."""
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
    """`core.wire.messages.FileRef` of each file, `manifest.json` among them; empty once deleted."""
    created_at: Mapped[datetime]
    deleted_at: Mapped[datetime | None]
    """Time at which retention deleted it. Attempts that resumed from it still point here."""


class CheckpointPart(Base):
    """One node's files of a checkpoint of several nodes; complete when all nodes sent theirs."""

    __tablename__ = "checkpoint_parts"

    attempt_id: Mapped[str] = mapped_column(ForeignKey("attempts.id"), primary_key=True)
    step: Mapped[int] = mapped_column(primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    files: Mapped[list[Document]] = mapped_column(JSON)
    """`core.wire.messages.FileRef` of each file of this node's, its manifest among them."""


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
    position: Mapped[int] = mapped_column(default=0, server_default="0")
    """Position of the node that left it among those of the attempt."""
    created_at: Mapped[datetime]


class Report(Base):
    """Report about some jobs at one moment; never changed, named by its own hash.

    When its owner deletes it, only the hash stays: a copy that was handed in can still be checked.
    """

    __tablename__ = "reports"
    __table_args__ = (Index("ix_reports_user_id_made_at", "user_id", "made_at"),)

    sha256: Mapped[str] = mapped_column(String(64), primary_key=True)
    """SHA-256 of `content`, in hex."""
    user_id: Mapped[str] = mapped_column(ForeignKey("users.id"))
    title: Mapped[str]
    content: Mapped[str]
    """`api.studies.schemas_reports.ReportContent` as canonical JSON: sorted keys, no spaces, UTF-8.

    Empty once it is deleted.
    """
    made_at: Mapped[datetime]
    deleted_at: Mapped[datetime | None] = mapped_column(default=None)
