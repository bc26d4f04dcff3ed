"""Retention: deletion of things that are too old or too much, and of files without a name in a row.

Every deletion is a transaction of its own together with its event, so that a process that dies half
way has deleted a part and recorded all of that part. `core.jobs.retention` decides.
"""

import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog
from sqlalchemy import ColumnElement, CursorResult, and_, delete, exists, func, or_, select, update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from api.files.dataset_files import files_of
from api.files.inventory import differences
from api.files.storage_use import holders
from api.files.store import Store, name_found
from api.web import audit
from core.base.clock import utc_now
from core.base.reasons import ReasonCode
from core.base.words import size_text
from core.database.database import Database
from core.jobs.retention import (
    EndedJob,
    ExpiredData,
    RetentionLimits,
    StoredCheckpoint,
    Surplus,
    Thing,
    expired,
    surplus,
    warning,
)
from core.leases.situation import lock_user
from core.notices.notices import NoticeKind, notify
from core.process import read_only
from core.process.claims import claim, holds, take_over
from core.process.settings import ApiSettings
from core.spec.template import scripts_in
from core.states import TERMINAL_JOB
from core.tables.files import (
    Artifact,
    Checkpoint,
    CheckpointPart,
    Dataset,
    Model,
    StoredFile,
    Tokenizer,
)
from core.tables.jobs import Attempt, Job, JobInput
from core.tables.notices import Notice
from core.tables.scripts import CodeArchive
from core.tables.telemetry import LogChunk, MetricChunk
from core.tables.templates import Template
from core.tables.workspaces import WorkspaceSnapshot
from core.transitions import note
from core.workspaces import snapshots

ACTOR = "retention"
CHORE = "retention"
BACKUP = "backup"  # holder of the chore while a backup is made
HELD_OFF = timedelta(minutes=15)
RENEWED_EVERY_S = 60.0
EVERY = timedelta(hours=5)  # each API looks every 6 hours
JOBS_AT_ONCE = 200
UNNAMED = timedelta(days=1)  # a file may come long before the row that names it: large uploads
WARN_EVERY = timedelta(days=7)

log = structlog.get_logger()


class _MustRest(Exception):
    """A backup is running, or the platform is read-only."""


@dataclass(frozen=True)
class Retention:
    """The retention chore of one API process."""

    database: Database
    store: Store
    settings: ApiSettings
    holder: str
    """Name of this process, under which it claims the chore."""

    def run(self, now: datetime) -> bool:
        """Delete everything that is due.

        Returns False if an API did this within EVERY, if a backup holds it off, or if the platform
        is read-only; the chore may then be done in part.
        """
        with self.database.write() as session:
            if read_only.state(session, now=now) is not None:
                return False
            if not claim(session, CHORE, holder=self.holder, now=now, lasts=EVERY):
                return False
        limits = limits_of(self.settings)
        try:
            for thing in Thing:
                self._forget_old(thing, limits, now)
            self._forget_code(now)
            self._forget_snapshots(now)
            self._make_room(now)
            self._name_found(now)
            self._sweep(now)
        except _MustRest:
            log.info("retention_rests")
            return False
        return True

    @contextmanager
    def _write(self, now: datetime) -> Iterator[Session]:
        """Yield a transaction of this chore. Raises _MustRest during a backup or if read-only."""
        with self.database.write() as session:
            if not holds(session, CHORE, holder=self.holder):
                raise _MustRest
            if read_only.state(session, now=now) is not None:
                raise _MustRest
            yield session

    def _forget_old(self, thing: Thing, limits: RetentionLimits, now: datetime) -> None:
        age = limits.ages.get(thing)
        if age is None:
            return
        while True:
            with self.database.read() as session:
                jobs = list(_ended_with(session, thing, before=now - age))
            due = list(expired(jobs, limits, now))
            for one in due:
                with self._write(now) as session:
                    forget(session, one, now=now)
            if len(jobs) < JOBS_AT_ONCE:
                return

    def _forget_code(self, now: datetime) -> None:
        """Delete the archives that no job has used for `keep_code_days`; audit their number."""
        if not self.settings.keep_code_days:
            return
        since = now - timedelta(days=self.settings.keep_code_days)
        with self.database.read() as session:
            unused = _unused_code(since, needed=code_of_templates(session))
            owners = session.scalars(select(CodeArchive.user_id).where(unused).distinct()).all()
        for user_id in owners:
            with self._write(now) as session:
                lock_user(session, user_id)  # a job submitted with it meanwhile keeps it
                unused = _unused_code(since, needed=code_of_templates(session))
                mine = CodeArchive.user_id == user_id
                archives = _changed(session, delete(CodeArchive).where(mine, unused))
                if archives:
                    audit.record(session, ACTOR, "code.expire", user_id, now=now, archives=archives)

    def _forget_snapshots(self, now: datetime) -> None:
        with self.database.read() as session:
            owners = snapshots.owners_of_old(session, now=now)
        for user_id in owners:
            with self._write(now) as session:
                snapshots.prune(session, user_id, now=now)

    def _make_room(self, now: datetime) -> None:
        with self.database.read() as session:
            everybody = holders(session, self.settings)
            checkpoints = _checkpoints_of_ended(session)
        for one in surplus(everybody, checkpoints):
            with self._write(now) as session:
                drop_checkpoint(session, one, now=now)
        for holder in everybody:
            sentence = warning(holder)
            if sentence is not None:
                with self._write(now) as session:
                    for user_id in sorted(holder.user_ids):
                        _warn(session, user_id, holder.name, sentence, now=now)

    def _name_found(self, now: datetime) -> None:
        """Give a row of today to files in the store that no row names: an upload may have died
        before its commit. If nothing comes to need them, they are swept in a day."""
        files = size = 0
        for difference in differences(self.database, self.store):
            if difference.unnamed:
                with self._write(now) as session:
                    found = [k for k in difference.unnamed if name_found(session, k, now=now)]
                files, size = files + len(found), size + sum(kept.size for kept in found)
        if files:
            log.warning("store_has_unnamed_files", files=files, bytes=size)

    def _sweep(self, now: datetime) -> None:
        """Remove files that nothing has named for a day, and uploads that were cut short."""
        cutoff = now - UNNAMED
        with self.database.read() as session:
            named = named_files(session)
            old = set(session.scalars(select(StoredFile.sha256).where(_unnamed_since(cutoff))))
        files = size = 0
        try:
            for sha256 in sorted(old - named):
                # A transaction that names the file meanwhile has touched its row: then this
                # changes nothing. The file is removed before the commit: a later upload of the
                # same bytes finds no file, and keeps its own.
                with self._write(now) as session:
                    gone = session.scalar(
                        update(StoredFile)
                        .where(StoredFile.sha256 == sha256, _unnamed_since(cutoff))
                        .values(gone_at=now)
                        .returning(StoredFile.size)
                    )
                    if gone is not None:
                        self.store.remove(sha256)
                        files, size = files + 1, size + gone
        finally:  # removed files are recorded even if the rest must wait
            if files:
                with self.database.write() as session:
                    audit.record(
                        session, ACTOR, "store.sweep", "store", now=now, files=files, bytes=size
                    )
                log.info("store_swept", files=files, bytes=size)
        self._sweep_incoming()

    def _sweep_incoming(self) -> None:
        with suppress(FileNotFoundError):
            for path in self.store.incoming.iterdir():
                # The disk's clock is the clock of time.time.
                if time.time() - path.stat().st_mtime > UNNAMED.total_seconds():
                    path.unlink(missing_ok=True)


@contextmanager
def held_off(database: Database) -> Iterator[None]:
    """Hold off retention and sweeps by any API meanwhile; one that is under way stops first.

    The chore is taken over for a short while, again and again: a process that dies here holds it
    off for HELD_OFF at most.
    """

    def hold() -> None:
        with database.write() as session:
            take_over(session, CHORE, holder=BACKUP, now=utc_now(), lasts=HELD_OFF)

    def renew() -> None:
        while not is_over.wait(RENEWED_EVERY_S):
            with suppress(SQLAlchemyError):  # database away for a moment: there are further tries
                hold()

    hold()
    is_over = threading.Event()
    thread = threading.Thread(target=renew, name="hold off the sweep", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def limits_of(settings: ApiSettings) -> RetentionLimits:
    """Return the age limits of the settings; a setting of 0 days means for ever (None)."""
    days = {
        Thing.LOGS: settings.keep_logs_days,
        Thing.METRICS: settings.keep_metrics_days,
        Thing.CHECKPOINTS: settings.keep_checkpoints_days,
        Thing.ARTIFACTS: settings.keep_artifacts_days,
    }
    return RetentionLimits(
        {thing: timedelta(days=age) if age else None for thing, age in days.items()}
    )


def forget(session: Session, due: ExpiredData, *, now: datetime) -> None:
    """Delete one kind of thing of one job, and record it in the job's events."""
    attempts = select(Attempt.id).where(Attempt.job_id == due.job_id)
    if due.thing is Thing.LOGS:
        _changed(session, delete(LogChunk).where(LogChunk.attempt_id.in_(attempts)))
    elif due.thing is Thing.METRICS:
        _changed(session, delete(MetricChunk).where(MetricChunk.attempt_id.in_(attempts)))
    elif due.thing is Thing.ARTIFACTS:
        _changed(session, delete(Artifact).where(Artifact.job_id == due.job_id))
    else:
        _changed(
            session,
            update(Checkpoint)
            .where(Checkpoint.job_id == due.job_id, Checkpoint.deleted_at.is_(None))
            .values(deleted_at=now, files=[]),
        )
    note(
        session,
        due.job_id,
        f"{due.thing}_deleted",
        now=now,
        message=f"Its {due.thing} were deleted. {due.why}",
        actor=ACTOR,
        reason_code=ReasonCode.AGE,
    )


def drop_checkpoint(session: Session, one: Surplus, *, now: datetime) -> None:
    """Delete a checkpoint to make room, and record it in the job's events."""
    checkpoint = one.checkpoint
    dropped = _changed(
        session,
        update(Checkpoint)
        .where(Checkpoint.id == checkpoint.id, Checkpoint.deleted_at.is_(None))
        .values(deleted_at=now, files=[]),
    )
    if not dropped:
        return
    note(
        session,
        checkpoint.job_id,
        "checkpoints_deleted",
        now=now,
        message=f"A checkpoint of {size_text(checkpoint.size)} was deleted. {one.why}",
        actor=ACTOR,
        reason_code=ReasonCode.STORAGE,
    )


def code_of_templates(session: Session) -> set[str]:
    """Return the hashes of the archives of code that templates start."""
    specs = session.scalars(select(Template.spec).where(Template.deleted_at.is_(None)))
    return {str(script.get("code")) for spec in specs for script in scripts_in(spec)}


def named_files(session: Session) -> set[str]:
    """Return the hashes of all files that something still needs."""
    waiting = Job.state.not_in(TERMINAL_JOB)
    datasets = session.scalars(
        select(Dataset).where(
            or_(
                Dataset.deleted_at.is_(None),
                exists().where(Job.dataset_id == Dataset.id, waiting),
            )
        )
    )
    models = session.scalars(
        select(Model.files).where(
            or_(Model.deleted_at.is_(None), exists().where(Job.model_id == Model.id, waiting))
        )
    )
    tokenizers = session.scalars(
        select(Tokenizer.files).where(
            or_(
                Tokenizer.deleted_at.is_(None),
                exists().where(Job.tokenizer_id == Tokenizer.id, waiting),
            )
        )
    )
    named = set(session.scalars(select(Artifact.sha256)))
    for dataset in datasets:
        named |= {dataset.sha256, *(file.sha256 for file in files_of(dataset))}
    checkpoints = session.scalars(select(Checkpoint.files).where(Checkpoint.deleted_at.is_(None)))
    named |= set(session.scalars(select(CodeArchive.sha256)))
    parts = session.scalars(
        select(CheckpointPart.files)
        .join(Attempt, Attempt.id == CheckpointPart.attempt_id)
        .where(Attempt.files_kept.is_(False))  # other nodes of the attempt may still bring theirs
    )
    inputs = session.scalars(
        select(JobInput.files).join(Job, Job.id == JobInput.job_id).where(waiting)
    )
    for files in (*models, *tokenizers, *checkpoints, *parts, *inputs):
        named |= {str(file["sha256"]) for file in files}
    for tree, blobs in session.execute(select(WorkspaceSnapshot.tree, WorkspaceSnapshot.blobs)):
        named |= {str(tree), *(str(blob["sha256"]) for blob in blobs)}
    return named


def _ended_with(session: Session, thing: Thing, *, before: datetime) -> Iterator[EndedJob]:
    """Yield jobs that ended by `before` and have such things, first ended first.

    At most JOBS_AT_ONCE jobs are yielded.
    """
    rows = session.execute(
        select(Job.id, Job.finished_at)
        .where(Job.state.in_(TERMINAL_JOB), Job.finished_at <= before, _has(thing))
        .order_by(Job.finished_at)
        .limit(JOBS_AT_ONCE)
    )
    for job_id, ended_at in rows:
        assert ended_at is not None
        yield EndedJob(job_id, ended_at, frozenset({thing}))


def _has(thing: Thing) -> ColumnElement[bool]:
    if thing is Thing.ARTIFACTS:
        return exists().where(Artifact.job_id == Job.id)
    if thing is Thing.CHECKPOINTS:
        return exists().where(Checkpoint.job_id == Job.id, Checkpoint.deleted_at.is_(None))
    table = LogChunk if thing is Thing.LOGS else MetricChunk
    return exists().where(Attempt.job_id == Job.id, table.attempt_id == Attempt.id)


def _checkpoints_of_ended(session: Session) -> list[StoredCheckpoint]:
    further = (
        select(Checkpoint.job_id, func.max(Checkpoint.step).label("step"))
        .where(Checkpoint.deleted_at.is_(None))
        .group_by(Checkpoint.job_id)
        .subquery()
    )
    rows = session.execute(
        select(
            Checkpoint.id,
            Checkpoint.job_id,
            Job.user_id,
            Checkpoint.size,
            Job.finished_at,
            Checkpoint.step == further.c.step,
        )
        .join(Job, Job.id == Checkpoint.job_id)
        .join(further, further.c.job_id == Job.id)
        .where(
            Checkpoint.deleted_at.is_(None),
            Job.state.in_(TERMINAL_JOB),
        )
    )
    return [
        StoredCheckpoint(id, job_id, user_id, size, ended_at, is_last)
        for id, job_id, user_id, size, ended_at, is_last in rows
        if ended_at is not None
    ]


def _unused_code(since: datetime, *, needed: Collection[str]) -> ColumnElement[bool]:
    """Return a condition: an archive was last uploaded by `since`, and no job of its owner that
    uses it is waiting, live or ended after `since`; and no template needs it."""
    used = exists().where(
        Job.user_id == CodeArchive.user_id,
        Job.code_sha256 == CodeArchive.sha256,
        or_(Job.state.not_in(TERMINAL_JOB), Job.finished_at > since),
    )
    return and_(CodeArchive.created_at <= since, ~used, CodeArchive.sha256.not_in(needed))


def _unnamed_since(cutoff: datetime) -> ColumnElement[bool]:
    named = func.coalesce(StoredFile.named_at, StoredFile.created_at)
    return StoredFile.gone_at.is_(None) & (named < cutoff)


def _warn(session: Session, user_id: str, name: str, sentence: str, *, now: datetime) -> None:
    """Notify a person, but at most once a week about the same holder."""
    told = session.scalar(
        select(Notice.id)
        .where(
            Notice.user_id == user_id,
            Notice.kind == NoticeKind.STORAGE_NEARLY_FULL,
            Notice.subject == name,
            Notice.created_at > now - WARN_EVERY,
        )
        .limit(1)
    )
    if told is None:
        notify(
            session,
            user_id,
            NoticeKind.STORAGE_NEARLY_FULL,
            name,
            {"message": sentence},
            now=now,
        )


def _changed(session: Session, statement: object) -> int:
    result = session.execute(
        statement.execution_options(synchronize_session=False)  # type: ignore[attr-defined]
    )
    assert isinstance(result, CursorResult)
    return result.rowcount
