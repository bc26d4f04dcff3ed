"""Content of all open calendars of this process: read, compared and encoded once per change.

A version is `{board}-{number}`; other processes number theirs otherwise. The last changes are kept,
so that a viewer holds nothing but the number of the last one it was sent.
"""

import asyncio
import secrets
from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import cache

import anyio

from api.watching.holds import (
    Calendar,
    NodeHolds,
    Rules,
    as_json,
    changed_nodes,
    changed_people,
    read_calendar,
    read_rules,
)
from api.watching.news import message
from api.watching.reader import Reader
from api.web.identity import Person
from core.base.clock import utc_now
from core.database.database import Database
from core.wire.doorbell import Topic

POLL_S = 2.0
REST_S = 0.2  # between two readings: at most five changes a second
CHANGES = 300  # kept: a minute of the busiest hour

Telling = tuple[str, str]
"""Kind of a message, and its JSON."""


@dataclass(frozen=True)
class Change:
    """One change of the calendar or the rules, with its version."""

    version: str
    holds: dict[bool, str]
    """Changed nodes as JSON, by whether the viewer is staff; empty if no node has changed."""
    owners: frozenset[str]
    """Ids of the users whose own leases, offers, waitlist entries or jobs have changed."""
    is_of_rules: bool
    """True if rules changed that hold for everybody."""
    ruled: frozenset[str]
    """Ids of the users for whom other rules hold now, or an exception."""

    def for_(self, person: Person) -> Iterator[Telling]:
        """Yield the messages of this change for a person."""
        said = f'{{"version":"{self.version}"}}'
        if person.id in self.owners:
            yield "own", said
        if self.is_of_rules or person.id in self.ruled:
            yield "rules", said
        if self.holds:
            yield "holds", self.holds[person.is_staff]


class Board(Reader):
    """The present calendar, and its last changes."""

    def __init__(self, database: Database) -> None:
        super().__init__(POLL_S, REST_S)
        self._database = database
        self._limiter = anyio.CapacityLimiter(1)
        self._name = secrets.token_hex(4)
        self._number = 0
        self._calendar: Calendar | None = None
        self._rules: Rules | None = None
        self._changes: deque[Change] = deque(maxlen=CHANGES)
        self._whole = cache(self._write_whole)
        self._due: set[Topic] = set()
        self._all_read_at = float("-inf")

    def __str__(self) -> str:
        return "calendar"

    def ring(self, topics: Collection[Topic]) -> None:
        """Read these topics again soon: they may have changed."""
        if topics:
            self._due.update(topics)
            self.wake()

    def follow(self, person: Person, last_event_id: str) -> Callable[[], bytes]:
        """Return a function that gives, at each call, the changes since its last call. Its first
        call gives everything, or the changes since a version that is still known."""
        number: int | None = None

        def news() -> bytes:
            nonlocal number
            since = self._number_of(last_event_id) if number is None else number
            number = self._number
            if since is None or since < number - len(self._changes):
                return self._all_of_it(person, is_return=bool(last_event_id) or since is not None)
            return self._since(since, person)

        return news

    def _number_of(self, version: str) -> int | None:
        """Return the number of the change with this version; None if it is not one of this
        board's."""
        name, _, number = version.partition("-")
        if name != self._name or not number.isdecimal() or int(number) > self._number:
            return None
        return int(number)

    def _all_of_it(self, person: Person, *, is_return: bool) -> bytes:
        """Return the whole calendar. A returning viewer who has missed unknown changes is also told
        that everything else may have changed."""
        version = f"{self._name}-{self._number}"
        said = f'{{"version":"{version}"}}'
        missed = [("own", said), ("rules", said)] if is_return else []
        return _written([*missed, ("holds", self._whole(person.is_staff))], version)

    def _since(self, number: int, person: Person) -> bytes:
        if number == self._number:
            return b""
        missed = list(self._changes)[number - self._number :]
        tellings = [telling for change in missed for telling in change.for_(person)]
        return _written(tellings, missed[-1].version)

    async def _read(self) -> None:
        begun_at = asyncio.get_running_loop().time()
        due, self._due = self._due, set()
        if not self._is_kept_up or begun_at >= self._all_read_at + POLL_S:
            due, self._all_read_at = set(Topic), begun_at
        calendar, rules = await anyio.to_thread.run_sync(
            self._ask, Topic.CALENDAR in due, Topic.RULES in due, limiter=self._limiter
        )
        self._take(calendar or self._calendar, rules or self._rules)

    def _ask(self, calendar: bool, rules: bool) -> tuple[Calendar | None, Rules | None]:
        now = utc_now()
        with self._database.read() as session:
            return (
                read_calendar(session, now) if calendar else None,
                read_rules(session, now) if rules else None,
            )

    def _take(self, calendar: Calendar | None, rules: Rules | None) -> None:
        assert calendar is not None
        assert rules is not None
        before, ruled_before = self._calendar, self._rules
        self._calendar, self._rules = calendar, rules
        if before is None or ruled_before is None:
            return
        nodes = changed_nodes(before, calendar)
        owners = changed_people(before.own, calendar.own)
        is_of_rules = ruled_before.general != rules.general
        ruled = changed_people(ruled_before.of_person, rules.of_person)
        if not (nodes or owners or is_of_rules or ruled):
            return
        self._number += 1
        version = f"{self._name}-{self._number}"
        holds = {
            for_staff: _holds(version, nodes, is_whole=False, for_staff=for_staff)
            for for_staff in ((False, True) if nodes else ())
        }
        self._changes.append(Change(version, holds, owners, is_of_rules, ruled))
        self._whole.cache_clear()
        self.tell()

    def _write_whole(self, for_staff: bool) -> str:
        assert self._calendar is not None
        nodes = list(self._calendar.nodes.values())
        version = f"{self._name}-{self._number}"
        return _holds(version, nodes, is_whole=True, for_staff=for_staff)


def _holds(version: str, nodes: list[NodeHolds], *, is_whole: bool, for_staff: bool) -> str:
    whole = "true" if is_whole else "false"
    shown = as_json(nodes, for_staff=for_staff)
    return f'{{"version":"{version}","whole":{whole},"nodes":{shown}}}'


def _written(tellings: list[Telling], version: str) -> bytes:
    """Return the messages as server-sent events. Only the last has the version as its id: a viewer
    that is cut off before it has not received all of them."""
    last = len(tellings) - 1
    return b"".join(
        message(kind, said, version if at == last else None)
        for at, (kind, said) in enumerate(tellings)
    )
