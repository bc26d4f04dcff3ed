"""Clean-ups: what is found, that only what was shown is removed, and that it can be undone."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import delete, func, select, update

from core.base.clock import utc_now
from core.database.database import Database
from core.leases import leases
from core.policy.grid import HOUR, hour_ceiling
from core.states import LeaseState
from core.tables.admin import AuditEntry, Cleanup
from core.tables.kinds import LeaseKind
from core.tables.leases import Lease, Occupancy
from core.tables.nodes import Node
from core.tables.notices import Notice
from core.tables.people import User
from core.tables.policies import AppliedPolicy, PoolWindow
from tests.api.conftest import World
from tests.api.shapes import job_spec, place
from tests.api.times import next_hour
from tests.core.people import add_node

COURSE = """
policy: {{id: course, version: {version}, zone: UTC}}
pools:
  long: {{nodes: [box, box-2, box-3], hours: [1, 2, 3]}}
quotas:
  main: {{scope: user, period: window, one_of: [{{name: blocks, slots: [{slots}]}}]}}
cancel: {{staff_delete: {{violation: refund_none, maintenance: refund}}}}
"""


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    """The races and the SQL that differs are tested on both."""
    return sqlite_url


def add_nodes(database: Database, *names: str) -> None:
    """Further nodes of the class of `box`."""
    with database.write() as session:
        box = session.scalars(select(Node).where(Node.name == "box")).one()
        for name in names:
            add_node(
                session,
                name,
                class_name=box.class_name,
                slots=box.slots,
                inventory=box.inventory,
                created_at=utc_now(),
            )


def apply_policy(
    world: World, *, slots: int = 2, version: int = 1, ends: datetime | None = None
) -> None:
    """The course's policy: so many blocks of 3 hours a person, in one window."""
    now = utc_now()
    text = COURSE.format(
        version=version,
        slots=", ".join(["{pool: long, hours: 3}"] * slots),
    )
    with world.database.write() as session:
        session.execute(update(AppliedPolicy).values(active=False))
        session.execute(delete(PoolWindow))
        ada = session.scalars(select(User).where(User.name == "ada")).one()
        session.add(
            AppliedPolicy(
                policy_id="course",
                version=version,
                document=text,
                sha256=str(version),
                active=True,
                applied_by=ada.id,
                applied_at=now,
            )
        )
        session.add(
            PoolWindow(
                id=f"window_{version}",
                policy_id="course",
                pools=["long"],
                starts_at=now - timedelta(days=2),
                ends_at=ends or now + timedelta(days=30),
                opens_at=None,
                from_document=True,
                created_by=ada.id,
                created_at=now,
            )
        )


def lease_of(
    world: World, name: str, in_hours: int, *, node: str = "box", hours: int = 1, age_h: int = 0
) -> str:
    """A booked lease, made `age_h` hours ago; its id."""
    now = utc_now()
    start = hour_ceiling(now) + in_hours * HOUR
    with world.database.write() as session:
        user = session.scalars(select(User).where(User.name == name)).one()
        row = session.scalars(select(Node).where(Node.name == node)).one()
        return leases.take(
            session,
            user_id=user.id,
            node=row,
            kind=LeaseKind.BOOKED,
            start=start,
            end=start + hours * HOUR,
            grace_s=300,
            now=now - age_h * HOUR,
            actor="test",
            message="Booked.",
        ).id


def active_lease_of(world: World, name: str, *, node: str, begun_min: int) -> str:
    """An active booked lease that began so many minutes ago, perhaps in the hour before; of at
    most three hours."""
    lease_id = lease_of(world, name, 0, node=node, hours=1)
    with world.database.write() as session:
        start = utc_now() - timedelta(minutes=begun_min)
        session.execute(
            update(Lease)
            .where(Lease.id == lease_id)
            .values(state=LeaseState.ACTIVE, hold_start=start)
        )
        session.execute(
            update(Occupancy).where(Occupancy.lease_id == lease_id).values(hold_start=start)
        )
    return lease_id


def preview(world: World, *wrong: str, **fields: Any) -> dict[str, Any]:
    body = {"selector": {"wrong": list(wrong), **fields}, "reason": "Unit 4 is over."}
    answer = world.staff.post("/v1/admin/cleanups", json=body)
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


def apply(world: World, plan: dict[str, Any], **body: Any) -> dict[str, Any]:
    path = f"/v1/admin/cleanups/{plan['id']}/apply"
    answer = world.staff.post(path, json={"hash": plan["hash"], **body})
    assert answer.status_code == 200, answer.text
    done: dict[str, Any] = answer.json()
    return done


def going(plan: dict[str, Any]) -> list[str]:
    return [row["lease"] for row in plan["rows"] if row["result"] in ("planned", "removed")]


def states(world: World) -> dict[str, str]:
    with world.database.read() as session:
        return {lease.id: lease.state for lease in session.scalars(select(Lease))}


def test_edge_64_who_mends_it_after_the_preview_keeps_the_rest(world: World) -> None:
    add_nodes(world.database, "box-2", "box-3")
    apply_policy(world, slots=2)
    oldest = lease_of(world, "ann", 5, age_h=3)
    middle = lease_of(world, "ann", 5, node="box-2", age_h=2)
    newest = lease_of(world, "ann", 5, node="box-3", age_h=1)
    plan = preview(world, "over_quota")
    assert going(plan) == [newest]
    assert plan["rows"][0]["rule"] == "quota_main"
    assert world.ann.delete(f"/v1/leases/{oldest}").status_code == 204  # and now it is fine
    done = apply(world, plan)
    [row] = done["rows"]
    assert (row["result"], done["removed"], done["skipped"]) == ("skipped", 0, 1)
    assert row["outcome"] == "It no longer matches: its owner has corrected it."
    assert states(world)[newest] == states(world)[middle] == "booked"


def test_a_lease_that_changed_since_is_skipped_and_named(world: World) -> None:
    mine, theirs = lease_of(world, "ann", 3), lease_of(world, "ann", 6)
    plan = preview(world, user="ann")
    assert set(going(plan)) == {mine, theirs}
    assert world.ann.delete(f"/v1/leases/{mine}").status_code == 204
    done = apply(world, plan)
    rows = {row["lease"]: row for row in done["rows"]}
    assert rows[mine]["outcome"] == "It has changed since the preview: it is cancelled now."
    assert rows[theirs]["result"] == "removed"


def test_edge_65_applied_twice_it_does_nothing_more(world: World) -> None:
    kept, gone = lease_of(world, "ann", 3), lease_of(world, "ann", 6)
    protect = {"tags": ["thesis"], "protected": True}
    assert world.staff.put(f"/v1/admin/leases/{kept}/tags", json=protect).status_code == 200
    plan = preview(world, user="ann")
    assert going(plan) == [gone]
    [spared] = [row for row in plan["rows"] if row["result"] == "spared"]
    assert (spared["lease"], spared["outcome"]) == (kept, "It is protected.")
    stale = world.staff.post(f"/v1/admin/cleanups/{plan['id']}/apply", json={"hash": "0" * 64})
    assert (stale.status_code, stale.json()["code"]) == (409, "stale_hash")
    assert states(world)[gone] == "booked"
    first = apply(world, plan)
    second = apply(world, plan)
    assert first == second
    with world.database.read() as session:
        count = select(func.count()).select_from(AuditEntry)
        assert session.scalar(count.where(AuditEntry.action == "cleanup.remove")) == 1
        assert session.scalar(count.where(AuditEntry.action == "cleanup.apply")) == 1
        assert session.scalar(select(func.count()).select_from(Notice)) == 1
    assert states(world) == {kept: "booked", gone: "cancelled"}


def test_edge_66_of_who_is_over_quota_the_fewest_go_the_newest_first(world: World) -> None:
    add_nodes(world.database, "box-2", "box-3")
    apply_policy(world, slots=2)
    running = active_lease_of(world, "ann", node="box-3", begun_min=5)
    first = lease_of(world, "ann", 5, age_h=4)
    second = lease_of(world, "ann", 5, node="box-2", age_h=3)
    third = lease_of(world, "ann", 9, node="box-2", age_h=1)
    others = lease_of(world, "bob", 9)
    plan = preview(world, "over_quota")
    assert going(plan) == [third, second]
    apply(world, plan)
    assert states(world) == {
        running: "active",
        first: "booked",
        second: "cancelled",
        third: "cancelled",
        others: "booked",
    }
    with world.database.read() as session:
        settled = {lease.id: lease.counts for lease in session.scalars(select(Lease))}
        assert settled[third]  # a violation is not refunded
        removed = session.scalars(
            select(AuditEntry).where(AuditEntry.action == "cleanup.remove")
        ).first()
    assert removed is not None
    assert removed.details["before"]["state"] == "booked"
    assert removed.details["after"]["state"] == "cancelled"


LAB = """
policy: {{id: lab, version: {version}, zone: UTC, in_flight: grandfather}}
pools:
  small: {{nodes: [box], hours: [1, {hours}]}}
quotas:
  open: {{max_open_leases: {limit}}}
cancel: {{staff_delete: {{violation: refund_none, maintenance: refund}}}}
"""


def post_policy(world: World, **numbers: int) -> dict[str, Any]:
    yaml = {"Content-Type": "application/yaml"}
    answer = world.staff.post("/v1/policies", content=LAB.format(**numbers), headers=yaml)
    assert answer.status_code == 200, answer.text
    plan: dict[str, Any] = answer.json()
    return plan


def book(world: World, more: int, hours: int = 1) -> tuple[int, Any]:
    block = {"node": "box", "start": next_hour(more), "hours": hours}
    answer = world.ann.post("/v1/leases", json=block)
    return answer.status_code, answer.json().get("id", answer.json().get("code"))


def test_edge_67_what_a_new_version_promised_to_keep_no_clean_up_takes(world: World) -> None:
    post_policy(world, version=1, hours=3, limit=3)
    kept = [book(world, more, hours)[1] for more, hours in ((2, 1), (4, 3), (8, 1))]
    plan = post_policy(world, version=2, hours=2, limit=1)
    assert (plan["in_flight"], plan["num_refused"]) == ("grandfather", 2)
    found = preview(world, "over_quota", "unfit", "expired_window")
    assert found["rows"] == []
    assert apply(world, found)["removed"] == 0
    assert states(world) == dict.fromkeys(kept, "booked")
    assert book(world, 12) == (422, "too_many_open")  # new requests hear the new version
    # Under the same version a lease that its owner may no longer have is found.
    world.ann.delete(f"/v1/leases/{kept[0]}")
    world.ann.delete(f"/v1/leases/{kept[1]}")
    world.ann.delete(f"/v1/leases/{kept[2]}")
    first, new = book(world, 2)[1], lease_of(world, "ann", 20)
    assert going(preview(world, "over_quota")) == [new]
    assert first in states(world)


def test_what_staff_removed_only_staff_give_back(world: World) -> None:
    lease_id = book(world, 5)[1]
    plan = preview(world, user="ann")
    apply(world, plan)
    refused = world.ann.post(f"/v1/leases/{lease_id}/restore")
    assert (refused.status_code, refused.json()["code"]) == (403, "not_cancelled_by_owner")
    assert states(world) == {lease_id: "cancelled"}
    undone = world.staff.post(f"/v1/admin/cleanups/{plan['id']}/undo").json()
    back = undone["rows"][0]["restored_as"]
    assert states(world) == {lease_id: "cancelled", back: "booked"}
    with world.database.read() as session:
        entries = session.scalars(select(AuditEntry).where(AuditEntry.subject == back)).all()
    assert [entry.action for entry in entries] == ["cleanup.restore"]
    # What its owner cancels after that is the owner's again.
    world.ann.delete(f"/v1/leases/{back}")
    assert world.ann.post(f"/v1/leases/{back}/restore").status_code == 201


def test_windows_that_are_over_and_blocks_that_no_longer_fit(world: World) -> None:
    apply_policy(world, ends=utc_now() + timedelta(hours=20))
    inside, outside = lease_of(world, "ann", 2), lease_of(world, "ann", 40)
    long = lease_of(world, "bob", 6, hours=4)
    plan = preview(world, "expired_window", "unfit")
    rows = {row["lease"]: (row["code"], row["rule"], row["refund_hours"]) for row in plan["rows"]}
    assert rows == {
        outside: ("expired_window", "outside_window", 1),
        long: ("unfit", "bad_block_length", 0),
    }
    assert inside not in going(plan)


def test_orphans_are_refunded(world: World) -> None:
    add_nodes(world.database, "box-2")
    gone = lease_of(world, "ann", 3, hours=2)
    without_node = lease_of(world, "bob", 3, node="box-2")
    with world.database.write() as session:
        session.execute(update(User).where(User.name == "ann").values(disabled=True))
        session.execute(update(Node).where(Node.name == "box-2").values(state="retired"))
    plan = preview(world, "orphan")
    rules = {row["lease"]: (row["rule"], row["refund_hours"]) for row in plan["rows"]}
    assert rules == {gone: ("user_deactivated", 2), without_node: ("node_retired", 1)}
    assert plan["refunded_hours"] == 3
    apply(world, plan)
    with world.database.read() as session:
        assert not any(lease.counts for lease in session.scalars(select(Lease)))


def test_no_shows_and_idle_ones_are_active_and_spared_unless_included(world: World) -> None:
    add_nodes(world.database, "box-2")
    absent = active_lease_of(world, "bob", node="box-2", begun_min=45)
    job_id = world.ann.post("/v1/jobs", json=job_spec()).json()["id"]
    place(world.database, job_id)
    spared = preview(world, "no_show")
    assert [(row["lease"], row["result"]) for row in spared["rows"]] == [(absent, "spared")]
    plan = preview(world, "no_show", "idle", include_active=True)
    assert going(plan) == [absent]
    of_ann = preview(world, include_active=True, user="ann")
    assert [row["jobs"] for row in of_ann["rows"]] == [["gpt-ddp"]]
    assert [row["jobs"] for row in plan["rows"]] == [[]]
    apply(world, plan)
    assert states(world)[absent] == "ending"
    node = world.staff.get("/v1/nodes/box-2").json()
    assert node["state"] == "quarantined"
    assert "stefan" in node["reason"]


def test_who_left_leases_unused_loses_the_next_one(world: World) -> None:
    for _ in range(2):
        unused = lease_of(world, "ann", 1)
        with world.database.write() as session:
            lease = session.get_one(Lease, unused)
            now = utc_now()
            leases.cancel(session, lease, now=now, message="x", actor="test")
            session.execute(
                update(Lease)
                .where(Lease.id == unused)
                .values(state=LeaseState.ENDED, counts=True, cancelled_at=None)
            )
    coming = lease_of(world, "ann", 5)
    plan = preview(world, "idle")
    assert [(row["lease"], row["rule"]) for row in plan["rows"]] == [(coming, "left_unused")]


def test_leases_are_named_by_tag_node_and_time(world: World) -> None:
    add_nodes(world.database, "box-2")
    early, late = lease_of(world, "ann", 2), lease_of(world, "ann", 30)
    elsewhere = lease_of(world, "bob", 2, node="box-2")
    world.staff.put(f"/v1/admin/leases/{late}/tags", json={"tags": ["demo"], "protected": False})
    tomorrow = (utc_now() + timedelta(hours=24)).isoformat()
    assert going(preview(world, node="box-2")) == [elsewhere]
    assert going(preview(world, tag="demo")) == [late]
    assert set(going(preview(world, starts_before=tomorrow))) == {early, elsewhere}
    unknown = world.staff.post(
        "/v1/admin/cleanups", json={"selector": {"node": "nowhere"}, "reason": "Because."}
    )
    assert unknown.status_code == 404


def test_a_row_may_be_left_out_and_each_owner_is_told_once(world: World) -> None:
    first, second, left = (lease_of(world, "ann", hours) for hours in (2, 4, 6))
    bobs = lease_of(world, "bob", 8)
    plan = preview(world)
    done = apply(world, plan, leave=[left, left])
    assert {row["lease"]: row["result"] for row in done["rows"]} == {
        first: "removed", second: "removed", left: "skipped", bobs: "removed",
    }  # fmt: skip
    assert done["owners"] == 2
    with world.database.read() as session:
        told = session.scalars(select(Notice)).all()
    assert len(told) == 2
    messages = {notice.facts["message"] for notice in told}
    assert messages == {
        "2 of your leases were removed by staff: Unit 4 is over.",
        "1 of your leases was removed by staff: Unit 4 is over.",
    }
    [notice] = world.ann.get("/v1/me/notifications").json()["data"]
    assert notice["kind"] == "leases_cleaned"


def test_undo_gives_back_what_is_still_free(world: World) -> None:
    mine, lost = lease_of(world, "ann", 3), lease_of(world, "ann", 6)
    plan = preview(world, user="ann")
    undone_early = world.staff.post(f"/v1/admin/cleanups/{plan['id']}/undo")
    assert undone_early.json()["code"] == "not_applied"
    apply(world, plan)
    taken = lease_of(world, "bob", 6)
    done = world.staff.post(f"/v1/admin/cleanups/{plan['id']}/undo").json()
    rows = {row["lease"]: row for row in done["rows"]}
    assert (done["state"], rows[mine]["result"], rows[lost]["result"]) == (
        "undone", "restored", "lost",
    )  # fmt: skip
    assert states(world) == {
        mine: "cancelled", lost: "cancelled", taken: "booked", rows[mine]["restored_as"]: "booked",
    }  # fmt: skip
    again = world.staff.post(f"/v1/admin/cleanups/{plan['id']}/undo").json()
    assert again == done


def test_an_old_preview_is_not_applied(world: World) -> None:
    lease_of(world, "ann", 3)
    plan = preview(world, user="ann")
    with world.database.write() as session:
        session.execute(update(Cleanup).values(expires_at=utc_now() - timedelta(seconds=1)))
    path = f"/v1/admin/cleanups/{plan['id']}/apply"
    answer = world.staff.post(path, json={"hash": plan["hash"]})
    assert (answer.status_code, answer.json()["code"]) == (409, "preview_expired")


def test_a_forced_end_puts_the_node_aside_first(world: World) -> None:
    job_id = world.ann.post("/v1/jobs", json=job_spec()).json()["id"]
    place(world.database, job_id)
    [lease_id] = states(world)
    ended = world.staff.post(f"/v1/admin/leases/{lease_id}/force-release")
    assert ended.status_code == 200, ended.text
    assert ended.json()["state"] == "ending"
    assert world.staff.get("/v1/nodes/box").json()["state"] == "quarantined"
    assert world.ann.get(f"/v1/jobs/{job_id}").json()["state"] == "stopping"
    assert world.staff.post(f"/v1/admin/leases/{lease_id}/force-release").status_code == 409
    assert world.ann.post(f"/v1/admin/leases/{lease_id}/force-release").status_code == 403
