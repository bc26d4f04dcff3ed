"""Labs, attributes, invitations, password links, lists of people, exceptions, deactivation."""

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select, update

from api.people.people_import import read_people
from core.base.clock import utc_now
from core.leases import leases
from core.policy.grid import HOUR, hour_ceiling
from core.states import LeaseState
from core.tables.admin import AuditEntry
from core.tables.jobs import Job
from core.tables.kinds import LeaseKind, WaitState
from core.tables.leases import Lease, Wait
from core.tables.nodes import Node
from core.tables.people import Invite, User
from tests.api.conftest import World, client
from tests.api.shapes import job_spec, place

PASSWORD = "a sentence of my own"
COURSE = """name,email,lab,cohort,netid_parity
cy,Cy@example.org,vision,monday,even
dee,dee@example.org,speech,tuesday,odd
"""


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    """The races and the SQL that differs are tested on both."""
    return sqlite_url


def admin_makes_lab(world: World, name: str, **body: Any) -> dict[str, Any]:
    answer = world.admin.post("/v1/labs", json={"name": name, **body})
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


def lease_of(world: World, name: str, *, in_hours: int, lab: str | None = None) -> str:
    """A booked lease of one hour on `box`, or an active one that began (0); its id."""
    now = utc_now()
    start = hour_ceiling(now) + (in_hours - 1) * HOUR
    with world.database.write() as session:
        user = session.scalars(select(User).where(User.name == name)).one()
        node = session.scalars(select(Node)).first()
        assert node is not None
        lease = leases.take(
            session,
            user_id=user.id,
            node=node,
            kind=LeaseKind.BOOKED,
            start=start,
            end=start + HOUR,
            grace_s=300,
            now=now,
            actor="test",
            message="Booked.",
        )
        lease.lab_id = lab
        return lease.id


def test_a_lab_has_a_weight_groups_and_leads(world: World) -> None:
    lab = admin_makes_lab(world, "vision", weight=2.5, groups=["course-s25"])
    assert (lab["weight"], lab["groups"], lab["members"]) == (2.5, ["course-s25"], [])
    world.admin.post("/v1/labs/vision/members", json={"user": "ann", "is_lead": True})
    world.admin.post("/v1/labs/vision/members", json={"user": "bob"})
    changed = world.admin.patch("/v1/labs/vision", json={"weight": 1})
    assert changed.json()["weight"] == 1
    assert changed.json()["groups"] == ["course-s25"]
    assert changed.json()["members"] == ["ann", "bob"]
    assert changed.json()["leads"] == ["ann"]
    assert world.admin.patch("/v1/labs/vision", json={"weight": 0}).json()["param"] == "weight"


def test_addresses_and_attributes_are_the_administrators_to_set(world: World) -> None:
    body = {"email": "Ann@Example.org", "attributes": {"cohort": "even"}}
    assert world.ann.patch("/v1/users/ann", json=body).status_code == 403
    view = world.admin.patch("/v1/users/ann", json=body).json()
    assert (view["email"], view["attributes"]) == ("ann@example.org", {"cohort": "even"})
    taken = world.admin.patch("/v1/users/bob", json={"email": "ann@example.org"})
    assert (taken.status_code, taken.json()["code"]) == (409, "email_taken")
    wrong = world.admin.patch("/v1/users/bob", json={"email": "bob at home"})
    assert (wrong.status_code, wrong.json()["param"]) == (422, "email")
    kept = world.admin.patch("/v1/users/ann", json={"attributes": {}}).json()
    assert (kept["email"], kept["attributes"]) == ("ann@example.org", {})
    assert world.admin.patch("/v1/users/ann", json={"email": None}).json()["email"] is None


def test_an_invitation_makes_one_account_in_its_lab(world: World) -> None:
    admin_makes_lab(world, "vision")
    body = {"lab": "vision", "email": "cy@example.org", "attributes": {"cohort": "even"}}
    made = world.admin.post("/v1/invites", json=body).json()
    answer = {"secret": made["secret"], "name": "cy", "password": PASSWORD}
    joined = world.nobody.post("/v1/invites/accept", json=answer)
    assert joined.status_code == 201, joined.text
    cy = client(world.app, joined.json()["secret"]).get("/v1/me").json()
    assert cy["labs"] == ["vision"]
    assert cy["user"]["email"] == "cy@example.org"
    assert cy["user"]["attributes"] == {"cohort": "even"}
    again = world.nobody.post("/v1/invites/accept", json={**answer, "name": "dee"})
    assert again.status_code == 401
    assert "used already" in again.json()["detail"]
    [listed] = world.admin.get("/v1/invites").json()["data"]
    assert (listed["state"], listed["used_by"]) == ("used", "cy")
    assert "secret" not in listed


def test_a_name_that_is_taken_does_not_use_an_invitation_up(world: World) -> None:
    made = world.admin.post("/v1/invites", json={}).json()
    answer = {"secret": made["secret"], "name": "ann", "password": PASSWORD}
    assert world.nobody.post("/v1/invites/accept", json=answer).status_code == 409
    answer["name"] = "cy"
    assert world.nobody.post("/v1/invites/accept", json=answer).status_code == 201


@pytest.mark.parametrize("end", ["expired", "revoked"])
def test_an_invitation_ends(world: World, end: str) -> None:
    made = world.admin.post("/v1/invites", json={}).json()
    if end == "revoked":
        assert world.admin.delete(f"/v1/invites/{made['id']}").status_code == 204
    else:
        with world.database.write() as session:
            session.execute(update(Invite).values(expires_at=utc_now() - timedelta(seconds=1)))
    answer = {"secret": made["secret"], "name": "cy", "password": PASSWORD}
    refused = world.nobody.post("/v1/invites/accept", json=answer)
    assert (refused.status_code, refused.json()["code"]) == (401, "bad_link")
    assert world.admin.get("/v1/invites").json()["data"][0]["state"] == end


def test_who_leads_a_lab_invites_into_it_and_nowhere_else(world: World) -> None:
    admin_makes_lab(world, "vision")
    admin_makes_lab(world, "speech")
    world.admin.post("/v1/labs/vision/members", json={"user": "ann", "is_lead": True})
    world.admin.post("/v1/labs/vision/members", json={"user": "bob"})
    assert world.ann.post("/v1/invites", json={"lab": "vision"}).status_code == 201
    assert world.ann.post("/v1/invites", json={"lab": "speech"}).status_code == 404
    assert world.ann.post("/v1/invites", json={}).status_code == 403
    assert world.bob.post("/v1/invites", json={"lab": "vision"}).status_code == 403
    assert world.bob.get("/v1/invites").json()["data"] == []


def test_a_password_link_sets_a_password_once_and_ends_other_sessions(world: World) -> None:
    assert world.ann.post("/v1/users/ann/password-link").status_code == 403
    link = world.admin.post("/v1/users/ann/password-link").json()
    body = {"secret": link["secret"], "password": PASSWORD}
    done = world.nobody.post("/v1/new-password", json=body)
    assert done.status_code == 201, done.text
    assert world.ann.get("/v1/me").status_code == 401
    signed_in = world.nobody.post("/v1/sessions", json={"name": "ann", "password": PASSWORD})
    assert signed_in.status_code == 201
    assert world.nobody.post("/v1/new-password", json=body).status_code == 401


def test_a_course_is_imported_at_once_and_again_without_effect(world: World) -> None:
    tried = world.admin.post("/v1/users/import", json={"csv": COURSE, "dry_run": True}).json()
    assert (tried["added"], tried["labs"]) == (2, ["speech", "vision"])
    assert world.admin.get("/v1/users/cy").status_code == 404
    done = world.admin.post("/v1/users/import", json={"csv": COURSE, "links": True}).json()
    assert done["added"] == 2
    secret = done["rows"][0]["password_link"].partition("secret=")[2]
    new = world.nobody.post("/v1/new-password", json={"secret": secret, "password": PASSWORD})
    me = client(world.app, new.json()["secret"]).get("/v1/me").json()
    assert me["labs"] == ["vision"]
    assert me["user"]["email"] == "cy@example.org"
    assert me["user"]["attributes"] == {"cohort": "monday", "netid_parity": "even"}
    again = world.admin.post("/v1/users/import", json={"csv": COURSE, "links": True}).json()
    assert (again["added"], again["changed"], again["same"]) == (0, 0, 2)
    assert again["rows"][0]["password_link"] is None
    moved = COURSE.replace("tuesday", "friday")
    [_, dee] = world.admin.post("/v1/users/import", json={"csv": moved}).json()["rows"]
    assert (dee["action"], dee["changes"]) == ("change", ["cohort"])


def test_columns_of_lists_belong_to_the_person(world: World) -> None:
    assert world.ann.get("/v1/me").json()["job_columns"] is None
    assert world.ann.patch("/v1/me", json={"job_columns": ["loss"]}).status_code == 200
    assert world.ann.get("/v1/me").json()["job_columns"] == ["loss"]
    assert world.bob.get("/v1/me").json()["job_columns"] is None
    refused = world.ann.patch("/v1/me", json={"job_columns": ["<b>"]})
    assert (refused.status_code, refused.json()["param"]) == (422, "job_columns.0")


def test_mistakes_in_a_list_are_told_by_line_and_column_and_nothing_is_written(
    world: World,
) -> None:
    world.admin.patch("/v1/users/ann", json={"email": "ann@example.org"})
    text = (
        "name,email,role,zone\n"
        "cy,cy@example.org,,\n"
        "Dee,dee@example.org,,\n"
        "eve,no address,,\n"
        "fay,ann@example.org,,\n"
        "cy,,,Nowhere/City\n"
        "gus,,king,\n"
        "bob,,admin,\n"
        "hal,hal@example.org\n"
    )
    answer = world.admin.post("/v1/users/import", json={"csv": text})
    assert answer.status_code == 422
    assert [item["param"] for item in answer.json()["errors"]] == [
        "line 3, name",
        "line 4, email",
        "line 6, zone",
        "line 7, role",
        "line 9, role",
    ]
    known = "name,email,role\nfay,ann@example.org,\nbob,,admin\n"
    answer = world.admin.post("/v1/users/import", json={"csv": known})
    assert [item["param"] for item in answer.json()["errors"]] == ["line 2, email", "line 3, role"]
    assert world.admin.get("/v1/users/cy").status_code == 404


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [
        ("", 1, "name"),
        ("email\na@b.c\n", 1, "name"),
        ("name,name\na,b\n", 1, "name"),
        ("name,=cmd\na,b\n", 1, "=cmd"),
        ("name,email\nann,\nann,\n", 3, "name"),
        ("name,email\nann,a@b.c\nbob,A@b.c\n", 3, "email"),
        ('name,note\nann,"never closed\n', 2, ""),
        ("name,note\nann,\x07bell\n", 2, "note"),
    ],
)
def test_a_list_that_is_wrong_says_where(text: str, line: int, column: str) -> None:
    _, mistakes = read_people(text)
    assert (mistakes[0].line, mistakes[0].column) == (line, column)


def test_exceptions_are_shown_to_everybody_with_who_gave_them_and_why(world: World) -> None:
    now = utc_now()
    body = {
        "user": "ann",
        "rule": "quota_main",
        "extra": 2,
        "starts_at": now.isoformat(),
        "ends_at": (now + timedelta(days=7)).isoformat(),
        "why": "Was ill last week.",
    }
    assert world.bob.post("/v1/grants", json=body).status_code == 403
    grant = world.staff.post("/v1/grants", json=body).json()
    [seen] = world.bob.get("/v1/grants?now_only=true").json()["data"]
    assert (seen["user"], seen["granted_by"], seen["why"]) == ("ann", "stefan", body["why"])
    assert world.staff.delete(f"/v1/grants/{grant['id']}").status_code == 204
    assert world.bob.get("/v1/grants?now_only=true").json()["data"] == []
    assert world.bob.get("/v1/grants").json()["data"][0]["revoked_at"] is not None
    unknown = world.staff.post("/v1/grants", json={**body, "rule": "node_taken"})
    assert (unknown.status_code, unknown.json()["code"]) == (422, "unknown_rule")
    backwards = world.staff.post("/v1/grants", json={**body, "ends_at": now.isoformat()})
    assert (backwards.status_code, backwards.json()["param"]) == (422, "ends_at")


def test_edge_68_who_moves_lab_takes_leases_to_come_and_leaves_what_was_used(
    world: World,
) -> None:
    old, new = admin_makes_lab(world, "vision"), admin_makes_lab(world, "speech")
    world.admin.post("/v1/labs/vision/members", json={"user": "ann"})
    past = lease_of(world, "ann", in_hours=0, lab=old["id"])
    with world.database.write() as session:
        session.execute(update(Lease).values(state=LeaseState.ENDED))
    future = lease_of(world, "ann", in_hours=3, lab=old["id"])
    others = lease_of(world, "bob", in_hours=5, lab=old["id"])
    body = {"from_lab": "vision", "to_lab": "speech"}
    moved = world.admin.post("/v1/users/ann/move", json=body)
    assert moved.status_code == 200, moved.text
    assert moved.json()["leases"] == [future]
    with world.database.read() as session:
        labs = {lease.id: lease.lab_id for lease in session.scalars(select(Lease))}
    assert labs == {past: old["id"], future: new["id"], others: old["id"]}
    assert world.ann.get("/v1/me").json()["labs"] == ["speech"]
    again = world.admin.post("/v1/users/ann/move", json=body)
    assert (again.status_code, again.json()["leases"]) == (200, [])
    assert world.admin.post("/v1/users/bob/move", json=body).json()["code"] == "not_a_member"


def test_edge_69_deactivation_cancels_what_is_booked_and_lets_jobs_save(world: World) -> None:
    job_id = world.ann.post("/v1/jobs", json=job_spec()).json()["id"]
    place(world.database, job_id)
    booked = lease_of(world, "ann", in_hours=6)
    with world.database.write() as session:
        now = utc_now()
        session.add(
            Wait(
                id="wait_1",
                user_id=session.scalars(select(User.id).where(User.name == "ann")).one(),
                first_start=now,
                last_start=now + timedelta(days=1),
                hours=2,
                state=WaitState.WAITING,
                queued_at=now,
                created_at=now,
            )
        )
    assert world.admin.patch("/v1/users/ann", json={"disabled": True}).status_code == 200
    assert world.ann.get("/v1/me").status_code == 401
    with world.database.read() as session:
        states = {lease.id: lease.state for lease in session.scalars(select(Lease))}
        [active] = [lease_id for lease_id in states if lease_id != booked]
        job = session.get_one(Job, job_id)
        assert session.get_one(Wait, "wait_1").state is WaitState.LEFT
        audit = session.scalars(select(AuditEntry).where(AuditEntry.action == "user.change")).one()
    assert states == {booked: LeaseState.CANCELLED, active: LeaseState.ENDING}
    assert (job.state, job.reason_code) == ("stopping", "lease_ended")
    assert audit.details["cancelled"] == [booked]
    assert audit.details["stopped"] == [active]
