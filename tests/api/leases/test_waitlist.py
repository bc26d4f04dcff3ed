"""/v1/waitlist, /v1/maintenance and calendar feeds over HTTP."""

from datetime import datetime, timedelta
from typing import Any

from icalendar import Calendar
from sqlalchemy import select

from core.base.clock import utc_now
from core.leases import waitlist
from core.policy.grid import HOUR
from core.tables.kinds import OfferState
from core.tables.leases import Lease, Offer, Wait
from core.tables.notices import Notice
from tests.api.conftest import World, client, enrol
from tests.api.shapes import heartbeat
from tests.api.times import next_hour


def block(more: int = 1, hours: int = 2, **changes: Any) -> dict[str, Any]:
    return {"node": "box", "start": next_hour(more), "hours": hours, **changes}


def join(world: World, who: Any, more: int = 1, **changes: Any) -> dict[str, Any]:
    body = {
        "node_class": "cpu2",
        "first_start": next_hour(more),
        "last_start": next_hour(more),
        "hours": 2,
        **changes,
    }
    answer = who.post("/v1/waitlist", json=body)
    assert answer.status_code == 201, answer.text
    wait: dict[str, Any] = answer.json()
    return wait


def serve(world: World, wait_id: str) -> None:
    """What the scheduler does with the next in line."""
    with world.database.write() as session:
        wait = session.get_one(Wait, wait_id)
        free = waitlist.find(session, wait, now=utc_now())
        assert free is not None
        assert waitlist.offer(session, wait, free, now=utc_now())


def test_who_waits_is_offered_what_was_cancelled_and_takes_it_up_once(world: World) -> None:
    taken = world.ann.post("/v1/leases", json=block()).json()
    first, second = join(world, world.bob), join(world, world.ann)
    assert (first["state"], first["ahead"], second["ahead"]) == ("waiting", 0, 1)
    assert world.ann.get(f"/v1/waitlist/{first['id']}").status_code == 404
    assert world.bob.post(f"/v1/waitlist/{first['id']}/accept").json()["code"] == "no_offer"
    world.ann.delete(f"/v1/leases/{taken['id']}")
    serve(world, first["id"])

    shown = world.bob.get(f"/v1/waitlist/{first['id']}").json()
    assert (shown["state"], shown["offer"]["node"]) == ("offered", "box")
    assert world.ann.post("/v1/leases", json=block()).json()["code"] == "node_taken"
    assert world.ann.post(f"/v1/waitlist/{first['id']}/accept").status_code == 404
    answer = world.bob.post(f"/v1/waitlist/{first['id']}/accept")
    assert answer.status_code == 201, answer.text
    assert answer.json()["hold_start"] == taken["hold_start"]
    again = world.bob.post(f"/v1/waitlist/{first['id']}/accept")  # the answer was lost on its way
    assert (again.status_code, again.json()["id"]) == (201, answer.json()["id"])
    with world.database.read() as session:
        (notice,) = session.scalars(select(Notice).where(Notice.kind == "block_offered"))
    assert notice.facts["wait"] == first["id"]


def test_an_offer_lives_from_when_its_owner_could_read_it(world: World) -> None:
    wait = join(world, world.bob)
    serve(world, wait["id"])
    with world.database.write() as session:  # the page was not served for nine minutes
        made = session.scalars(select(Offer)).one()
        made.created_at -= timedelta(minutes=9)
        made.expires_at = first = made.expires_at - timedelta(minutes=9)
    assert world.staff.get("/v1/waitlist?user=all").json()["data"][0]["offer"]["expires_at"]
    assert world.bob.get("/v1/waitlist?state=waiting").json()["data"] == []  # nor is it shown here
    before = utc_now()
    shown = world.bob.get("/v1/waitlist").json()["data"][0]["offer"]
    ends = datetime.fromisoformat(shown["expires_at"])
    assert ends - timedelta(minutes=10) >= before > first - timedelta(minutes=10)
    again = world.bob.get(f"/v1/waitlist/{wait['id']}").json()["offer"]
    assert again["expires_at"] == shown["expires_at"]


def test_an_offer_can_be_taken_up_until_the_scheduler_has_ended_it(world: World) -> None:
    wait = join(world, world.bob)
    serve(world, wait["id"])
    with world.database.write() as session:
        made = session.scalars(select(Offer)).one()
        made.expires_at = late = utc_now() - timedelta(seconds=1)
        assert waitlist.let_pass(session, made, OfferState.EXPIRED, now=late)
    refused = world.bob.post(f"/v1/waitlist/{wait['id']}/accept").json()
    assert refused["code"] == "offer_expired"
    assert f"ended at {late:%H:%M} UTC. Offer expired: the entry" in refused["detail"]
    other = join(world, world.ann, more=4)
    serve(world, other["id"])
    with world.database.write() as session:
        open_now = select(Offer).where(Offer.state == OfferState.OPEN)
        session.scalars(open_now).one().expires_at = late
    assert world.ann.post(f"/v1/waitlist/{other['id']}/accept").status_code == 201


RULES = """policy: {id: lab, zone: UTC}
pools:
  small: {nodes: [box], hours: [2, 3]}
quotas:
  main: {period: day, one_of: [{name: one, slots: [{pool: small, hours: 3}]}]}
"""


def wish(world: World, who: Any, more: int = 1, **changes: Any) -> tuple[int, Any, bool]:
    """Status and code of a wish, and whether the verdict on that block says it can wait."""
    body = {"node": "box", "hours": 2, **changes}
    judged = who.post("/v1/leases/verdict", json={**body, "start": next_hour(more)})
    assert judged.status_code == 200, judged.text
    body |= {"first_start": next_hour(more), "last_start": next_hour(more)}
    answer = who.post("/v1/waitlist", json=body)
    return answer.status_code, answer.json().get("code"), judged.json()["can_wait"]


def test_nobody_waits_for_what_no_waiting_can_give(world: World) -> None:
    yaml = {"Content-Type": "application/yaml"}
    assert world.staff.post("/v1/policies", content=RULES, headers=yaml).status_code == 200
    four = 28 - datetime.fromisoformat(next_hour()).hour  # o'clock, tomorrow
    assert world.ann.post("/v1/leases", json=block(more=four)).status_code == 201
    assert wish(world, world.bob, more=four) == (201, None, True)  # ann has the hours
    assert wish(world, world.bob, more=four, hours=5) == (422, "bad_block_length", False)
    assert world.bob.post("/v1/leases", json=block(more=four + 4)).status_code == 201
    assert wish(world, world.bob, more=four) == (422, "quota_main", False)
    # Of a range it is enough that one start may be given: each day has a quota of its own.
    body = {"node": "box", "hours": 2, "first_start": next_hour(four)}
    too_short = world.bob.post("/v1/waitlist", json={**body, "last_start": next_hour(four + 9)})
    assert too_short.json()["errors"][0]["code"] == "quota_main"
    longer = {**body, "last_start": next_hour(four + 20)}
    assert world.bob.post("/v1/waitlist", json=longer).status_code == 201
    refused = world.bob.post("/v1/waitlist", json={**longer, "hours": 5}).json()
    assert "not 5" in refused["detail"]


def test_nobody_is_offered_more_than_they_may_take(world: World) -> None:
    yaml = {"Content-Type": "application/yaml"}
    rules = RULES.replace("[2, 3]", "[2]").replace("period: day", "period: window")
    assert world.staff.post("/v1/policies", content=rules, headers=yaml).status_code == 200
    wishes = [join(world, world.bob, more) for more in (4, 8)]
    serve(world, wishes[0]["id"])
    with world.database.read() as session:
        second = session.get_one(Wait, wishes[1]["id"])
        assert waitlist.find(session, second, now=utc_now()) is None
    refused = world.bob.post("/v1/leases", json=block(more=12)).json()
    assert refused["code"] == "quota_main"
    assert world.bob.post(f"/v1/waitlist/{wishes[0]['id']}/accept").status_code == 201


def test_a_declined_offer_goes_to_the_next_and_a_left_one_is_free(world: World) -> None:
    first, second = join(world, world.bob), join(world, world.ann)
    serve(world, first["id"])
    declined = world.bob.post(f"/v1/waitlist/{first['id']}/decline").json()
    assert (declined["state"], declined["ahead"]) == ("waiting", 1)
    serve(world, second["id"])
    assert world.ann.delete(f"/v1/waitlist/{second['id']}").status_code == 204
    assert world.bob.post("/v1/leases", json=block()).status_code == 201
    (mine,) = world.ann.get("/v1/waitlist").json()["data"]
    assert mine["state"] == "left"


def test_wrong_wishes_name_their_field(world: World) -> None:
    good = {
        "node_class": "cpu2",
        "first_start": next_hour(),
        "last_start": next_hour(),
        "hours": 2,
    }
    for change, param in (
        ({"node_class": None}, "node_class"),
        ({"node_class": "h100"}, "node_class"),
        ({"node": "box"}, "node_class"),
        ({"last_start": next_hour(-3), "first_start": next_hour(-4)}, "last_start"),
        ({"last_start": next_hour(-3)}, "last_start"),
        ({"first_start": None}, "start"),
        ({"hours": 0}, "hours"),
    ):
        answer = world.ann.post("/v1/waitlist", json={**good, **change})
        problem = answer.json()
        assert answer.status_code == 422, (change, answer.text)
        assert param in [problem.get("param"), *(one["param"] for one in problem["errors"])]


def maintain(**changes: Any) -> dict[str, Any]:
    return {"nodes": ["box"], "start": next_hour(1), "hours": 2, "why": "New disks.", **changes}


def test_maintenance_over_leases_needs_its_plan_and_moves_or_refunds_each_56(
    world: World,
) -> None:
    crate = client(world.app, enrol(world.app, world.database, "crate"))
    crate.post("/v1/node/heartbeat", json=heartbeat())
    moved = world.ann.post("/v1/leases", json=block()).json()["id"]
    week = timedelta(days=7)
    later = (datetime.fromisoformat(next_hour(1)) + week).isoformat()
    refunded = world.bob.post("/v1/leases", json=block(start=later)).json()["id"]
    world.ann.post("/v1/leases", json=block(start=later, node="crate"))
    wanted = maintain(rule="FREQ=WEEKLY;COUNT=3", zone="UTC")

    assert world.ann.post("/v1/maintenance", json=wanted).status_code == 403
    plan = world.staff.post("/v1/maintenance/plan", json=wanted).json()
    assert {one["lease"]: (one["act"], one["to_node"]) for one in plan["displaced"]} == {
        moved: ("move", "crate"),
        refunded: ("refund", None),
    }
    refused = world.staff.post("/v1/maintenance", json=wanted)
    assert (refused.status_code, refused.json()["code"]) == (409, "plan_needed")
    assert world.ann.get(f"/v1/leases/{moved}").json()["node"] == "box"

    made = world.staff.post("/v1/maintenance", json={**wanted, "plan": plan["plan"]}).json()
    assert [one["held"] for one in made["occurrences"]] == [True, True, True]
    assert {one["lease"]: one["result"] for one in made["displaced"]} == {
        moved: "moved to crate",
        refunded: "refunded",
    }
    assert world.ann.get(f"/v1/leases/{moved}").json()["node"] == "crate"
    lost = world.bob.get(f"/v1/leases/{refunded}").json()
    assert (lost["state"], lost["counts"], lost["settled_as"]) == (
        "cancelled",
        False,
        "maintenance",
    )
    assert world.bob.post("/v1/leases", json=block()).json()["code"] == "node_taken"
    assert world.staff.delete(f"/v1/maintenance/{made['id']}").status_code == 204
    assert world.bob.post("/v1/leases", json=block()).status_code == 201


def test_a_stale_plan_displaces_nothing(world: World) -> None:
    lease = world.ann.post("/v1/leases", json=block()).json()["id"]
    plan = world.staff.post("/v1/maintenance/plan", json=maintain()).json()["plan"]
    world.ann.post(f"/v1/leases/{lease}/extend", json={"hours": 1})
    answer = world.staff.post("/v1/maintenance", json=maintain(plan=plan))
    assert (answer.status_code, answer.json()["code"]) == (409, "plan_needed")
    assert "changed since" in answer.json()["detail"]
    assert world.ann.get(f"/v1/leases/{lease}").json()["state"] == "booked"


def events_of(world: World, url: str) -> dict[str, Any]:
    answer = world.nobody.get(url)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/calendar")
    calendar = Calendar.from_ical(answer.content)
    return {str(event["uid"]): event for event in calendar.walk("VEVENT")}


def test_a_feed_shows_own_leases_and_cancelled_ones_as_such_75(world: World) -> None:
    lease = world.ann.post("/v1/leases", json=block()).json()
    world.bob.post("/v1/leases", json=block(more=5))
    feed = world.ann.post("/v1/calendars", json={}).json()
    url = feed["url"].removeprefix("http://127.0.0.1:8471")
    ((uid, event),) = events_of(world, url).items()
    start = event["dtstart"].dt
    assert start == datetime.fromisoformat(lease["hold_start"])
    assert start.utcoffset() == timedelta(0)
    assert event["dtend"].dt == start + 2 * HOUR - timedelta(minutes=5)
    assert (event["sequence"], event["status"]) == (0, "CONFIRMED")
    world.ann.post(f"/v1/leases/{lease['id']}/extend", json={"hours": 1})
    assert events_of(world, url)[uid]["sequence"] == 1
    world.ann.delete(f"/v1/leases/{lease['id']}")
    cancelled = events_of(world, url)[uid]
    assert (cancelled["sequence"], cancelled["status"]) == (2, "CANCELLED")

    (listed,) = world.ann.get("/v1/calendars").json()["data"]
    assert (listed["id"], listed["url"]) == (feed["id"], None)
    assert world.bob.delete(f"/v1/calendars/{feed['id']}").status_code == 404
    assert world.ann.delete(f"/v1/calendars/{feed['id']}").status_code == 204
    assert world.nobody.get(url).status_code == 404


def test_a_feed_of_a_node_is_for_staff_and_names_nobody_75(world: World) -> None:
    world.ann.post("/v1/leases", json=block())
    world.staff.post("/v1/maintenance", json=maintain(start=next_hour(6)))
    assert world.ann.post("/v1/calendars", json={"node": "box"}).status_code == 403
    feed = world.staff.post("/v1/calendars", json={"node": "box"}).json()
    url = feed["url"].removeprefix("http://127.0.0.1:8471")
    events = events_of(world, url)
    assert sorted(str(event["summary"]) for event in events.values()) == [
        "box is leased",
        "box: maintenance",
    ]
    told = world.nobody.get(url).text
    for uid in events:
        assert uid in told
        told = told.replace(uid, "")  # one random id in two thousand has these letters
    assert "ann" not in told
    with world.database.read() as session:
        assert session.scalars(select(Lease)).one().user_id not in world.nobody.get(url).text
