"""`Idempotency-Key` on creates: a repeated request makes nothing new and gets the same answer.

The key is remembered in the transaction that creates. The user's row is locked before it is looked
up, so that of two requests at once the second waits, and then finds the first.
"""

from collections.abc import Callable
from datetime import datetime
from hashlib import sha256
from typing import Annotated

from fastapi import Header
from sqlalchemy import bindparam, insert, select
from sqlalchemy.orm import Session

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


def fingerprint(method: str, path: str, body: bytes) -> str:
    """Return a hash that two requests with the same key must have in common."""
    return sha256(b"\n".join([method.encode(), path.encode(), body])).hexdigest()


def made_before(session: Session, *, user_id: str, key: str | None, body_sha256: str) -> str | None:
    """Return the id of what an earlier request with this key made; None if there was none.

    Call it under `lock_user`. Raises BadRequest if that request had another body.
    """
    if key is None:
        return None
    found = session.execute(ANSWER, {"user_id": user_id, "key": key}).one_or_none()
    if found is None:
        return None
    if found.body_sha256 != body_sha256:
        raise BadRequest(
            "This key was already used for a different request, which created "
            f"{found.subject}. Choose a new key.",
            code="idempotency_mismatch",
            param="Idempotency-Key",
        )
    subject: str = found.subject
    return subject


def remember(
    session: Session,
    *,
    user_id: str,
    key: str | None,
    body_sha256: str,
    subject: str,
    now: datetime,
) -> None:
    """Remember what a request made, in the same transaction."""
    if key is None:
        return
    row = {
        "user_id": user_id,
        "key": key,
        "body_sha256": body_sha256,
        "subject": subject,
        "created_at": now,
    }
    session.connection().execute(insert(IdempotentAnswer), row)


def once(
    session: Session,
    *,
    user_id: str,
    key: str | None,
    body_sha256: str,
    now: datetime,
    make: Callable[[], str],
) -> str:
    """Return the id of what this request makes, or of what it made the first time."""
    lock_user(session, user_id)
    known = made_before(session, user_id=user_id, key=key, body_sha256=body_sha256)
    if known is not None:
        return known
    subject = make()
    remember(session, user_id=user_id, key=key, body_sha256=body_sha256, subject=subject, now=now)
    return subject
