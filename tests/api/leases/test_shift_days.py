"""The days of 23 and 25 hours: every hour of them can be booked once, and is billed once.

A number at the end of a name is that of the case in the list of edge cases.
"""

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from sqlalchemy import select

from api.leases import booking
from api.leases.availability import availability
from api.leases.openings import Openings
from api.leases.schemas import Block
from api.web.identity import Person
from core.base.errors import BadRequest, HourTaken
from core.database.database import Database
from core.leases.active_policies import fingerprint
from core.policy.grid import HOUR
from core.states import LeaseState
from core.tables.kinds import Role, Scope
from core.tables.leases import Lease
from core.tables.policies import AppliedPolicy
from tests.scheduler.world import World

NEW_YORK = ZoneInfo("America/New_York")
POLICY = """
policy: {id: days, version: 1, zone: America/New_York}
bands:
  overnight: {local: ["01:00", "07:00"], days: all}
  daytime: {complement_of: overnight}
quotas:
  daily: {scope: user, period: day, max_node_hours: {all: CAP}}
"""


def world_before(database: Database, day: date, cap: int) -> World:
    """Noon of the day before, with a cap of hours for each civil day, and one node."""
    now = datetime(day.year, day.month, day.day, 12, tzinfo=NEW_YORK) - timedelta(days=1)
    world = World(database, now.astimezone(UTC))
    world.node("north-01")
    world.node("north-02")
    text = POLICY.replace("CAP", str(cap))
    with database.write() as session:
        session.add(
            AppliedPolicy(
                policy_id="days",
                version=1,
                document=text,
                sha256=fingerprint(text),
                active=True,
                applied_by="user_ada",
                applied_at=world.now,
            )
        )
    return world


def book(world: World, start: datetime, *, user: str = "ada", node: str = "north-01") -> str:
    person = Person(f"user_{user}", user, Role.USER, "America/New_York", "t", frozenset(Scope))
    with world.database.write() as session:
        return booking.book(session, person, Block(node=node, start=start, hours=1), now=world.now)


def test_both_one_o_clocks_of_the_long_night_are_leases_of_their_own_23(
    database: Database,
) -> None:
    world = world_before(database, date(2026, 11, 1), 25)
    first = book(world, datetime.fromisoformat("2026-11-01T01:00-04:00"))
    second = book(world, datetime.fromisoformat("2026-11-01T01:00-05:00"), user="bob")
    with database.read() as session:
        starts = {lease.id: lease.hold_start for lease in session.scalars(select(Lease))}
    assert starts == {
        first: datetime(2026, 11, 1, 5, tzinfo=UTC),
        second: datetime(2026, 11, 1, 6, tzinfo=UTC),
    }
    with pytest.raises(HourTaken):
        book(world, datetime.fromisoformat("2026-11-01T06:00+00:00"))


@pytest.mark.parametrize(
    ("day", "hours", "by_night"), [(date(2026, 11, 1), 25, 7), (date(2027, 3, 14), 23, 5)]
)
def test_a_day_view_has_as_many_columns_as_the_day_has_hours_24(
    database: Database, day: date, hours: int, by_night: int
) -> None:
    world = world_before(database, day, 25)
    midnight = datetime(day.year, day.month, day.day, tzinfo=NEW_YORK)
    ends = datetime(day.year, day.month, day.day, tzinfo=NEW_YORK) + timedelta(days=1)
    length = (ends.astimezone(UTC) - midnight.astimezone(UTC)) // HOUR
    person = Person("user_ada", "ada", Role.USER, "America/New_York", "t", frozenset(Scope))
    with database.read() as session:
        view = availability(
            session,
            person,
            Openings(),
            node_class=None,
            names=(),
            start=midnight.astimezone(UTC),
            hours=length,
            block_hours=None,
            any_length=False,
            now=world.now,
        )
    shown = [hour.start.astimezone(NEW_YORK) for hour in view.hours]
    assert len(shown) == len({moment.astimezone(UTC) for moment in shown}) == hours
    assert {moment.date() for moment in shown} == {day}
    assert sum(1 <= moment.hour < 7 for moment in shown) == by_night


@pytest.mark.parametrize(("day", "hours"), [(date(2026, 11, 1), 25), (date(2027, 3, 14), 23)])
def test_a_cap_per_day_is_one_of_the_civil_day_and_every_hour_counts_once_25(
    database: Database, day: date, hours: int
) -> None:
    world = world_before(database, day, hours)
    start = datetime(day.year, day.month, day.day, tzinfo=NEW_YORK).astimezone(UTC)
    for number in range(hours):
        world.now = max(world.now, start + (number - 4) * HOUR)  # few are open at a time
        lease = book(world, start + number * HOUR)
        with database.write() as session:  # it was used, and counts
            row = session.get_one(Lease, lease)
            row.state = LeaseState.ENDED
    with pytest.raises(BadRequest, match=f"used {hours} of {hours} node-hours") as caught:
        book(world, start + (hours - 1) * HOUR, node="north-02")
    assert caught.value.code == "user_cap"
    world.now = start + hours * HOUR
    book(world, start + hours * HOUR)  # the day after begins with its own
    with database.read() as session:
        counted = session.scalars(select(Lease).where(Lease.counts)).all()
    assert sum((lease.hold_end - lease.hold_start) // HOUR for lease in counted) == hours + 1
