"""Files that nodes bring and fetch."""

from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from api.files import store as storage
from api.files.dataset_files import files_of
from api.files.store import Store
from api.nodes.fetching_ahead import wanted_ahead
from api.web.bells import Bells
from api.web.identity import NodeIdentity
from api.web.process import Process
from core.base.errors import Conflict
from core.states import LIVE_ATTEMPT
from core.tables.files import Checkpoint, Dataset, Model, StoredFile, Tokenizer
from core.tables.jobs import Attempt, AttemptPart, Job, JobInput
from core.tables.workspaces import WorkspaceSnapshot
from core.workspaces.snapshots import named_by


def keep_file(session: Session, _: Bells, incoming: storage.IncomingFile) -> None:
    """Keep a sealed file, and name it in a row."""
    storage.keep(session, incoming)


def stored_size(process: Process, sha256: str) -> int | None:
    """Return the bytes of a stored file; None if the store has none of this hash."""
    with process.read() as session:
        return session.scalar(
            select(StoredFile.size).where(StoredFile.sha256 == sha256, StoredFile.gone_at.is_(None))
        )


def may_bring(process: Process, node: NodeIdentity, sha256: str) -> bool:
    """Return True if the file is in the store already.

    Raises Conflict if the node has no attempt whose files are still to be kept.
    """
    with process.read() as session:
        if not has_files_to_bring(session, node):
            raise Conflict(f"{node.name} has no attempt with files that are still to be uploaded.")
    return stored_size(process, sha256) is not None and process.service(Store).has(sha256)


def has_files_to_bring(session: Session, node: NodeIdentity) -> bool:
    """Return True if files of an attempt of this node are still to be uploaded."""
    query = select(AttemptPart.attempt_id).where(
        AttemptPart.node_id == node.id, AttemptPart.files_kept.is_(False)
    )
    return session.scalar(query.limit(1)) is not None


def needed(session: Session, node: NodeIdentity, *, now: datetime) -> set[str]:
    """Return the hashes of the files that a node's live attempts read, or those that it fetches
    ahead: datasets, code, models, checkpoints, inputs."""
    here = select(AttemptPart.attempt_id).where(
        AttemptPart.node_id == node.id, AttemptPart.ended_at.is_(None)
    )
    live = Attempt.id.in_(here) & Attempt.state.in_(LIVE_ATTEMPT)
    datasets = session.scalars(
        select(Dataset)
        .join(Job, Job.dataset_id == Dataset.id)
        .join(Attempt, (Attempt.job_id == Job.id) & (Attempt.epoch == Job.epoch))
        .where(live)
    )
    models = session.scalars(
        select(Model.files)
        .join(Job, Job.model_id == Model.id)
        .join(Attempt, (Attempt.job_id == Job.id) & (Attempt.epoch == Job.epoch))
        .where(live)
    )
    tokenizers = session.scalars(
        select(Tokenizer.files)
        .join(Job, Job.tokenizer_id == Tokenizer.id)
        .join(Attempt, (Attempt.job_id == Job.id) & (Attempt.epoch == Job.epoch))
        .where(live)
    )
    checkpoints = session.scalars(
        select(Checkpoint.files)
        .join(Attempt, Attempt.resume_checkpoint_id == Checkpoint.id)
        .where(live)
    )
    code = session.scalars(
        select(Job.code_sha256)
        .join(Attempt, (Attempt.job_id == Job.id) & (Attempt.epoch == Job.epoch))
        .where(live, Job.code_sha256.is_not(None))
    )
    inputs = session.scalars(
        select(JobInput.files)
        .join(Attempt, Attempt.job_id == JobInput.job_id)
        .join(Job, (Job.id == Attempt.job_id) & (Job.epoch == Attempt.epoch))
        .where(live)
    )
    workspaces = session.scalars(
        select(WorkspaceSnapshot)
        .join(Attempt, Attempt.workspace_snapshot_id == WorkspaceSnapshot.id)
        .where(live)
    )
    folders = [*models, *tokenizers, *checkpoints, *inputs]
    folders += [[file.model_dump() for file in files_of(dataset)] for dataset in datasets]
    ahead = wanted_ahead(session, node.id, now=now).inputs
    return {*(sha256 for sha256 in code if sha256)} | {
        *(file["sha256"] for files in folders for file in files),
        *(sha256 for snapshot in workspaces for sha256 in named_by(snapshot)),
        *(file.sha256 for one in ahead for file in one.files),
    }
