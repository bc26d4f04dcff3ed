"""Leases of some of the four CPU slots of a node over HTTP, under policies that sell parts."""

import uuid
from typing import Any

import pytest
from icalendar import Calendar

from api.watching.holds import read_calendar
from core.base.clock import utc_now
from core.leases import node_slots, waitlist
from core.states import LeaseState, Sharing
from core.tables.leases import Lease, Wait
from core.tables.nodes import Node
from tests.api.conftest import World, client, enrol
from tests.api.scripts.test_scripts import packed, script_spec
from tests.api.shapes import INVENTORY, heartbeat, job_spec
from tests.api.times import next_hour

ADDRESS = "http://127.0.0.1:8471"
SLOTS = 4
ZIP = {"Content-Type": "application/zip"}
PARTS = """policy: {id: parts, zone: UTC}
pools:
  parts: {class: cpu4, gpus: [1, 2, 4], hours: [1, 2, 3]}
"""
WHOLE = """policy: {id: whole, zone: UTC}
pools:
  nodes: {class: cpu4, hours: [1, 2, 3]}
"""


def add_node(world: World, name: str, sharing: Sharing = Sharing.FULL) -> None:
    inventory = {**INVENTORY, "cores": SLOTS, "slots": SLOTS}
    node = client(world.app, enrol(world.app, world.database, name, cores=SLOTS, slots=SLOTS))
    beat = node.post("/v1/node/heartbeat", json=heartbeat(inventory=inventory))
    assert beat.status_code == 200, beat.text
    with world.database.write() as session:
        session.query(Node).filter_by(name=name).one().sharing = sharing


def apply(world: World, policy: str) -> None:
    yaml = {"Content-Type": "application/yaml"}
    answer = world.staff.post("/v1/policies", content=policy, headers=yaml)
    assert answer.status_code == 200, answer.text


@pytest.fixture
def parts(world: World) -> World:
    """A platform with the node `quad` of four slots, and a policy that sells 1, 2 and 4 of them."""
    add_node(world, "quad")
    apply(world, PARTS)
    return world


def key() -> dict[str, str]:
    return {"Idempotency-Key": uuid.uuid4().hex}


def block(gpus: int | None = None, more: int = 1, hours: int = 2, **changes: Any) -> dict[str, Any]:
    asked = {"node": "quad", "start": next_hour(more), "hours": hours, **changes}
    return asked if gpus is None else {**asked, "gpus": gpus}


def book(who: Any, *args: Any, **changes: Any) -> dict[str, Any]:
    answer = who.post("/v1/leases", json=block(*args, **changes))
    assert answer.status_code == 201, answer.text
    lease: dict[str, Any] = answer.json()
    return lease


def refusal(who: Any, *args: Any, **changes: Any) -> tuple[str, str]:
    """Code of the refusal of a booking, and the sentence of the verdict with the same code."""
    told = who.post("/v1/leases/verdict", json=block(*args, **changes)).json()
    assert not told["ok"]
    answer = who.post("/v1/leases", json=block(*args, **changes))
    assert answer.status_code in (409, 422), answer.text
    code: str = answer.json()["code"]
    messages = {reason["code"]: reason["message"] for reason in told["nodes"][0]["reasons"]}
    return code, messages[code]


def test_two_people_have_parts_of_one_node_at_the_same_hours(parts: World) -> None:
    mine, other = book(parts.ann, 1), book(parts.bob, 2)
    assert (mine["node"], mine["gpus"], mine["whole"]) == ("quad", 1, False)
    assert (other["node"], other["gpus"], other["hold_start"]) == ("quad", 2, mine["hold_start"])
    code, said = refusal(parts.bob, 2)
    assert (code, "1 of 4 GPUs of quad is free" in said) == ("node_taken", True)
    told = parts.bob.post("/v1/leases/verdict", json=block(2)).json()
    assert told["can_wait"]
    assert told["nodes"][0]["next_starts"]
    assert book(parts.bob, 1)["gpus"] == 1


def test_a_whole_node_is_refused_while_a_part_is_held_and_the_reverse(parts: World) -> None:
    part = book(parts.ann, 1)
    assert refusal(parts.bob)[0] == "node_taken"
    assert refusal(parts.bob, SLOTS)[0] == "node_taken"
    parts.ann.delete(f"/v1/leases/{part['id']}")
    whole = book(parts.bob)
    assert (whole["gpus"], whole["whole"]) == (SLOTS, True)
    assert refusal(parts.ann, 1)[0] == "node_taken"


def test_a_policy_without_sizes_sells_whole_nodes_only(world: World) -> None:
    add_node(world, "quad")
    apply(world, WHOLE)
    code, said = refusal(world.ann, 1)
    assert (code, "has 4, not 1" in said) == ("bad_size", True)
    assert book(world.ann, SLOTS)["whole"]


def test_a_node_that_cannot_keep_owners_apart_is_leased_whole(world: World) -> None:
    add_node(world, "quad", Sharing.NONE)
    apply(world, PARTS)
    assert refusal(world.ann, 1)[0] == "sharing_unavailable"
    assert book(world.ann)["whole"]


def test_a_part_goes_where_it_breaks_up_no_whole_node(parts: World) -> None:
    add_node(parts, "auad")  # first by name, and wholly free
    book(parts.ann, 1)
    taken = {"node": None, "node_class": "cpu4"}
    assert book(parts.bob, 2, **taken)["node"] == "quad"
    assert book(parts.bob, 2, **taken)["node"] == "auad"


def test_swaps_extensions_and_cancellations_keep_the_size(parts: World) -> None:
    mine, other = book(parts.ann, 2), book(parts.bob, 2)
    swap = f"/v1/leases/{mine['id']}/swap"
    refused = parts.ann.post(swap, json=block())  # without a number: the whole node
    assert refused.json()["code"] == "node_taken"
    swapped = parts.ann.post(swap, json=block(1)).json()
    assert (swapped["gpus"], swapped["whole"]) == (1, False)
    longer = parts.bob.post(f"/v1/leases/{other['id']}/extend", json={"hours": 1}).json()
    assert (longer["gpus"], longer["whole"]) == (2, False)
    book(parts.ann, 1, more=3, hours=1)
    book(parts.ann, 1, more=3, hours=1)
    assert refusal(parts.ann, 1, more=3, hours=1)[0] == "node_taken"
    parts.bob.delete(f"/v1/leases/{other['id']}")
    assert book(parts.ann, 2, more=3, hours=1)["gpus"] == 2


def test_what_becomes_free_is_offered_to_whom_it_fits(parts: World) -> None:
    held = [book(parts.ann, 2), book(parts.ann, 1)]
    body = {"node": "quad", "hours": 2, "gpus": 2}
    body |= {"first_start": next_hour(1), "last_start": next_hour(1)}
    wait = parts.bob.post("/v1/waitlist", json=body).json()
    assert wait["gpus"] == 2

    def serve() -> bool:
        with parts.database.write() as session:
            entry = session.get_one(Wait, wait["id"])
            free = waitlist.find(session, entry, now=utc_now())
            return free is not None and bool(waitlist.offer(session, entry, free, now=utc_now()))

    assert not serve()  # one slot is free, two are wanted
    parts.ann.delete(f"/v1/leases/{held[1]['id']}")
    assert serve()
    assert refusal(parts.ann, 1)[0] == "node_taken"  # the offer holds its slots
    lease = parts.bob.post(f"/v1/waitlist/{wait['id']}/accept").json()
    assert (lease["gpus"], lease["whole"]) == (2, False)


def test_a_verdict_knows_slots_that_are_out_of_service(parts: World) -> None:
    with parts.database.write() as session:
        node = session.query(Node).filter_by(name="quad").one()
        assert node_slots.quarantine(session, node, 0, reason="Too hot.", by="staff")
    book(parts.ann, 2)
    code, said = refusal(parts.bob, 2)
    assert (code, "1 of 4 GPUs of quad is free" in said) == ("node_taken", True)
    assert book(parts.bob, 1)["gpus"] == 1
    assert book(parts.bob, more=4)["whole"]  # a whole node is leased with them


def test_hours_count_no_slot_that_is_out_of_service_as_free(parts: World) -> None:
    with parts.database.write() as session:
        node = session.query(Node).filter_by(name="quad").one()
        assert node_slots.quarantine(session, node, 0, reason="Too hot.", by="staff")
    hour = available(parts.bob, gpus=4, node="quad")
    assert hour["free_gpus"]["quad"] == 3
    assert "quad" in hour["nodes"], "a whole node is leased with them"
    book(parts.ann, 2)
    assert "quad" in available(parts.bob, gpus=1)["nodes"]
    taken = available(parts.bob, gpus=2)["taken"]
    assert {"node": "quad", "why": "leased", "message": ""} in taken
    more = available(parts.bob, start=next_hour(4), gpus=3)
    assert "quad" in more["nodes"]


def test_a_node_that_keeps_only_recipes_apart_says_so_before_the_hours_begin(world: World) -> None:
    add_node(world, "quad", sharing=Sharing.RECIPES)
    apply(world, PARTS)
    told = world.ann.post("/v1/leases/verdict", json=block(1)).json()
    assert told["ok"]
    (warning,) = told["nodes"][0]["warnings"]
    assert warning["code"] == "sharing_unavailable"
    assert "a program does not start in a lease of a part of it" in warning["message"]
    assert not world.ann.post("/v1/leases/verdict", json=block(4)).json()["nodes"][0]["warnings"]
    part, whole = book(world.ann, 1), book(world.ann, 4, more=4)
    content = packed({"train.py": "print()"})
    code = world.ann.post("/v1/code", content=content, headers=ZIP).json()["sha256"]
    program = script_spec(code)
    program["resources"]["ranks_per_node"] = 1

    def submit(spec: dict[str, Any], lease: dict[str, Any]) -> Any:
        return world.ann.post("/v1/jobs", json={**spec, "lease": lease["id"]}, headers=key())

    refused = submit(program, part)
    assert (refused.status_code, refused.json()["code"]) == (422, "sharing_unavailable")
    assert refused.json()["param"] == "lease"
    assert "quad cannot keep a script apart from the jobs of others" in refused.json()["detail"]
    assert submit(program, whole).status_code == 201
    one_rank = {"resources": {"ranks_per_node": 1}, "parallelism": {"strategy": "single"}}
    recipe = job_spec(**one_rank)
    recipe["parallelism"] = one_rank["parallelism"]
    assert submit(recipe, part).status_code == 201


def test_a_job_in_a_part_is_planned_with_its_share_of_the_node(parts: World) -> None:
    lease = book(parts.ann, 1)
    spec = job_spec(resources={"ranks_per_node": 1, "node_class": "cpu4"})
    spec["parallelism"] = {"strategy": "single"}

    def plan(**changes: Any) -> dict[str, Any]:
        (found,) = parts.ann.post("/v1/jobs/plan", json={**spec, **changes}).json()["plans"]
        return dict(found["plan"])

    whole, part = plan(), plan(lease=lease["id"])
    assert part["fits"]
    assert part["capacity_gib"] == pytest.approx(whole["capacity_gib"] / 4)
    resources = {**spec["resources"], "ranks_per_node": 2}
    wide = plan(lease=lease["id"], resources=resources, parallelism={"strategy": "ddp"})
    assert "too_many_ranks" in [problem["code"] for problem in wide["problems"]]


def test_booked_leases_stay_whole_when_their_policy_begins_to_sell_parts(world: World) -> None:
    add_node(world, "quad")
    apply(world, WHOLE)
    before = book(world.ann)
    apply(world, PARTS.replace("id: parts", "id: whole, version: 2"))
    shown = world.ann.get(f"/v1/leases/{before['id']}").json()
    assert (shown["state"], shown["gpus"], shown["whole"]) == ("booked", SLOTS, True)
    assert refusal(world.bob, 1)[0] == "node_taken"
    assert book(world.bob, 1, more=4)["gpus"] == 1


def available(who: Any, **query: Any) -> dict[str, Any]:
    """The hour one ahead, as availability tells it, with the lengths and sizes of the nodes."""
    asked = {"start": next_hour(1), "hours": 1, **query}
    answer = who.get("/v1/leases/availability", params=asked)
    assert answer.status_code == 200, answer.text
    (hour,) = answer.json()["hours"]
    return {**hour, "lengths": {one.pop("node"): one for one in answer.json()["lengths"]}}


def test_an_hour_is_free_for_a_size_and_counts_what_is_left(parts: World) -> None:
    add_node(parts, "alone", sharing=Sharing.NONE)
    book(parts.ann, 2)
    book(parts.bob, 1)
    plain = available(parts.ann)
    assert plain["nodes"] == ["alone", "box"], "all of a node is meant"
    assert plain["free_gpus"]["quad"] == 1
    assert plain["lengths"]["quad"] == {"hours": [1, 2, 3], "sizes": [1, 2, 4]}
    assert plain["lengths"]["alone"]["sizes"] == [4], "it cannot keep owners apart"
    one = available(parts.bob, gpus=1)
    assert "quad" in one["nodes"]
    two = available(parts.bob, gpus=2)
    assert {"node": "quad", "why": "leased", "message": ""} in two["taken"]
    judged = available(parts.bob, gpus=1, any_length=True, node="alone")
    (refused,) = judged["taken"]
    assert refused["why"] == "sharing_unavailable"
    nine = available(parts.bob, gpus=9, node="quad")
    assert nine["taken"][0]["why"] == "bad_size"
    assert nine["taken"][0]["message"] == "quad has 4 GPUs, not 9."


def test_a_lease_tells_its_share_and_calendars_the_size_of_every_hold(parts: World) -> None:
    lease = book(parts.ann, 1)
    assert (lease["gpus"], lease["of_gpus"], lease["slots"]) == (1, 4, None)
    with parts.database.write() as session:
        row = session.get_one(Lease, lease["id"])
        assert node_slots.assign(session, row)
        row.state = LeaseState.ACTIVE
    assert parts.ann.get(f"/v1/leases/{lease['id']}").json()["slots"] == [0]
    with parts.database.read() as session:
        calendar = read_calendar(session, utc_now())
    assert [hold.gpus for hold in calendar.nodes["quad"].holds] == [1]


def test_a_feed_names_the_size_and_keeps_an_events_name_and_number(parts: World) -> None:
    lease = book(parts.ann, 1)
    url = parts.ann.post("/v1/calendars", json={}).json()["url"].removeprefix(ADDRESS)
    for_staff = parts.staff.post("/v1/calendars", json={"node": "quad"}).json()["url"]
    (event,) = Calendar.from_ical(parts.ann.get(url).content).walk("VEVENT")
    assert (event["summary"], int(event["sequence"])) == ("Lease of 1 GPU on quad", 0)
    (taken,) = Calendar.from_ical(parts.staff.get(for_staff.removeprefix(ADDRESS)).content).walk(
        "VEVENT"
    )
    assert taken["summary"] == "1 GPU of quad leased"
    swapped = parts.ann.post(f"/v1/leases/{lease['id']}/swap", json=block(4, more=5)).json()
    events = {str(one["uid"]): one for one in Calendar.from_ical(parts.ann.get(url).content).events}
    gone = events[f"{lease['id']}@trainyard"]
    assert (gone["status"], int(gone["sequence"])) == ("CANCELLED", 1)
    assert events[f"{swapped['id']}@trainyard"]["summary"] == "Lease on quad"


def test_the_forecast_of_a_policy_that_sells_parts_counts_gpu_hours(parts: World) -> None:
    start, end = next_hour(1), next_hour(11)
    window = f"""
windows:
  - {{pool: parts, usable: ["{start[:16]}", "{end[:16]}"], opens_at: now}}
quotas:
  main: {{period: window, max_gpu_hours: {{all: 6}}}}
"""
    apply(parts, PARTS.replace("id: parts", "id: parts, version: 2") + window)
    book(parts.ann, 1, more=2, hours=3)
    (found,) = parts.ann.get("/v1/leases/forecast").json()["data"]
    assert found["unit"] == "GPU-hours"
    assert found["free_hours"] == SLOTS * 10 - 3
    assert found["unspent_hours"] == 6 * found["people"] - 3
    assert "GPU-hours are free until then" in found["message"]
