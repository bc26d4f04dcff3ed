"""Jobs, their attempts and events, and studies of several jobs."""

from datetime import datetime

from sqlalchemy import (
    JSON,
    BigInteger,
    CheckConstraint,
    ForeignKey,
    Index,
    String,
    UniqueConstraint,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column

from core.spec.inputs import InputKind
from core.states import AttemptState, Desired, JobState, Outcome, Phase
from core.tables.base import Base, Document, Serial, one_of, partial_index
from core.tables.kinds import WorkspaceAccess
from strategies.plan.trust.scaling import StudyKind


class Job(Base):
    """A user's request to train a model or run a script, and its state."""

    __tablename__ = "jobs"
    __table_args__ = (
        CheckConstraint(one_of("state", JobState), name="state"),
        CheckConstraint(one_of("desired", Desired), name="desired"),
        Index("ix_jobs_user_id_id", "user_id", "id"),
        Index("ix_jobs_user_id_state", "user_id", "state"),
        Index("ix_jobs_state", "state"),
        partial_index("ix_jobs_report_when_ended", "id", where="report_when_ended"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    user_id: Mapped[str] = mapped_column(ForeignKey("users.id"))
    name: Mapped[str]
    spec: Mapped[Document]
    """`core.spec.spec.JobSpec` or `ScriptJobSpec`; never changes."""
    plan: Mapped[Document]
    """`core.spec.spec.AnyPlan` for the class it was planned on; never changes."""
    dataset_id: Mapped[str | None] = mapped_column(ForeignKey("datasets.id"))
    """Uploaded dataset; None for a built-in one."""
    model_id: Mapped[str | None] = mapped_column(ForeignKey("models.id"))
    tokenizer_id: Mapped[str | None]
    """`core.tables.files.Tokenizer` of its own that a recipe trains with."""
    """The uploaded model that training starts from, if any."""
    code_sha256: Mapped[str | None] = mapped_column(ForeignKey("files.sha256"))
    """The archive of code that a script's job runs."""
    lease_id: Mapped[str | None] = mapped_column(ForeignKey("leases.id"), index=True)
    """The booked lease the owner named, if any."""
    cloned_from: Mapped[str | None]
    tags: Mapped[list[str]] = mapped_column(JSON, default=list, server_default="[]")
    """Words by which its owner finds it: those of the spec until they are changed."""
    report_when_ended: Mapped[bool] = mapped_column(default=False, server_default=text("false"))
    """True while a report is to be written at its end; no longer once it is written."""
    report_sha256: Mapped[str | None] = mapped_column(String(64))
    """The report that was written at its end, unless its owner has deleted it."""
    traceparent: Mapped[str | None]
    """Trace of its submission in the format of W3C Trace Context, if it has one."""
    state: Mapped[JobState]
    desired: Mapped[Desired]
    epoch: Mapped[int] = mapped_column(default=0)
    """Number of the newest attempt; 0 before the first."""
    reason_code: Mapped[str]
    reason: Mapped[str]
    """Reason for its state, in a sentence for its owner."""
    predicted_start: Mapped[datetime | None]
    not_before: Mapped[datetime | None]
    """Earliest next start: the back-off after a failed start."""
    wall_time_s: Mapped[int]
    used_s: Mapped[int] = mapped_column(default=0)
    """Seconds of the wall time used by attempts that have ended."""
    infrastructure_failures: Mapped[int] = mapped_column(default=0)
    interruptions: Mapped[int] = mapped_column(default=0)
    steps: Mapped[int]
    last_step: Mapped[int] = mapped_column(default=0)
    last_loss: Mapped[float | None]
    last_tokens_per_s: Mapped[float | None]
    result: Mapped[Document | None]
    """`strategies.plan.run_directory.Result` of the attempt that succeeded."""
    certificate: Mapped[Document | None]
    """`strategies.plan.trust.certificate.Certificate` of the newest attempt begun at step 1."""
    created_at: Mapped[datetime]
    queued_at: Mapped[datetime | None]
    """Time at which its owner resumed it, which puts it behind the jobs that wait already.

    None: `created_at`. A job that the platform queues again keeps its place.
    """
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]


class JobInput(Base):
    """An input of a script's job, resolved to exact files when the job was submitted."""

    __tablename__ = "job_inputs"
    __table_args__ = (CheckConstraint(one_of("kind", InputKind), name="kind"),)

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    """Position in the spec, from 0."""
    kind: Mapped[InputKind]
    name: Mapped[str]
    """Name by which the program asks for it."""
    source_id: Mapped[str]
    """Id of the dataset, model or checkpoint, which may be deleted by now."""
    source: Mapped[str]
    """Name of the dataset or model, or `JOB/step-N`, when the job was submitted."""
    sha256: Mapped[str] = mapped_column(String(64))
    """`core.spec.inputs.tree_sha256` of its files."""
    size: Mapped[int] = mapped_column(BigInteger)
    files: Mapped[list[Document]] = mapped_column(JSON)
    """`core.wire.messages.FileRef` of each file."""


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
    """Position from 0; the other jobs are compared with the first."""


class Attempt(Base):
    """One try at running a job; its epoch fences every write about it."""

    __tablename__ = "attempts"
    __table_args__ = (
        CheckConstraint(one_of("state", AttemptState), name="state"),
        CheckConstraint(f"outcome IS NULL OR {one_of('outcome', Outcome)}", name="outcome"),
        UniqueConstraint("job_id", "epoch"),
        partial_index("uq_attempts_live_job", "job_id", unique=True, where="state <> 'exited'"),
        Index("ix_attempts_state", "state"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"))
    epoch: Mapped[int]
    node_id: Mapped[str] = mapped_column(ForeignKey("nodes.id"))
    """The first of its nodes, where rank 0 runs and all ranks meet; `AttemptPart` has every one."""
    lease_id: Mapped[str] = mapped_column(ForeignKey("leases.id"), index=True)
    """Lease on the first node."""
    state: Mapped[AttemptState]
    outcome: Mapped[Outcome | None]
    reason: Mapped[str] = mapped_column(default="")
    launcher: Mapped[str] = mapped_column(default="")
    """`torchrun` or `warm`, as the node reported."""
    rendezvous: Mapped[Document | None]
    """`core.wire.messages.Rendezvous`: where ranks of several nodes meet."""
    prepared_at: Mapped[datetime | None]
    """Time at which each of several nodes had all that it needs, so that the ranks could be
    started."""
    stop_reason: Mapped[Outcome | None]
    """Reason why it was asked to stop, if it was."""
    request: Mapped[Document | None]
    """`core.wire.messages.Request`, the newest."""
    preflight: Mapped[Document | None]
    """`strategies.plan.trust.preflight_report.Report`, where it did one."""
    resume_checkpoint_id: Mapped[str | None] = mapped_column(ForeignKey("checkpoints.id"))
    workspace_access: Mapped[WorkspaceAccess | None]
    """Access to its owner's workspace; None: the job asks for none."""
    workspace_snapshot_id: Mapped[str | None]
    """Snapshot of the workspace that it begins with; None: an empty one."""
    held_until: Mapped[datetime | None]
    """Time until which the sandbox of this attempt, which has failed, is held for its owner. The
    attempt is live until then."""
    held_outcome: Mapped[Outcome | None]
    """Outcome that it has when it is no longer held."""
    idle_since: Mapped[datetime | None]
    """Time since which it is a workbench that is idle; None: it is in use, or is none."""
    gpus_used_at: Mapped[datetime | None]
    """Time at which the GPUs of a workbench were last seen in use, by itself and not by a guest."""
    gpu_held_gib: Mapped[float | None]
    """Most memory in use on one of the GPUs of a workbench that is idle, before guests are there;
    0 without GPUs. None: not seen since it is idle."""
    exit: Mapped[Document | None]
    """`core.wire.messages.ExitRecord`, judged from those of all its nodes."""
    files_kept: Mapped[bool] = mapped_column(default=False)
    """True if exit, checkpoints, artifacts, metrics and logs of all its nodes are here."""
    assigned_at: Mapped[datetime]
    started_at: Mapped[datetime | None]
    first_step_at: Mapped[datetime | None]
    last_step_at: Mapped[datetime | None]
    ended_at: Mapped[datetime | None]


class AttemptPart(Base):
    """An attempt on one node. Most attempts have one; one over several nodes has one on each."""

    __tablename__ = "attempt_parts"
    __table_args__ = (
        CheckConstraint(f"phase IS NULL OR {one_of('phase', Phase)}", name="phase"),
        Index("ix_attempt_parts_node_id_ended_at", "node_id", "ended_at"),
    )

    attempt_id: Mapped[str] = mapped_column(ForeignKey("attempts.id"), primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    """Position from 0, which is the first node: torchrun's node rank."""
    node_id: Mapped[str] = mapped_column(ForeignKey("nodes.id"))
    lease_id: Mapped[str] = mapped_column(ForeignKey("leases.id"), index=True)
    slots: Mapped[list[int]] = mapped_column(JSON)
    """Indices of the GPUs, or CPU slots, that its ranks have on this node, one for each."""
    phase: Mapped[Phase | None]
    """Phase last reported by the node; None before it has taken the attempt up."""
    boot_id: Mapped[str] = mapped_column(default="")
    missing_since: Mapped[datetime | None]
    """Time of the first heartbeat without it, if the last one was without it too. A condition:
    the API sets it, and clears it when the node lists the attempt again."""
    exit: Mapped[Document | None]
    """`core.wire.messages.ExitRecord` of this node"""
    hosts: Mapped[list[Document] | None] = mapped_column(JSON)
    """`core.wire.messages.HostUse` of each host that it has reached from this node, or tried to."""
    lost: Mapped[str | None]
    """Reason why it was declared lost, in a sentence, if it was."""
    has_output: Mapped[bool] = mapped_column(default=False, server_default=text("false"))
    """True if a script has put a file into its output on this node, not the first."""
    files_kept: Mapped[bool] = mapped_column(default=False)
    """True if all of this node's exit, checkpoints, artifacts, metrics and logs is here: it may
    wipe its copy."""
    ended_at: Mapped[datetime | None]
    """Time from which its slots are free, once the node is clean."""


class Event(Base):
    """Event in the life of a job, lease or node, in order; appended, never changed."""

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
