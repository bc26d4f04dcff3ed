"""Who is next: age wins in the end, fair share, lab and length move people by hours."""

from datetime import UTC, datetime, timedelta

import pytest

from core.states import LeaseState
from core.tables.people import Lab, Membership
from scheduler.queue.fair_share import HALF_LIFE, MEAN_LIFE_H, Account, decayed_h, standings
from scheduler.queue.ordering import NEWCOMER, UserShare, Weights, points
from tests.scheduler.world import World

HOUR = timedelta(hours=1)
NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


def test_a_week_ago_counts_half_and_the_future_nothing() -> None:
    assert decayed_h(NOW - HOUR, NOW, NOW) == pytest.approx(1.0, rel=0.01)
    past = NOW - HALF_LIFE
    assert decayed_h(past - HOUR, past, NOW) == pytest.approx(0.5, rel=0.01)
    assert decayed_h(NOW - HOUR, NOW + 5 * HOUR, NOW) == decayed_h(NOW - HOUR, NOW, NOW)
    assert decayed_h(NOW, NOW + HOUR, NOW) == 0.0
    # Somebody who has always used one slot has used the mean life of it.
    assert decayed_h(NOW - 100 * HALF_LIFE, NOW, NOW) == pytest.approx(MEAN_LIFE_H)


def test_the_fair_share_of_a_lab_is_its_weight_and_that_of_a_person_a_part_of_the_labs() -> None:
    whole = 4 * MEAN_LIFE_H  # four slots, always used
    accounts = [
        Account("ada", "large", whole * 0.75 / 2),
        Account("bob", "large", whole * 0.75 / 2),
        Account("cyd", "small", whole * 0.25),
    ]
    found = standings(accounts, slots=4, lab_weights={"large": 3.0, "small": 1.0})
    assert [found[name].usage for name in ("ada", "bob", "cyd")] == pytest.approx([1, 1, 1])
    assert (found["ada"].lab_weight, found["cyd"].lab_weight) == (1.0, pytest.approx(1 / 3))


def test_in_a_lab_that_has_used_much_who_used_nothing_stands_better_than_who_used_it() -> None:
    whole = 4 * MEAN_LIFE_H
    accounts = [Account("ada", "one", whole), Account("bob", "one", 0.0), Account("cyd", None, 0.0)]
    found = standings(accounts, slots=4, lab_weights={"one": 1.0})
    assert found["cyd"].usage < found["bob"].usage < found["ada"].usage


def test_somebody_in_two_labs_stands_as_in_the_better_one() -> None:
    accounts = [Account("ada", "busy", 1e4), Account("ada", "idle", 0.0)]
    found = standings(accounts, slots=4, lab_weights={"busy": 1.0, "idle": 1.0})
    assert found["ada"].usage == 0.0


def test_points_grow_with_waiting_and_everything_else_is_bounded() -> None:
    heavy, weights = UserShare(usage=50.0, lab_weight=0.0), Weights()
    most = weights.fair_share_h + weights.lab_h + weights.short_h
    just_come = points(0.0, 600, NEWCOMER)
    assert just_come <= most
    assert points((most + 0.1) * 3600, 9e5, heavy) > just_come


def test_a_short_job_is_an_hour_ahead() -> None:
    assert points(0, 3600, NEWCOMER) == pytest.approx(points(3600, 3601, NEWCOMER))


def test_leases_and_jobs_are_charged_and_who_used_less_comes_first(
    migrated_database: object,
) -> None:
    world = World(migrated_database)  # type: ignore[arg-type]
    node_id = world.node()
    with world.database.write() as session:
        for name in ("ada", "bob"):
            lab = Lab(id=f"lab_{name}", name=f"of {name}", created_at=world.now)
            session.add(lab)
            session.flush()
            session.add(Membership(lab_id=lab.id, user_id=f"user_{name}"))
    lease_id = world.book(node_id, world.now, 12)
    world.cycle()
    world.now += timedelta(hours=11, minutes=55)
    world.report()
    world.cycle()
    world.report()
    world.cycle()
    assert world.get_lease(lease_id).state is LeaseState.ENDED
    world.now += timedelta(minutes=10)
    world.report()
    hers = world.job(wall="3h", user="ada")
    world.now += timedelta(minutes=5)
    world.report()
    his = world.job(wall="3h", user="bob")
    assert world.cycle() == [his]
    assert world.get_job(hers).reason_code in ("node_busy", "queue")
