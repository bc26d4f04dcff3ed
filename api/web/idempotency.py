"""`Idempotency-Key` on creates: a repeated request makes nothing new and gets the same answer.

The key is remembered in the transaction that creates. The user's row is locked before it is looked
up, so that of two requests at once the second waits, and then finds the first.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Annotated

from fastapi import Header
from sqlalchemy import bindparam, insert, select, tuple_
from sqlalchemy.orm import Session

from api.web.identity import Person
from core.base.clock import utc_now
from core.base.errors import BadRequest
from core.leases.situation import lock_user
from core.tables.processes import IdempotentAnswer

KEY = r"^[\x21-\x7e]{1,200}$"
IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        pattern=KEY,
        description="Any text of your choice, such as a UUID. Sending the same key and body "
        "again is safe: the answer is the object that the first request created.",
    ),
]

# Built once: it begins every request that makes something.
ANSWERS = select(
    IdempotentAnswer.user_id,
    IdempotentAnswer.key,
    IdempotentAnswer.body_sha256,
    IdempotentAnswer.subject,
).where(
    tuple_(IdempotentAnswer.user_id, IdempotentAnswer.key).in_(bindparam("keys", expanding=True))
)


@dataclass(frozen=True)
class KeyedRequest:
    """A request that makes something. Sent again with its key, it makes nothing new."""

    user_id: str
    key: str | None
    body_sha256: str
    """Hash that two requests with the same key must have in common."""

    def begin(self, session: Session) -> str | None:
        """Lock the sender's row; return the id of the row that this request made before, or None.

        Raises BadRequest if the key was used for another request.
        """
        lock_user(session, self.user_id)
        return self.made_before(session)

    def made_before(self, session: Session) -> str | None:
        """Return the id of the row that this request made before, or None. Raises BadRequest."""
        return MadeBefore(session, [self]).by(self)

    def same(self, body_sha256: str, subject: str) -> str:
        """Return the row that the key made, if that was for the same request. Raises BadRequest."""
        if body_sha256 != self.body_sha256:
            raise BadRequest(
                "This key was already used for a different request, which created "
                f"{subject}. Choose a new key.",
                code="idempotency_mismatch",
                param="Idempotency-Key",
            )
        return subject

    def remember(self, session: Session, subject: str) -> None:
        """Remember the id of the row that this request made, in the same transaction."""
        _remember(session, [(self, subject)])


class MadeBefore:
    """Rows that requests of one group made before, looked up and remembered together.

    Make it under `lock_users`, for all the senders.
    """

    def __init__(self, session: Session, requests: Sequence[KeyedRequest]) -> None:
        self._session = session
        self._made: dict[tuple[str, str], tuple[str, str]] = {}
        """Hash and row by user and key."""
        self._new: list[tuple[KeyedRequest, str]] = []
        keys = [(one.user_id, one.key) for one in requests if one.key is not None]
        if keys:
            for user_id, key, *made in session.execute(ANSWERS, {"keys": keys}):
                self._made[user_id, key] = (made[0], made[1])

    def by(self, request: KeyedRequest) -> str | None:
        """Return the id of the row that a request made before, or None. Raises BadRequest if its
        key was used for another one."""
        made = self._made.get((request.user_id, request.key or ""))
        return None if made is None else request.same(*made)

    def note(self, request: KeyedRequest, subject: str) -> None:
        """Note the row that a request has made now."""
        if request.key is not None:
            self._made[request.user_id, request.key] = (request.body_sha256, subject)
            self._new.append((request, subject))

    def remember(self) -> None:
        """Remember what was noted, in the same transaction."""
        _remember(self._session, self._new)


def _remember(session: Session, made: Sequence[tuple[KeyedRequest, str]]) -> None:
    rows = [
        {
            "user_id": request.user_id,
            "key": request.key,
            "body_sha256": request.body_sha256,
            "subject": subject,
            "created_at": utc_now(),
        }
        for request, subject in made
        if request.key is not None
    ]
    if rows:
        session.connection().execute(insert(IdempotentAnswer), rows)


def keyed(person: Person, key: str | None, path: str, body: bytes) -> KeyedRequest:
    """Return a POST of this person, known by its key, its path and its body."""
    body_sha256 = sha256(b"\n".join([b"POST", path.encode(), body])).hexdigest()
    return KeyedRequest(person.id, key, body_sha256)
