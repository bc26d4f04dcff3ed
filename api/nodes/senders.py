"""Senders of a group of messages: the attempts that they may report on, found by one statement.

Metrics and output of ranks come with each report, and those that arrive together are written
together (`api.web.groups`). One that is refused, such as of an attempt that was given up, is
refused alone.
"""

from collections.abc import Sequence
from typing import Protocol

from sqlalchemy import and_, bindparam, select
from sqlalchemy.orm import Session

from api.nodes.fencing import FencedAttempt, no_attempt, require_not_abandoned
from api.web.auth import find_node
from core.states import NodeState
from core.tables.jobs import Attempt, AttemptPart, Job
from core.tables.kinds import TokenKind
from core.tables.nodes import Node
from core.tables.people import Token
from core.tables.telemetry import StreamCursor

# Built once: to build a query takes longer than to ask it, and nodes send these all the time.
LOCK = (  # first, and alone: what is read in the same statement may be older than the lock
    select(Job.id)
    .where(Job.id.in_(bindparam("job_ids", expanding=True)))
    .order_by(Job.id)
    .with_for_update(key_share=True)
)
OWN = (
    select(Token.sha256, Attempt.job_id, Attempt.epoch, Attempt.id, Attempt.state)
    .add_columns(AttemptPart.node_id, AttemptPart.position, AttemptPart.exit, Job.epoch)
    .add_columns(StreamCursor.stream, StreamCursor.position)
    .join(AttemptPart, AttemptPart.attempt_id == Attempt.id)
    .join(Job, Job.id == Attempt.job_id)
    .join(Node, Node.id == AttemptPart.node_id)
    .join(Token, Token.node_id == Node.id)
    .outerjoin(
        StreamCursor,
        and_(
            StreamCursor.attempt_id == Attempt.id,
            StreamCursor.stream.in_(bindparam("streams", expanding=True)),
        ),
    )
    .where(
        Attempt.job_id.in_(bindparam("job_ids", expanding=True)),
        Attempt.epoch.in_(bindparam("epochs", expanding=True)),
        Token.sha256.in_(bindparam("tokens", expanding=True)),
        Token.kind == TokenKind.NODE,
        Token.revoked_at.is_(None),
        Node.state != NodeState.RETIRED,
    )
)


class Sent(Protocol):
    """A message that has arrived; who sent it is not yet checked."""

    @property
    def stream(self) -> str:
        """Name of the rank's stream that the message continues."""

    @property
    def about(self) -> tuple[str, str, int]:
        """SHA-256 of the sender's token, job and epoch."""


class Senders:
    """Attempts that the senders of a group have, with their jobs locked, and positions of their
    streams."""

    def __init__(self, session: Session, sent: Sequence[Sent]) -> None:
        about = {one.about for one in sent}
        job_ids = sorted({job_id for _, job_id, _ in about})
        lock_jobs(session, job_ids)
        wanted = {
            "job_ids": job_ids,
            "epochs": list({epoch for _, _, epoch in about}),
            "tokens": list({token for token, _, _ in about}),
            "streams": list({one.stream for one in sent}),
        }
        self.positions: dict[tuple[str, str], int] = {}
        """By attempt and name; those that have stored nothing yet are left out."""
        self._attempts: dict[tuple[str, str, int], tuple[str, FencedAttempt, int, bool]] = {}
        for row in session.execute(OWN, wanted):
            token, job_id, epoch, attempt_id, state, node_id, position, record = row[:8]
            job_epoch, stream, stored = row[8:]
            fenced = FencedAttempt(job_id, attempt_id, epoch, position, state, epoch == job_epoch)
            self._attempts[token, job_id, epoch] = node_id, fenced, job_epoch, record is not None
            if stream is not None:
                self.positions[attempt_id, stream] = stored

    def attempt_of(self, session: Session, one: Sent) -> tuple[str, FencedAttempt]:
        """Return the sender's node and the attempt that a message is about. Raises Unauthenticated,
        NotFound, StaleEpoch."""
        found = self._attempts.get(one.about)
        if found is None:
            token, job_id, epoch = one.about
            raise no_attempt(find_node(session, token), job_id, epoch)
        node_id, fenced, job_epoch, has_record = found
        require_not_abandoned(fenced, job_epoch, has_record=has_record)
        return node_id, fenced


def lock_jobs(session: Session, job_ids: Sequence[str]) -> None:
    """Lock the rows of jobs, named in order, until the transaction ends."""
    if session.get_bind().dialect.name != "sqlite":  # its one writer is alone already
        session.execute(LOCK, {"job_ids": job_ids}).all()
