"""Output of ranks, written in groups (`api.web.groups`), as metrics are."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from api.nodes.senders import Senders
from api.records import log_store, metric_store
from api.records.log_store import Piece
from api.web.bells import Bells
from api.web.clean_text import clean_text
from api.web.groups import Groups
from api.web.process import Process
from core.base.clock import utc_now
from core.base.errors import ServiceError
from core.wire.messages import LogAck, LogBatch

Answer = LogAck | ServiceError


@dataclass(frozen=True)
class SentPiece:
    """A piece of output that has arrived; who sent it is not yet checked."""

    token_sha256: str
    message: LogBatch

    @property
    def stream(self) -> str:
        """Name of the rank's stream."""
        return f"{self.message.stream}/{self.message.rank}"

    @property
    def about(self) -> tuple[str, str, int]:
        """Sender, job and epoch."""
        return self.token_sha256, clean_text(self.message.job_id), self.message.epoch


class LogPieces(Groups[SentPiece, Answer]):
    """Pieces of output that wait to be written."""

    RESTS = 4.0


async def take(process: Process, sent: SentPiece) -> LogAck:
    """Store the new bytes of a piece, together with those that others send at this moment.

    Raises Unauthenticated, NotFound, StaleEpoch.
    """

    def write(pieces: Sequence[SentPiece]) -> Sequence[Answer]:
        return process.transact(append_together, pieces)

    answer = await process.service(LogPieces).write(sent, write)
    if isinstance(answer, ServiceError):
        raise answer
    return answer


def append_together(session: Session, bells: Bells, sent: Sequence[SentPiece]) -> Sequence[Answer]:
    """Append the bytes that are new, of pieces in their order; return the answer to each."""
    senders = Senders(session, sent)
    answers = list[Answer]()
    pieces: list[Piece] = []
    ends: dict[tuple[str, str], int] = {}
    for one in sent:
        try:
            _, fenced = senders.attempt_of(session, one)
        except ServiceError as refusal:
            answers.append(refusal)
            continue
        place, message = (fenced.attempt_id, one.stream), one.message
        position = ends.get(place, senders.positions.get(place, 0))
        content = _new_content(message, position)
        if content is None:
            answers.append(LogAck(next_byte=position))
            continue
        pieces.append(Piece(fenced.attempt_id, message.rank, message.stream, position, content))
        ends[place] = message.first_byte + message.size
        bells.jobs.add(fenced.job_id)
        answers.append(LogAck(next_byte=ends[place]))
    metric_store.begin_streams(session, ends.keys() - senders.positions.keys())
    metric_store.move_streams(session, ends)
    log_store.append(session, pieces, now=utc_now())
    return answers


def _new_content(message: LogBatch, position: int) -> str | None:
    """Return what a piece adds to a stream that is stored up to `position`; None if it leaves a
    gap, or adds nothing, or can't be cut safely, because decoding has changed it."""
    if message.first_byte > position or message.first_byte + message.size <= position:
        return None
    if message.first_byte == position:
        return message.content
    raw = message.content.encode("utf-8", "replace")
    if len(raw) != message.size:
        return None
    return raw[position - message.first_byte :].decode("utf-8", "replace")
