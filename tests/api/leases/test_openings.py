"""Where one may start a block is kept, and always what judging it anew would say."""

import random
from datetime import datetime, timedelta

import pytest

from api.leases.availability import availability
from api.leases.openings import Openings
from api.web.identity import Person
from core.base.clock import utc_now
from core.leases.situation import Judge
from core.policy.grid import HOUR, hour_floor
from tests.api.conftest import World
from tests.api.policies.test_policies import document, post
from tests.api.times import next_hour
from tests.api.watching.test_calendar_stream import person

QUOTAS = """
bands:
  night: {local: ["22:00", "06:00"], quota: extra}
  day: {complement_of: night, quota: main}
quotas:
  main:
    period: day
    one_of: [{name: some, slots: [{pool: small, hours: 2}], distinct_times: true}]
  extra: {period: night, one_of: [{name: one, slots: [{pool: all, hours: 3}]}]}
  hours: {period: week, max_node_hours: {all: %d}}
  open: {max_future_leases: 3}
gaps: {mode: %s}
grid: {min_lead_min: %d}
"""


def rules(version: int, chance: random.Random) -> str:
    more = QUOTAS % (chance.randint(2, 8), chance.choice(["hard", "soft"]), chance.choice([0, 45]))
    return document(version, hours=chance.choice(["[1, 2, 3]", "[2]", "[2, 3]"]), more=more)


def seen(
    world: World, who: Person, openings: Openings, now: datetime, names: tuple[str, ...] = ()
) -> object:
    with world.database.read() as session:
        return availability(
            session,
            who,
            openings,
            names=names,
            node_class=None,
            start=hour_floor(now),
            hours=24,
            block_hours=None,
            any_length=True,
            now=now,
        )


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2))])
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_what_is_kept_is_what_judging_anew_would_say(world: World, seed: int) -> None:
    chance = random.Random(seed)
    version, booked, ahead = 1, [], timedelta()
    kept = Openings()
    people = [person(world.database, name) for name in ("ann", "bob")]
    assert post(world, rules(version, chance))[0] == 200
    kinds = set()
    for _ in range(40):
        act = chance.choice(["book", "book", "cancel", "time", "rules", "grant", "node"])
        who = chance.choice([world.ann, world.bob])
        if act == "book":
            block = {"node": "box", "start": next_hour(chance.randrange(24)), "hours": 2}
            answer = who.post("/v1/leases", json=block)
            booked += [(who, answer.json()["id"])] if answer.status_code == 201 else []
        elif act == "cancel" and booked:
            owner, lease_id = booked.pop()
            assert owner.delete(f"/v1/leases/{lease_id}").status_code == 204
        elif act == "time":
            ahead += timedelta(seconds=chance.choice([1, 59, 60, 600, 3600]))
        elif act == "rules":
            version += 1
            assert post(world, rules(version, chance))[0] == 200
        elif act == "grant":
            grant = {
                "user": chance.choice(["ann", "bob"]),
                "rule": chance.choice(["quota_main", "bad_block_length", "too_many_open"]),
                "extra": 1,
                "starts_at": next_hour(),
                "ends_at": next_hour(chance.randrange(2, 24)),
                "why": "A long run.",
            }
            assert world.staff.post("/v1/grants", json=grant).status_code == 201
        elif act == "node":
            for word in chance.choice([["drain"], ["resume"], ["drain", "resume"]]):
                answer = world.admin.post(f"/v1/admin/nodes/box/{word}")
                assert answer.status_code in (200, 409), answer.text
        now = utc_now() + ahead
        for one in people:
            view = seen(world, one, kept, now)
            assert view == seen(world, one, Openings(), now), act
            kinds |= {taken.why for hour in view.hours for taken in hour.taken}
    assert len(kinds) > 3, "the rules had something to say"


def test_hours_that_nothing_has_changed_are_not_judged_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its page asks again whenever others book: only what they have changed costs time."""
    asked: list[datetime] = []
    judging = Judge.first_refusal

    def first_refusal(
        self: Judge, node: object, start: datetime, end: datetime, **size: object
    ) -> object:
        asked.append(start)
        return judging(self, node, start, end, **size)

    monkeypatch.setattr(Judge, "first_refusal", first_refusal)
    post(world, document())
    ann, kept = person(world.database, "ann"), Openings()
    now = utc_now().replace(second=0)
    first = seen(world, ann, kept, now)
    assert len(asked) == len(set(asked)) <= 24
    assert min(asked) + HOUR > now, "hours that are over are not judged"
    asked.clear()
    assert seen(world, ann, kept, now + timedelta(seconds=20)) == first
    assert asked == []
    assert world.bob.post(
        "/v1/leases", json={"node": "box", "start": next_hour(3), "hours": 1}
    ).is_success
    later = seen(world, ann, kept, now + timedelta(seconds=30))
    assert asked, "a hold on the node is something that the rules look at"
    assert [one.why for hour in later.hours for one in hour.taken].count("leased") == 1


def test_some_nodes_only_are_told_where_they_are_named(world: World) -> None:
    def view(**params: object) -> dict:
        asked = {"start": next_hour(), "hours": 2, "any_length": True, **params}
        return world.ann.get("/v1/leases/availability", params=asked).json()

    assert view(node="BOX") == view(node=["box", "box"]) == view()
    assert view(node="bax")["code"] == "not_found"
