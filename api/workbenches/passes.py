"""Passes to workbenches in the browser: a ticket that works once, then a cookie of one origin.

A pass ends with the attempt, and with the session or token that it was made with: whoever signs out
is out of the workbench too.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from datetime import datetime, timedelta
from time import monotonic

from fastapi.concurrency import run_in_threadpool
from sqlalchemy import bindparam, delete, select, update
from sqlalchemy.engine import CursorResult
from sqlalchemy.orm import Session

from api.web.bells import Bells
from api.web.credentials import in_force
from api.web.process import Process
from api.workbenches.tunnels import Key
from core.base.clock import utc_now
from core.base.errors import Forbidden
from core.base.secret_text import digest, new_secret
from core.states import AttemptState
from core.tables.jobs import Attempt, Job
from core.tables.people import Token, User
from core.tables.workbenches import WorkbenchPass

TICKET_LIVES = timedelta(seconds=30)
KEPT = timedelta(days=30)
TRUSTED_FOR_S = 5.0
MAX_TRUSTED = 10_000

VALID = (
    select(WorkbenchPass.job_id)
    .join(
        Attempt, (Attempt.job_id == WorkbenchPass.job_id) & (Attempt.epoch == WorkbenchPass.epoch)
    )
    .join(Job, (Job.id == Attempt.job_id) & (Job.epoch == Attempt.epoch))
    .join(Token, Token.id == WorkbenchPass.token_id)
    .join(User, User.id == Token.user_id)
    .where(
        WorkbenchPass.cookie_sha256 == bindparam("cookie_sha256"),
        WorkbenchPass.job_id == bindparam("job_id"),
        WorkbenchPass.epoch == bindparam("epoch"),
        Attempt.state.in_((AttemptState.RUNNING, AttemptState.STOPPING)),
        User.id == Job.user_id,
    )
)


def make_ticket(session: Session, _: Bells, key: Key, token_id: str, *, now: datetime) -> str:
    """Make a ticket to an attempt, for the holder of a session or token; return its secret."""
    session.execute(delete(WorkbenchPass).where(WorkbenchPass.made_at < now - KEPT))
    secret = new_secret()
    session.add(
        WorkbenchPass(
            ticket_sha256=digest(secret),
            cookie_sha256=None,
            job_id=key.job_id,
            epoch=key.epoch,
            token_id=token_id,
            made_at=now,
            ticket_ends_at=now + TICKET_LIVES,
        )
    )
    return secret


def use_ticket(session: Session, _: Bells, key: Key, ticket: str, *, now: datetime) -> str:
    """Trade a ticket for the cookie of its origin; return the cookie's secret.

    Raises Forbidden if the ticket is unknown, used or late, or of another workbench. Of two that
    use one ticket, one succeeds.
    """
    secret = new_secret()
    used = session.execute(
        update(WorkbenchPass)
        .where(
            WorkbenchPass.ticket_sha256 == digest(ticket),
            WorkbenchPass.job_id == key.job_id,
            WorkbenchPass.epoch == key.epoch,
            WorkbenchPass.cookie_sha256.is_(None),
            WorkbenchPass.ticket_ends_at > now,
        )
        .values(cookie_sha256=digest(secret))
        .execution_options(synchronize_session=False)
    )
    assert isinstance(used, CursorResult)
    if used.rowcount == 0:
        raise Forbidden(
            "This ticket was used already, or is too old. Open the workbench from Trainyard again.",
            code="bad_ticket",
        )
    return secret


class Passes:
    """Cookies that were valid a moment ago, so that not every file of a page asks the database."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._trusted: OrderedDict[tuple[Key, str], float] = OrderedDict()
        self._asking: dict[tuple[Key, str], asyncio.Task[bool]] = {}

    async def are_valid(self, process: Process, key: Key, cookie: str) -> bool:
        """Return True if the cookie opens this attempt's workbench."""
        asked = key, digest(cookie)
        since = self._trusted.get(asked)
        if since is not None and self._clock() - since < TRUSTED_FOR_S:
            return True
        self._trusted.pop(asked, None)
        if asked not in self._asking:
            self._asking[asked] = asyncio.create_task(self._ask(process, *asked))
        return await asyncio.shield(self._asking[asked])

    async def _ask(self, process: Process, key: Key, cookie_sha256: str) -> bool:
        try:
            is_valid = await run_in_threadpool(_is_valid, process, key, cookie_sha256)
        finally:
            del self._asking[key, cookie_sha256]
        if is_valid:
            self._trusted[key, cookie_sha256] = self._clock()
            while len(self._trusted) > MAX_TRUSTED:
                self._trusted.popitem(last=False)
        return is_valid


def _is_valid(process: Process, key: Key, cookie_sha256: str) -> bool:
    asked = {"cookie_sha256": cookie_sha256, "job_id": key.job_id, "epoch": key.epoch}
    with process.read() as session:
        return session.scalar(VALID.where(in_force(utc_now())), asked) is not None
