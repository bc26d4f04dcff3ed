"""Booking policies and windows over HTTP: validated, versioned, reported, put into force."""

from datetime import timedelta

import pytest

from core.base.clock import utc_now
from core.leases.active_policies import active_policies
from core.policy.grid import HOUR, hour_ceiling
from core.states import LeaseState
from core.tables.admin import AuditEntry
from core.tables.leases import Lease
from core.tables.notices import Notice
from tests.api.conftest import World
from tests.api.times import next_hour
from tests.core.policy.asking import COURSE_TEXT

YAML = {"Content-Type": "application/yaml"}


def document(
    version: int = 1, *, hours: str = "[1, 2, 3]", more: str = "", in_flight: str = "grandfather"
) -> str:
    """Rules for the node `box`, with a window of a week from the current hour."""
    start = hour_ceiling(utc_now()) - HOUR
    end = start + timedelta(days=7)
    return (
        f"policy: {{id: lab, version: {version}, zone: Europe/Berlin, in_flight: {in_flight}}}\n"
        f"pools:\n  small: {{nodes: [box], hours: {hours}}}\n"
        f'windows: [{{pool: small, usable: ["{start.isoformat()}", "{end.isoformat()}"]}}]\n'
        f"{more}"
    )


def post(world: World, text: str, **params: object) -> tuple[int, dict]:
    answer = world.staff.post("/v1/policies", content=text, headers=YAML, params=params)
    return answer.status_code, answer.json()


def book(world: World, more: int = 1, hours: int = 1) -> dict:
    wanted = {"node": "box", "start": next_hour(more), "hours": hours}
    answer = world.ann.post("/v1/leases", json=wanted)
    assert answer.status_code in (201, 403, 409, 422), answer.text
    return {"status": answer.status_code, **answer.json()}


def test_the_same_rules_again_change_nothing_however_their_window_is_written(world: World) -> None:
    post(world, document())
    _, plan = post(world, document(), dry_run=True)
    assert plan["changes"] == []


def test_a_dry_run_tells_all_and_changes_nothing(world: World) -> None:
    status, plan = post(world, document(), dry_run=True)
    assert status == 200
    assert (plan["id"], plan["version"], plan["replaces"]) == ("lab", 1, None)
    assert (plan["applied"], plan["changes"], plan["advice"]) == (False, ["New policy."], [])
    assert world.ann.get("/v1/policies").json()["data"] == []
    assert world.ann.get("/v1/windows").json()["data"] == []


def test_everybody_can_read_an_applied_policy(world: World) -> None:
    text = document(more="# two at once are enough\nquotas: {open: {max_future_leases: 2}}\n")
    status, plan = post(world, text)
    assert (status, plan["applied"]) == (200, True)

    [listed] = world.ann.get("/v1/policies").json()["data"]
    assert (listed["id"], listed["version"], listed["applied_by"]) == ("lab", 1, "stefan")
    shown = world.ann.get("/v1/policies/lab").json()
    assert shown["document"] == text
    [window] = world.ann.get("/v1/windows").json()["data"]
    assert shown["windows"] == [window]
    assert window["pools"] == ["small"]
    assert window["from_document"] is True

    with world.database.read() as session:
        [entry] = session.query(AuditEntry).filter_by(action="policy.apply")
        assert entry.details["version"] == 1


def test_what_is_wrong_is_told_by_field_and_line(world: World) -> None:
    status, problem = post(world, document(hours="[0]", more="gaps: {mode: never}\n"))
    assert (status, problem["code"]) == (422, "bad_policy")
    assert [item["param"] for item in problem["errors"]] == ["pools.small.hours.0", "gaps.mode"]
    assert "(line 3)" in problem["errors"][0]["message"]
    status, problem = post(world, "policy: {id: lab}\nbands: {night: {local: [01:00, 07:00]}}\n")
    assert (status, problem["code"]) == (422, "unreadable")
    assert '"01:00"' in problem["detail"]
    assert world.staff.post("/v1/policies", content=b"\xff", headers=YAML).status_code == 422
    assert world.ann.post("/v1/policies", content=document(), headers=YAML).status_code == 403


def test_versions_only_rise_and_their_text_stays(world: World) -> None:
    first, second = document(2), document(3, hours="[1, 2]")
    assert post(world, first)[0] == 200
    assert post(world, first)[0] == 200  # the same again
    status, problem = post(world, document(2, hours="[1]"))
    assert (status, problem["param"]) == (409, "policy.version")
    assert "version: 3" in problem["detail"]
    assert post(world, document(1))[0] == 409
    status, plan = post(world, second)
    assert (status, plan["replaces"]) == (200, 2)
    assert "pools.small.hours: changed from [1, 2, 3] to [1, 2]." in plan["changes"]

    versions = world.ann.get("/v1/policies/lab/versions").json()["data"]
    assert [(v["version"], v["active"]) for v in versions] == [(3, True), (2, False)]
    assert world.ann.get("/v1/policies/lab", params={"version": 2}).json()["document"] == first
    assert world.ann.get("/v1/policies/lab", params={"version": 7}).status_code == 404

    assert post(world, first)[1]["replaces"] == 3  # back to the old one
    assert world.ann.get("/v1/policies/lab").json()["version"] == 2
    status, problem = post(world, document(4).replace("version: 4", "version: 4, supersedes: 3"))
    assert (status, problem["param"]) == (409, "policy.supersedes")


def test_a_withdrawn_policy_can_be_applied_again(world: World) -> None:
    post(world, document(hours="[1]"))
    assert world.staff.delete("/v1/policies/lab").status_code == 204
    assert world.staff.delete("/v1/policies/lab").status_code == 404
    assert world.ann.get("/v1/policies/lab").status_code == 404
    assert world.ann.get("/v1/windows").json()["data"] == []
    assert post(world, document(hours="[1]"))[0] == 200
    assert world.ann.get("/v1/policies/lab").json()["active"] is True


@pytest.mark.parametrize("in_flight", ["grandfather", "flag", "cancel_with_refund"])
def test_leases_to_come_that_new_rules_refuse_are_reported(world: World, in_flight: str) -> None:
    first, long, second = book(world, 1, 1), book(world, 3, 3), book(world, 8, 1)
    more = "quotas:\n  main: {one_of: [{name: one, slots: [{pool: small, hours: 1}]}]}\n"
    text = document(hours="[1]", more=more, in_flight=in_flight)
    status, plan = post(world, text, dry_run=True)
    assert status == 200
    told = {lease["id"]: lease["codes"] for lease in plan["refused"]}
    assert told == {
        long["id"]: ["bad_block_length", "quota_main"],
        second["id"]: ["quota_main"],
    }
    assert {lease["user"] for lease in plan["refused"]} == {"ann"}

    plan = post(world, text)[1]
    gone = in_flight == "cancel_with_refund"
    assert (plan["num_refused"], plan["num_cancelled"]) == (2, 2 if gone else 0)
    with world.database.read() as session:
        states = [session.get_one(Lease, one["id"]).state for one in (first, long, second)]
        kinds = [notice.kind for notice in session.query(Notice)]
    kept = LeaseState.CANCELLED if gone else LeaseState.BOOKED
    assert states == [LeaseState.BOOKED, kept, kept]
    expected = {"grandfather": [], "flag": ["lease_flagged"] * 2}
    assert kinds == expected.get(in_flight, ["lease_cancelled"] * 2)


def test_a_window_shrinks_by_a_plan_that_was_seen(world: World) -> None:
    post(world, document())
    [window] = world.staff.get("/v1/windows").json()["data"]
    address = f"/v1/windows/{window['id']}"
    inside, outside = book(world, 1, 1), book(world, 30, 2)
    change = {"ends_at": next_hour(24)}
    plan = world.staff.patch(address, json=change).json()
    assert plan["applied"] is False
    assert [lease["id"] for lease in plan["orphans"]] == [outside["id"]]
    assert world.ann.get("/v1/windows").json()["data"] == [window]

    late = book(world, 40, 1)
    stale = world.staff.patch(address, json={**change, "plan": plan["hash"], "orphans": "cancel"})
    assert (stale.status_code, stale.json()["code"]) == (409, "stale_plan")
    plan = world.staff.patch(address, json=change).json()
    done = world.staff.patch(address, json={**change, "plan": plan["hash"], "orphans": "cancel"})
    assert (done.status_code, done.json()["num_cancelled"]) == (200, 2)
    with world.database.read() as session:
        states = {
            one["id"]: session.get_one(Lease, one["id"]).state for one in (inside, outside, late)
        }
    assert states[inside["id"]] is LeaseState.BOOKED
    assert {states[outside["id"]], states[late["id"]]} == {LeaseState.CANCELLED}


def test_windows_are_added_once_and_must_fit(world: World) -> None:
    post(world, document())
    [first] = world.staff.get("/v1/windows").json()["data"]
    new = {
        "policy": "lab",
        "pools": ["small"],
        "starts_at": first["ends_at"],
        "ends_at": next_hour(24 * 12),
        "opens_at": next_hour(24),
    }
    key = {"Idempotency-Key": "window-1"}
    added = world.staff.post("/v1/windows", json=new, headers=key)
    assert added.status_code == 201
    assert world.staff.post("/v1/windows", json=new, headers=key).json() == added.json()
    assert added.json()["from_document"] is False

    for change, words in (
        ({}, "overlaps"),
        ({"pools": ["large"]}, "no pool 'large'"),
        ({"policy": "other"}, "no active policy"),
        ({"starts_at": next_hour(400), "ends_at": next_hour(390)}, "before it starts"),
    ):
        wrong = world.staff.post("/v1/windows", json={**new, **change})
        assert wrong.status_code == 422
        assert words in wrong.json()["detail"]
    assert world.ann.post("/v1/windows", json=new).status_code == 403

    gone = f"/v1/windows/{added.json()['id']}"
    plan = world.staff.delete(gone).json()
    assert (plan["window"], plan["orphans"], plan["applied"]) == (None, [], False)
    assert world.staff.delete(gone, params={"plan": plan["hash"]}).json()["applied"] is True
    assert world.staff.delete(gone).status_code == 404
    last = world.staff.delete(f"/v1/windows/{first['id']}")
    assert last.status_code == 409, "no window at all would mean no limits"


def test_the_next_version_brings_its_own_windows(world: World) -> None:
    post(world, document())
    [window] = world.staff.get("/v1/windows").json()["data"]
    change = {"ends_at": next_hour(24)}
    plan = world.staff.patch(f"/v1/windows/{window['id']}", json=change).json()
    world.staff.patch(f"/v1/windows/{window['id']}", json={**change, "plan": plan["hash"]})
    with world.database.read() as session:
        [policy] = active_policies(session)
    assert policy.times[0].end == hour_ceiling(utc_now() + timedelta(minutes=1)) + 24 * HOUR
    told = post(world, document(2))[1]["changes"]
    assert any(line.startswith("windows: ") and line.endswith(" was removed.") for line in told)
    [again] = world.staff.get("/v1/windows").json()["data"]
    assert again["ends_at"] == window["ends_at"]
    assert again["id"] != window["id"]


def test_the_course_policy_applies_with_advice_about_this_site(world: World) -> None:
    status, plan = post(world, COURSE_TEXT)
    assert (status, plan["applied"]) == (200, True)
    assert "pools.long: there is no node 307G3Q3 here." in plan["advice"]
    assert any(line.startswith("windows: all of them ended") for line in plan["advice"])
    assert book(world)["status"] == 201, "`box` is none of its nodes"
