"""`Idempotency-Key` on creates: a repeated request makes nothing new and gets the same answer.

The key is remembered in the transaction that creates. The user's row is locked before it is looked
up, so that of two requests at once the second waits, and then finds the first.
"""

from dataclasses import dataclass
from hashlib import sha256
from typing import Annotated

from fastapi import Header
from sqlalchemy import bindparam, insert, select
from sqlalchemy.orm import Session

from api.web.identity import Person
from core.base.clock import utc_now
from core.base.errors import BadRequest
from core.leases.situation import lock_user
from core.tables.processes import IdempotentAnswer

IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        pattern=r"^[\x21-\x7e]{1,200}$",
        description="Any text of your choice, such as a UUID. Sending the same key and body "
        "again is safe: the answer is the object that the first request created.",
    ),
]

# Built once: it begins every request that makes something.
ANSWER = select(IdempotentAnswer.body_sha256, IdempotentAnswer.subject).where(
    IdempotentAnswer.user_id == bindparam("user_id"), IdempotentAnswer.key == bindparam("key")
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
        if self.key is None:
            return None
        found = session.execute(ANSWER, {"user_id": self.user_id, "key": self.key}).one_or_none()
        if found is None:
            return None
        if found.body_sha256 != self.body_sha256:
            raise BadRequest(
                "This key was already used for a different request, which created "
                f"{found.subject}. Choose a new key.",
                code="idempotency_mismatch",
                param="Idempotency-Key",
            )
        subject: str = found.subject
        return subject

    def remember(self, session: Session, subject: str) -> None:
        """Remember the id of the row that this request made, in the same transaction."""
        if self.key is None:
            return
        row = {
            "user_id": self.user_id,
            "key": self.key,
            "body_sha256": self.body_sha256,
            "subject": subject,
            "created_at": utc_now(),
        }
        session.connection().execute(insert(IdempotentAnswer), row)


def keyed(person: Person, key: str | None, path: str, body: bytes) -> KeyedRequest:
    """Return a POST of this person, known by its key, its path and its body."""
    body_sha256 = sha256(b"\n".join([b"POST", path.encode(), body])).hexdigest()
    return KeyedRequest(person.id, key, body_sha256)
