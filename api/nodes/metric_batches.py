"""Batches of metrics, written in groups (`api.web.groups`), and merged when they have piled up.

A batch comes with each report of each rank: at some of them a second, what costs is the call, not
its points. So batches that arrive together are fenced by one statement and stored by one commit.
One that is refused, such as of an attempt that was given up, is refused alone.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import structlog
from fastapi.concurrency import run_in_threadpool
from sqlalchemy import bindparam, func, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from api.nodes.fencing import FencedAttempt
from api.nodes.senders import Senders, lock_jobs
from api.records import metric_store
from api.records.metric_store import Batch, Latest
from api.web.bells import Bells
from api.web.clean_text import clean_text
from api.web.groups import Groups
from api.web.process import Process
from core.base.clock import utc_now
from core.base.errors import ServiceError
from core.jobs import attempts
from core.states import AttemptState
from core.tables.jobs import Attempt, Job
from core.wire.messages import MetricsAck, MetricsBatch

log = structlog.get_logger()

# Built once: to build a query takes longer than to ask it, and nodes send these all the time.
SEEN_STEP = (
    update(Attempt)
    .where(Attempt.id == bindparam("attempt_id"))
    .values(last_step_at=bindparam("now"))
)
PROGRESS = (
    update(Job)
    .where(Job.id == bindparam("job_id"))
    .values(
        last_step=bindparam("step"),
        last_loss=func.coalesce(bindparam("loss", type_=Job.last_loss.type), Job.last_loss),
        last_tokens_per_s=func.coalesce(
            bindparam("tokens_per_s", type_=Job.last_tokens_per_s.type), Job.last_tokens_per_s
        ),
    )
)


@dataclass(frozen=True)
class SentBatch:
    """A batch that has arrived; who sent it is not yet checked."""

    token_sha256: str
    message: MetricsBatch
    batch: Batch

    @property
    def stream(self) -> str:
        """Name of the rank's stream."""
        return f"metrics/{self.message.rank}"

    @property
    def about(self) -> tuple[str, str, int]:
        """Sender, job and epoch."""
        return self.token_sha256, clean_text(self.message.job_id), self.message.epoch


class LineRange(NamedTuple):
    """Lines of a rank, `start` to `end` - 1, of which the rows can be merged."""

    job_id: str
    attempt_id: str
    rank: int
    start: int
    end: int


class StoredBatch(NamedTuple):
    """Answer to a batch, and the block that it has filled."""

    ack: MetricsAck
    filled: LineRange | None = None


Answer = StoredBatch | ServiceError


class MetricBatches(Groups[SentBatch, Answer]):
    """Batches of metrics that wait to be written."""

    RESTS = 4.0


class Merges:
    """Blocks that wait to be merged, one after the other and in nobody's request.

    A block that is lost with the process is merged with the next larger one, or at the end.
    """

    def __init__(self) -> None:
        self._line: list[LineRange] = []
        self._merging: asyncio.Task[None] | None = None

    def merge_soon(self, process: Process, block: LineRange) -> None:
        """Merge a block soon; returns at once."""
        self._line.append(block)
        if self._merging is None:
            self._merging = asyncio.create_task(self._merge_all(process))

    async def _merge_all(self, process: Process) -> None:
        try:
            while self._line:
                block = self._line.pop(0)
                try:
                    await run_in_threadpool(process.transact, merge_block, block)
                except (ServiceError, DBAPIError) as error:  # such as: the platform is read-only
                    log.info("metrics_not_merged", attempt=block.attempt_id, error=str(error))
        finally:
            self._merging = None


async def take(process: Process, sent: SentBatch) -> MetricsAck:
    """Store the new lines of a batch, together with those that others send at this moment.

    Raises Unauthenticated, NotFound, StaleEpoch.
    """

    def write(batches: Sequence[SentBatch]) -> Sequence[Answer]:
        return process.transact(append_together, batches)

    answer = await process.service(MetricBatches).write(sent, write)
    if isinstance(answer, ServiceError):
        raise answer
    if answer.filled is not None:
        process.service(Merges).merge_soon(process, answer.filled)
    return answer.ack


def append_together(session: Session, bells: Bells, sent: Sequence[SentBatch]) -> Sequence[Answer]:
    """Append the lines that are new, of batches in their order; return the answer to each."""
    senders = Senders(session, sent)
    answers = list[Answer]()
    rows: list[dict[str, object]] = []
    ends: dict[tuple[str, str], int] = {}
    news: list[tuple[str, FencedAttempt, Latest]] = []
    for one in sent:
        try:
            node_id, fenced = senders.attempt_of(session, one)
        except ServiceError as refusal:
            answers.append(refusal)
            continue
        place = fenced.attempt_id, one.stream
        position = ends.get(place, senders.positions.get(place, 0))
        batch, rank = one.batch, one.message.rank
        if batch.first_line > position or batch.end <= position:
            answers.append(StoredBatch(MetricsAck(next_line=position)))  # a gap, or all are known
            continue
        if batch.first_line < position:
            lines = one.message.lines[position - batch.first_line :]
            batch = metric_store.read_batch(lines, position)
        rows += metric_store.batch_rows(fenced.attempt_id, rank, position, batch.points)
        ends[place] = batch.end
        if rank == 0 and batch.latest is not None and fenced.is_current:
            news.append((node_id, fenced, batch.latest))
        bells.jobs.add(fenced.job_id)
        filled = metric_store.filled_block(position, batch.end)
        block = filled and LineRange(fenced.job_id, fenced.attempt_id, rank, *filled)
        answers.append(StoredBatch(MetricsAck(next_line=batch.end), block))
    metric_store.begin_streams(session, ends.keys() - senders.positions.keys())
    metric_store.move_streams(session, ends)
    metric_store.insert_rows(session, rows)
    _note_progress(session, bells, news)
    return answers


def merge_block(session: Session, _: Bells, block: LineRange) -> None:
    """Merge the rows of a block."""
    lock_jobs(session, [block.job_id])
    metric_store.merge_block(
        session, block.attempt_id, block.rank, start=block.start, end=block.end
    )


def _note_progress(
    session: Session, bells: Bells, news: Sequence[tuple[str, FencedAttempt, Latest]]
) -> None:
    """Note the progress of jobs; an attempt whose first step this is runs from now on."""
    now = utc_now()
    begun = {
        fenced.attempt_id: (node_id, fenced.job_id)
        for node_id, fenced, _ in news
        if fenced.state in (AttemptState.ASSIGNED, AttemptState.STARTING)
    }
    for attempt_id, (node_id, job_id) in begun.items():
        job, attempt = session.get_one(Job, job_id), session.get_one(Attempt, attempt_id)
        attempts.run(session, job, attempt, now=now, actor=node_id)
        bells.scheduler = True
    progress = [
        {
            "job_id": fenced.job_id,
            "step": latest.step,
            "loss": latest.loss,
            "tokens_per_s": latest.tokens_per_s,
        }
        for _, fenced, latest in news
    ]
    if progress:
        seen = [{"attempt_id": one, "now": now} for one in {n[1].attempt_id for n in news}]
        session.connection().execute(PROGRESS, progress)
        session.connection().execute(SEEN_STEP, seen)
