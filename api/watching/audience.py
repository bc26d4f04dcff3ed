"""Viewers of this process's streams: a limit for each person, and an end when the permission ends.

A stream outlives the request that opened it. Every few seconds one query asks for all of them which
credentials are still in force; a stream whose credential has ended, or has the scope `all` and a
person whose role has changed, ends.
"""

import asyncio
import random
from collections import defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import anyio
import structlog
from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError
from starlette.responses import StreamingResponse
from starlette.types import Receive, Send
from starlette.types import Scope as Request

from api.web.credentials import in_force
from api.web.identity import Person
from core.base.clock import utc_now
from core.base.errors import TooMany
from core.database.database import Database
from core.tables.kinds import Role, Scope
from core.tables.people import Token, User

MOST_STREAMS = 40  # of one person in one process: twenty tabs, each of a job and of a list
LOOK_S = 3.0
# Then the browser connects again, is asked for its session again, may meet another process, and
# goes on where it was.
LASTS_S = (300.0, 600.0)

log = structlog.get_logger()


class TooManyStreams(TooMany):
    """Refusal of one more stream to a person who watches too many."""

    code = "too_many_streams"
    retry_after_s = 5

    def __init__(self) -> None:
        super().__init__(
            f"You have {MOST_STREAMS} live streams open, which is the limit for one person. "
            "Close a tab or a `trainyard watch`, and try again."
        )


@dataclass(eq=False)
class OpenStream:
    """One open stream, and the person who watches it."""

    person: Person
    stay: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    """Scope of the stream; cancelled when the stream must end."""


class Audience:
    """All open streams. Its methods belong to the running loop."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._seats: dict[str, set[OpenStream]] = defaultdict(set)
        """Open streams by the id of the person who watches them."""

    @property
    def num_seats(self) -> int:
        """Number of open streams."""
        return sum(len(seats) for seats in self._seats.values())

    def seat(self, person: Person) -> OpenStream:
        """Return a place for one more stream; `leave` it at the end. Raises TooManyStreams."""
        seats = self._seats[person.id]
        if len(seats) >= MOST_STREAMS:
            raise TooManyStreams
        seat = OpenStream(person)
        seats.add(seat)
        return seat

    def leave(self, seat: OpenStream) -> None:
        """Give the place of a stream back."""
        seats = self._seats[seat.person.id]
        seats.discard(seat)
        if not seats:
            del self._seats[seat.person.id]

    async def look_after(self) -> None:
        """End, repeatedly and until cancelled, the streams of people who may not watch any more."""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await self.look()
            except SQLAlchemyError as error:
                log.warning("audience_not_read", error=str(error))

    async def look(self) -> None:
        """End the streams of people who may not watch any more."""
        seats = [seat for of_person in self._seats.values() for seat in of_person]
        tokens = {seat.person.token_id for seat in seats}
        if not tokens:
            return
        roles = await anyio.to_thread.run_sync(self._roles, tokens)
        for seat in seats:
            role = roles.get(seat.person.token_id)
            is_demoted = Scope.ALL in seat.person.scopes and role is not seat.person.role
            if role is None or is_demoted:
                seat.stay.cancel()

    def _roles(self, token_ids: set[str]) -> dict[str, Role]:
        """Map token -> role of its person, for those tokens that are still in force."""
        query = (
            select(Token.id, User.role)
            .join(User, User.id == Token.user_id)
            .where(Token.id.in_(token_ids), in_force(utc_now()))
        )
        with self._database.read() as session:
            return {token_id: role for token_id, role in session.execute(query)}


class EventStream(StreamingResponse):
    """Response with server-sent events to one seat, for some minutes; proxies must not buffer
    it."""

    def __init__(self, pieces: AsyncIterator[bytes], audience: Audience, seat: OpenStream) -> None:
        super().__init__(
            pieces,
            media_type="text/event-stream",
            headers={
                "Cache-Control": "no-cache",
                "Connection": "close",
                "X-Accel-Buffering": "no",
            },
        )
        self._audience, self._seat = audience, seat

    async def __call__(self, scope: Request, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._audience.leave(self._seat)

    async def stream_response(self, send: Send) -> None:
        self._seat.stay.deadline = anyio.current_time() + random.uniform(*LASTS_S)
        with self._seat.stay:
            await super().stream_response(send)
            return
        await send({"type": "http.response.body", "body": b"", "more_body": False})
