"""Leader election: a database row with a term, checked inside every transaction that decides.

The leader renews its row every third of its time to live, in the database's own time. It trusts its
leadership only until one second before that time is over, measured on the monotonic clock from
before the renewal was sent. If the process is stopped in a cycle and woken a minute later, its next
transaction finds another term, and nothing is written.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

import structlog
from sqlalchemy import bindparam, func, select, text
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.orm import Session

from core.base.clock import utc_now
from core.database.database import Database
from core.process.cycle_numbers import CycleNumbers
from core.tables.processes import Leadership as LeadershipRow
from core.tables.topics import topics_of
from core.wire.doorbell import Topic

NAME = "scheduler"
MARGIN_S = 1.0
LOCK_TIMEOUT = "2s"  # a stopped leader may hold the row: then nobody can become leader now
IDLE_TIMEOUT = "10s"  # after which the server ends the transaction of such a leader

# Built once: every transaction that decides asks it.
OURS = (
    select(LeadershipRow.term)
    .where(LeadershipRow.name == NAME, LeadershipRow.term == bindparam("term"))
    .with_for_update(read=True)
)

log = structlog.get_logger()


class LeadershipLost(Exception):
    """Another scheduler leads now, or may lead; nothing was written."""


class LeadershipClaim:
    """Claim of this process to lead. A leader writes its decisions only through `write()`."""

    def __init__(
        self,
        database: Database,
        *,
        holder: str,
        ttl_s: float,
        renew_s: float | None = None,
        clock: Callable[[], datetime] = utc_now,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create a claim; raises ValueError if one late renewal would lose the leadership."""
        renew_s = ttl_s / 3 if renew_s is None else renew_s
        if renew_s * 2 >= ttl_s:
            raise ValueError(
                f"leadership is renewed every {renew_s:g} s and expires after {ttl_s:g} s; it "
                f"must expire after more than {renew_s * 2:g} s, so that one late renewal "
                "does no harm"
            )
        if ttl_s <= MARGIN_S + renew_s:
            raise ValueError(
                f"leader_ttl_s is {ttl_s:g}; it must be more than {MARGIN_S + renew_s:g}"
            )
        self.holder = holder
        self.term: int | None = None
        self.leader_since: datetime | None = None
        """Start of this process's present term; None if it does not lead."""
        self.numbers = CycleNumbers()
        """Durations of this process's cycles and pauses; written with every renewal."""
        self.writes = 0
        """Transactions that `write` has committed."""
        self._written: set[Topic] = set()
        self._database = database
        self._ttl_s = ttl_s
        self._renew_s = renew_s
        self._clock = clock
        self._monotonic = monotonic
        self._renewed_at = 0.0
        self._trusted_until = 0.0

    def hold(self) -> bool:
        """Return True if this process may decide now; renew or take over first if that is due."""
        now = self._monotonic()
        if self.term is not None and now < min(
            self._renewed_at + self._renew_s, self._trusted_until
        ):
            return True
        try:
            held = not self._is_anothers() and self._renew_or_take_over()
        except OperationalError as error:
            log.info("leadership_row_busy", error=str(error.orig))
            return self.term is not None and self._monotonic() < self._trusted_until
        if held:
            self._renewed_at = now
            self._trusted_until = now + self._ttl_s - MARGIN_S
        return held and self._monotonic() < self._trusted_until

    @contextmanager
    def write(self) -> Iterator[Session]:
        """Yield a session in a write transaction that only the leader can begin.

        Raises LeadershipLost if this process does not lead.
        """
        if not self.hold():
            raise LeadershipLost
        with self._database.write() as session:
            self.require(session)
            yield session
        self.writes += 1
        self._written |= topics_of(session)

    def take_written(self) -> set[Topic]:
        """Return the topics written about since the last call."""
        written, self._written = self._written, set()
        return written

    def require(self, session: Session) -> None:
        """Lock the leader's row until this transaction ends.

        Raises LeadershipLost if the row has another term than this process.
        """
        if not self._database.is_sqlite:
            session.execute(
                text(f"SET LOCAL idle_in_transaction_session_timeout = '{IDLE_TIMEOUT}'")
            )
        ours = session.scalar(OURS, {"term": self.term})
        if ours is None or self._monotonic() >= self._trusted_until:
            self._step_down()
            raise LeadershipLost

    def resign(self) -> None:
        """Let the next scheduler take over at once."""
        if self.term is None:
            return
        with self._database.write() as session:
            row = self._locked_row(session)
            if row is not None and row.term == self.term:
                row.expires_at = self._database_time(session)
        log.info("leadership_resigned", term=self.term)
        self._forget()

    def _is_anothers(self) -> bool:
        """Return True if another process seems to lead; read without a lock."""
        if self.term is not None:
            return False
        with self._database.read() as session:
            row = session.get(LeadershipRow, NAME)
            return row is not None and row.expires_at > self._database_time(session)

    def _renew_or_take_over(self) -> bool:
        try:
            with self._database.write() as session:
                if not self._database.is_sqlite:
                    session.execute(text(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'"))
                term = self._claim(session)
        except IntegrityError:  # two made the first row at once, and the other one was faster
            term = None
        if term is None:
            self._step_down()
            return False
        if term != self.term:
            self.term = term
            self.leader_since = self._clock()
            log.info("leadership_taken", term=term, holder=self.holder)
        return True

    def _claim(self, session: Session) -> int | None:
        row = self._locked_row(session)
        now = self._database_time(session)  # after the lock: waiting for it took time
        expires_at = now + timedelta(seconds=self._ttl_s)
        if row is None:
            row = LeadershipRow(name=NAME, holder=self.holder, term=1, expires_at=expires_at)
            session.add(row)
            return row.term
        if row.term != self.term:
            if row.expires_at > now:
                return None
            row.term += 1
            row.holder = self.holder
        row.expires_at = expires_at
        row.cycles = self.numbers.model_dump(mode="json")
        return row.term

    def _locked_row(self, session: Session) -> LeadershipRow | None:
        return session.scalars(
            select(LeadershipRow).where(LeadershipRow.name == NAME).with_for_update()
        ).one_or_none()

    def _database_time(self, session: Session) -> datetime:
        if self._database.is_sqlite:  # it has no clock of its own, and one machine
            return self._clock()
        now = session.scalar(select(func.clock_timestamp()))
        assert isinstance(now, datetime)
        return now

    def _step_down(self) -> None:
        if self.term is not None:
            log.warning("leadership_lost", term=self.term)
        self._forget()

    def _forget(self) -> None:
        self.term = None
        self.leader_since = None
        self._trusted_until = 0.0
