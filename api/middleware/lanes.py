"""Lanes: important requests go first, because each kind of request has places of its own.

A process has one interpreter: requests that run at once take turns, however many threads there are.
So few requests of a kind are worked on at once. The places of all lanes together determine the
numbers of threads and of database connections: no lane can take another's. Over its limit a lane
keeps a line that is bounded, in length and in time. The line of pages' own refreshes is the
shortest.

Clicks that wait take turns by person: whoever clicks for ten things at once waits with nine of them
until everybody else who waits has had a turn. The reads of a page do not: it is whole with the last
of them, so turns between pages would make all of them late. People are told apart by what they sign
in with, or by their address: a lane stands before the check of who somebody is.

While heartbeats wait, most other lanes begin one request at a time: a heartbeat is rare, and a late
one looks like a node that is lost. Curves, output and submissions do not hold back: all that wait
are written together, by one thread, and one at a time they would only cost more.

A request may change its lane when it is known what it needs (`api.web.places`): most heartbeats say
nothing new, and those do not wait behind the few that take long.

A request has a place while it is worked on: not while its body arrives, nor while its answer is
sent, except for files, which are both. Pages of the dashboard need no place: the calls behind them
do, so a page never holds a place that its own calls wait for.
"""

import asyncio
import random
import re
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.middleware.prometheus import RequestNumbers
from api.web.auth import COOKIE
from api.web.errors import problem_response, service_problem
from api.web.places import PLACE, LaneKind, Place
from core.base.errors import Unavailable

BACKGROUND_FROM = 5  # RFC 9218: u=0 is the most urgent, 7 the least, 3 what says nothing

FILES = re.compile(
    r"/client/.+|/v1/jobs/[^/]+/(?:(?:artifacts|checkpoints)/[^/]+|code)"
    r"|/v1/(?:datasets|models|code|workspace/(?:files|content))"
)
SENDING = re.compile(r"/v1/(?:datasets|models|code|workspace/files)")
PARTS = re.compile(r"/v1/uploads/[^/]+")  # of an upload that can be broken off
SIGN_IN = re.compile(r"/v1/(?:sessions|sessions/link|new-password|invites/accept|first-start)")
LONG = re.compile(r"/v1/(?:usage|reports|admin/.+|reports/.+|jobs/[^/]+/(?:comparison|logs))")
SESSION = re.compile(rf"(?:^|;)\s*{COOKIE}=([^;]+)")
PRIORITY = re.compile(r"(?:^|[\s,])u=([0-7])(?:$|[\s,;])")
SUBMISSION = re.compile(r"/v1/jobs(?:/[^/]+/clone)?")
ASKING = ("/plan", "/v1/reports/check")  # sent by POST, and nothing is changed


@dataclass(frozen=True)
class Limit:
    """Limits of a lane: requests worked on at once, requests in line, and longest wait in
    seconds."""

    at_once: int
    in_line: int
    wait_s: float


# With 300 clients that only read, in a process that two cores share with all else, a booking took
# 0.2 s at two reads at once, 0.3 s at four, and 11 s without lanes; readers got as much done.
LIMITS = {
    # Not behind the metrics and logs of every node. All that wait are looked at together, and hold
    # no thread; those that say something new go on to the next lane (`api.nodes.routes_heartbeat`).
    LaneKind.HEARTBEATS: Limit(64, 512, 20.0),
    LaneKind.WHOLE_BEATS: Limit(4, 512, 20.0),  # a dozen questions each, of a database that is busy
    LaneKind.NODES: Limit(2, 256, 20.0),
    LaneKind.TELEMETRY: Limit(64, 256, 20.0),  # written together: they wait, and hold no thread
    LaneKind.NODE_FILES: Limit(16, 64, 30.0),
    LaneKind.CLICKS: Limit(4, 512, 15.0),
    LaneKind.SUBMISSIONS: Limit(16, 512, 15.0),  # those that wait together are written together
    LaneKind.VERDICTS: Limit(2, 512, 15.0),  # not behind bookings, which wait for each other
    # 191 who press the button at once, at 0.1 s for a hash, and at three times that beside others.
    LaneKind.SIGN_INS: Limit(4, 512, 60.0),
    LaneKind.PROVIDER: Limit(8, 256, 20.0),  # these wait for another server
    # Somebody waits for a page: refused, it would be an error that they reload at once.
    LaneKind.READS: Limit(2, 256, 10.0),
    LaneKind.LONG_READS: Limit(2, 64, 10.0),
    # The line is for what one page asks for together: refused in part, it would ask again for ever.
    LaneKind.BACKGROUND: Limit(1, 8, 1.0),
    # Until they have begun: a browser gives up on a 503. Those that wait are allowed together.
    LaneKind.STREAMS: Limit(16, 1000, 20.0),
    LaneKind.FILES: Limit(32, 64, 30.0),
}
YIELDING = (LaneKind.READS, LaneKind.LONG_READS)  # one at once while clicks wait
BEATS = (LaneKind.HEARTBEATS, LaneKind.WHOLE_BEATS)
# The rest: one at once while heartbeats wait. These wait for disks and other servers, or
# are written together.
UNYIELDING = (
    *BEATS,
    LaneKind.TELEMETRY,
    LaneKind.SUBMISSIONS,
    LaneKind.PROVIDER,
    LaneKind.NODE_FILES,
    LaneKind.FILES,
)
BY_TURNS = (LaneKind.CLICKS, LaneKind.SUBMISSIONS, LaneKind.VERDICTS)
WHOLE = (LaneKind.NODE_FILES, LaneKind.FILES)  # these have their place until the last byte
THREADS = sum(limit.at_once for limit in LIMITS.values()) + 8  # and the process's own chores


Turn = asyncio.Future[None]


class Busy(Unavailable):
    """Refusal of a request that was not worked on."""

    code = "busy"
    title = "Busy"

    def __init__(self, why: str, *, retry_after_s: int) -> None:
        super().__init__(f"{why} Nothing was done. Try again in {retry_after_s} s.")
        self.retry_after_s = retry_after_s


class Gone(Exception):
    """Hang-up of a client while it waited."""


def kind_of(method: str, path: str, priority: str) -> LaneKind | None:
    """Return the lane of a request; None for one that takes no thread: pages, static files,
    health."""
    if path == "/v1/node/heartbeat":
        return LaneKind.HEARTBEATS
    if path in ("/v1/node/metrics", "/v1/node/logs"):
        return LaneKind.TELEMETRY
    if path.startswith("/v1/node/"):
        return LaneKind.NODE_FILES if path.startswith("/v1/node/files/") else LaneKind.NODES
    if not path.startswith(("/v1/", "/client/")):
        return None
    is_read = method in ("GET", "HEAD", "OPTIONS")
    if is_read and path.endswith("/stream"):
        return LaneKind.STREAMS
    if (is_read and FILES.fullmatch(path) and not SENDING.fullmatch(path)) or (
        (method == "POST" and SENDING.fullmatch(path))
        or (method == "PATCH" and PARTS.fullmatch(path))
    ):
        return LaneKind.FILES
    if method == "POST" and SIGN_IN.fullmatch(path):
        return LaneKind.SIGN_INS
    if method == "POST" and path.startswith("/v1/sessions/oidc"):
        return LaneKind.PROVIDER
    if is_read or path.endswith(ASKING):
        urgency = PRIORITY.search(priority)
        if urgency is not None and int(urgency[1]) >= BACKGROUND_FROM:
            return LaneKind.BACKGROUND
        return LaneKind.LONG_READS if LONG.fullmatch(path) else LaneKind.READS
    if method == "POST" and SUBMISSION.fullmatch(path):
        return LaneKind.SUBMISSIONS
    return LaneKind.VERDICTS if path == "/v1/leases/verdict" else LaneKind.CLICKS


def ahead_of(kind: LaneKind) -> Sequence[LaneKind]:
    """Return the lanes that go before one."""
    if kind in YIELDING:
        return (*BEATS, LaneKind.CLICKS)
    return () if kind in UNYIELDING else BEATS


class LaneQueue:
    """Turns that are waited for. The next one is of whoever has waited longest for their first, or
    since their last; each person's own come in order."""

    def __init__(self) -> None:
        self._turns: dict[str, deque[Turn]] = {}
        """By person, who is next first."""
        self._num_turns = 0

    def __len__(self) -> int:
        return self._num_turns

    def add(self, person: str, turn: Turn) -> None:
        """Let a person wait for one more turn."""
        self._turns.setdefault(person, deque()).append(turn)
        self._num_turns += 1

    def take(self) -> Turn:
        """Remove the next turn and return it."""
        person = next(iter(self._turns))
        turns = self._turns.pop(person)
        turn = turns.popleft()
        if turns:
            self._turns[person] = turns
        self._num_turns -= 1
        return turn

    def remove(self, person: str, turn: Turn) -> bool:
        """Remove a turn that nobody waits for any more; False if it was taken."""
        turns = self._turns.get(person, deque())
        if turn not in turns:
            return False
        turns.remove(turn)
        if not turns:
            del self._turns[person]
        self._num_turns -= 1
        return True


class Lane:
    """Places of one kind of request, and its line.

    While requests wait in a lane `ahead`, only one of this lane is worked on at once.
    """

    def __init__(
        self,
        kind: LaneKind,
        limit: Limit,
        numbers: RequestNumbers,
        ahead: Sequence["Lane"] = (),
    ) -> None:
        self.kind = kind
        self.limit = limit
        self._ahead = ahead
        self._behind: list[Lane] = []
        for lane in ahead:
            lane._behind.append(self)
        self._numbers = numbers
        self._free = limit.at_once
        self._line = LaneQueue()
        self._guard = threading.Lock()

    @property
    def num_waiting(self) -> int:
        """Number of requests in line."""
        return len(self._line)

    async def enter(self, person: str, receive: Receive | None) -> None:
        """Take a place for a person; `leave` gives it back. Raises Busy, or Gone, without one.

        `receive` must have nothing more to tell than that the client has gone. None: it has.
        """
        began = time.perf_counter()
        turn = self._stand_in_line(person)
        if turn is not None:
            try:
                await self._wait(person, turn, receive)
            finally:
                self._numbers.waiting.labels(self.kind).set(self.num_waiting)
        self._numbers.wait_s.labels(self.kind).observe(time.perf_counter() - began)

    def leave(self) -> None:
        """Give a place back, and free places to those whose turn it is."""
        with self._guard:
            self._free += 1
        self._hand_on()
        for lane in self._behind:
            lane._hand_on()

    def refuse(self, why: str) -> Busy:
        """Return the error for a request that finds no place, with a random time to come back."""
        self._numbers.turned_away.labels(self.kind, "busy").inc()
        return Busy(why, retry_after_s=random.randint(2, 8))

    def _hand_on(self) -> None:
        with self._guard:
            turns = []
            while self._line and self._has_place():
                self._free -= 1
                turns.append(self._line.take())
        for turn in turns:
            turn.get_loop().call_soon_threadsafe(_give, turn)

    def _has_place(self) -> bool:
        is_idle = self._free == self.limit.at_once
        return self._free > 0 and (is_idle or not any(lane.num_waiting for lane in self._ahead))

    def _stand_in_line(self, person: str) -> Turn | None:
        """Return a turn to wait for; None if there is a free place. Raises Busy if the line is
        full."""
        with self._guard:
            if self._has_place():
                self._free -= 1
                return None
            if len(self._line) >= self.limit.in_line:
                raise self.refuse("The server is handling too many requests right now.")
            turn = asyncio.get_running_loop().create_future()
            self._line.add(person, turn)
        self._numbers.waiting.labels(self.kind).set(self.num_waiting)
        return turn

    async def _wait(self, person: str, turn: Turn, receive: Receive | None) -> None:
        watched: set[Turn] = {turn}
        gone = None
        if receive is not None:
            gone = asyncio.create_task(_hung_up(receive))
            watched.add(gone)
        try:
            await asyncio.wait(
                watched, timeout=self.limit.wait_s, return_when=asyncio.FIRST_COMPLETED
            )
            if gone is not None and gone.done():
                self._numbers.turned_away.labels(self.kind, "gone").inc()
                raise Gone
            if not turn.done() and self._leave_line(person, turn):
                raise self.refuse(
                    f"The request waited {self.limit.wait_s:.0f} s and was not begun."
                )
        except (Gone, asyncio.CancelledError):
            if not self._leave_line(person, turn):
                self.leave()  # the turn had come meanwhile
            raise
        finally:
            if gone is not None:
                gone.cancel()

    def _leave_line(self, person: str, turn: Turn) -> bool:
        """Leave the line. Returns False if the turn has come meanwhile, so that the place is
        taken."""
        with self._guard:
            return self._line.remove(person, turn)


class Lanes:
    """ASGI middleware: a request is worked on when its lane has a place for it."""

    def __init__(
        self, app: ASGIApp, numbers: RequestNumbers, limits: Mapping[LaneKind, Limit] = LIMITS
    ) -> None:
        self.app = app
        self.lanes: dict[LaneKind, Lane] = {}
        for kind, limit in limits.items():
            self.lanes[kind] = Lane(
                kind, limit, numbers, [self.lanes[one] for one in ahead_of(kind)]
            )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        kind = kind_of(scope["method"], scope["path"], headers.get("priority", ""))
        if kind is None:
            await self.app(scope, receive, send)
            return
        person = _person(scope, headers) if kind in BY_TURNS else ""
        place = scope[PLACE] = Place(self.lanes, person)

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start" and kind not in WHOLE:
                place.leave()  # how fast the client reads is its own affair
            await send(message)

        try:
            body = receive if kind in WHOLE else await _with_body(receive)
            if kind is LaneKind.BACKGROUND and self.lanes[LaneKind.CLICKS].num_waiting:
                raise self.lanes[kind].refuse("Clicks wait, and go first.")
            # A body that is on its way hides whether somebody has gone.
            await place.take(kind, None if kind in WHOLE else receive)
            await self.app(scope, body, sent)
        except Busy as busy:
            answer = problem_response(
                service_problem(busy), {"Retry-After": str(busy.retry_after_s)}
            )
            await answer(scope, receive, send)
        except Gone:
            return
        finally:
            place.leave()


def _person(scope: Scope, headers: Headers) -> str:
    """Return what a sender signs in with, else their address."""
    session = SESSION.search(headers.get("cookie", ""))
    address, _ = scope.get("client") or ("", 0)
    return headers.get("authorization") or (session[1] if session else str(address))


async def _with_body(receive: Receive) -> Receive:
    """Return a `receive` with the same messages that already has the whole body. Raises Gone."""
    pieces: list[bytes] = []
    refusal: HTTPException | None = None  # api/middleware/body_cap.py: it is the app's to answer
    has_more = True
    while has_more and refusal is None:
        try:
            message = await receive()
        except HTTPException as error:
            refusal = error
            break
        if message["type"] == "http.disconnect":
            raise Gone
        pieces.append(message.get("body", b""))
        has_more = message.get("more_body", False)
    body: list[Message] = [{"type": "http.request", "body": b"".join(pieces)}]

    async def again() -> Message:
        if refusal is not None:
            raise refusal
        return body.pop() if body else await receive()

    return again


async def _hung_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _give(turn: Turn) -> None:
    if not turn.done():
        turn.set_result(None)
