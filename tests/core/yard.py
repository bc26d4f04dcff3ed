"""Two nodes of four slots, and one person who takes them: for tests of who holds what when."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.base.errors import HourTaken
from core.database.database import Database
from core.leases import leases
from core.tables.kinds import LeaseKind
from core.tables.leases import Lease, Occupancy
from core.tables.nodes import Node
from tests.core.holds import OVERBOOKED
from tests.core.people import NOW, add_node, add_user

HOUR = timedelta(hours=1)
SLOTS = 4


class Yard:
    """One user and two nodes of four slots."""

    def __init__(self, database: Database) -> None:
        self.database = database
        with database.write() as session:
            self.user_id = add_user(session)
            self.node_id, self.other_id = (
                add_node(session, name, slots=SLOTS).id for name in ("north-01", "north-02")
            )

    def take(
        self,
        num_slots: int | None = None,
        start: datetime = NOW,
        hours: float = 1,
        *,
        node_id: str | None = None,
        kind: LeaseKind = LeaseKind.BOOKED,
    ) -> str:
        """The id of a lease of so many slots, None being all, in a transaction of its own."""
        with self.database.write() as session:
            return self.take_in(session, num_slots, start, hours, node_id=node_id, kind=kind).id

    def take_in(
        self,
        session: Session,
        num_slots: int | None = None,
        start: datetime = NOW,
        hours: float = 1,
        *,
        node_id: str | None = None,
        kind: LeaseKind = LeaseKind.BOOKED,
    ) -> Lease:
        """The same inside a longer transaction."""
        return leases.take(
            session,
            user_id=self.user_id,
            node=session.get_one(Node, node_id or self.node_id),
            kind=kind,
            start=start,
            end=start + hours * HOUR,
            grace_s=300,
            now=NOW,
            actor="t",
            message="Taken.",
            num_slots=num_slots,
        )

    def change(self, work: Callable[[Session], object]) -> None:
        with self.database.write() as session:
            work(session)

    def holds(self) -> list[tuple[datetime, datetime]]:
        with self.database.read() as session:
            rows = session.scalars(select(Occupancy).where(Occupancy.live)).all()
        return [(row.hold_start, row.hold_end) for row in rows]

    def check(self) -> None:
        with self.database.read() as session:
            assert session.scalar(OVERBOOKED) == 0


def race(works: Sequence[Callable[[], object]]) -> list[object]:
    """What each of many at once got: an id, or the refusal."""
    gate = threading.Barrier(len(works))

    def run(work: Callable[[], object]) -> object:
        gate.wait(60)
        try:
            return work()
        except HourTaken as error:
            return error

    with ThreadPoolExecutor(len(works)) as pool:
        return list(pool.map(run, works))
