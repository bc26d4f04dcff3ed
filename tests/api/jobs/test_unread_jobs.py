"""A job that this version of the platform can't read is one line that says so, and can be ended."""

from collections.abc import Mapping
from typing import Any

import pytest
from sqlalchemy import update

from core.tables.jobs import Job
from tests.api.conftest import World
from tests.api.shapes import heartbeat, job_spec, place
from tests.api.web.test_access import signed_in_browser

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)

UNREAD = (
    "Its spec or plan was written by another version of the platform, and this version cannot "
    "read it."
)
STORED: dict[str, Mapping[str, Any]] = {
    "a newer spec": {"spec": {**job_spec(), "priority": 3}},
    "a newer plan": {"plan": {"strategy": "ddp", "world_size": 2}},
    "no spec at all": {"spec": {"verify": "x", "parallelism": 3}},
    "not even a mapping": {"spec": ["nothing", None], "plan": []},
}


@pytest.fixture(params=STORED)
def unread(world: World, request: pytest.FixtureRequest) -> str:
    """A job of ann's, between two others, with such a row."""
    ids = [world.ann.post("/v1/jobs", json=job_spec(name=n)).json()["id"] for n in "abc"]
    with world.database.write() as session:
        session.execute(update(Job).where(Job.id == ids[1]).values(**STORED[request.param]))
    return str(ids[1])


def test_a_job_that_cannot_be_read_is_shown_and_says_so(world: World, unread: str) -> None:
    job = world.ann.get(f"/v1/jobs/{unread}").json()
    assert (job["name"], job["state"], job["plan"]["strategy"]) == ("b", "queued", "unknown")
    assert job["reason"].endswith(UNREAD)
    for caller, query in ((world.ann, ""), (world.staff, "?user=all")):
        listed = caller.get(f"/v1/jobs{query}").json()["data"]
        assert [UNREAD in one["reason"] for one in listed] == [False, True, False]
    layout = world.ann.get(f"/v1/jobs/{unread}/layout").json()
    assert (layout["seats"], layout["timeline"]) == ([], [])
    report = world.ann.post("/v1/reports", json={"jobs": [unread]})
    assert report.status_code == 201
    assert report.json()["content"]["jobs"][0]["job"]["reason"].endswith(UNREAD)


def test_its_pages_open(world: World, unread: str) -> None:
    browser = signed_in_browser(world)
    report = world.ann.post("/v1/reports", json={"jobs": [unread]}).json()["sha256"]
    for page in ("/jobs", f"/jobs/{unread}", f"/reports/{report}"):
        answer = browser.get(page)
        assert answer.status_code == 200, answer.text
    assert "was written by another version" in browser.get(f"/jobs/{unread}").text


@pytest.mark.parametrize("act", ["cancel", "pause"])
def test_it_can_be_ended_without_its_spec(world: World, unread: str, act: str) -> None:
    state = {"cancel": "cancelled", "pause": "paused"}[act]
    answer = world.staff.post(f"/v1/jobs/{unread}/{act}")
    assert (answer.status_code, answer.json()["state"]) == (200, state)
    assert world.ann.get(f"/v1/jobs/{unread}").json()["state"] == state


def test_what_needs_its_spec_is_refused_with_the_reason(world: World, unread: str) -> None:
    other = world.ann.get("/v1/jobs").json()["data"][0]["id"]
    answer = world.ann.get(f"/v1/jobs/{unread}/comparison", params={"with": other})
    assert (answer.status_code, answer.json()["code"]) == (409, "unread_spec")
    clone = world.ann.post(f"/v1/jobs/{unread}/clone").status_code
    assert clone in (201, 422)  # of an unread plan the spec may be fine


@pytest.mark.parametrize("stored", STORED.values(), ids=STORED)
def test_its_node_goes_on_with_it_and_is_heard(world: World, stored: Mapping[str, Any]) -> None:
    other, unread = (world.ann.post("/v1/jobs", json=job_spec()).json()["id"] for _ in range(2))
    place(world.database, unread)
    seen = {"job_id": unread, "epoch": 1, "phase": "running", "step": 3}
    whole = world.node.post("/v1/node/heartbeat", json=heartbeat(seen)).json()
    assert ([one["job_id"] for one in whole["attempts"]], "unread" in whole) == ([unread], False)
    with world.database.write() as session:
        session.execute(update(Job).where(Job.id == unread).values(**stored))
    answer = world.node.post("/v1/node/heartbeat", json=heartbeat(seen))
    assert answer.status_code == 200, answer.text
    (left_alone,) = answer.json()["unread"]
    assert (left_alone["job_id"], left_alone["stop"]) == (unread, None)
    assert left_alone["deadlines"]["stop_in_s"] > 0
    assert world.ann.post(f"/v1/jobs/{unread}/cancel").status_code == 200
    (stopped,) = world.node.post("/v1/node/heartbeat", json=heartbeat(seen)).json()["unread"]
    assert stopped["stop"]["reason"] == "cancelled"
    assert other not in answer.text


def test_a_study_with_such_a_job_is_listed_and_cancelled(world: World) -> None:
    answer = world.ann.post("/v1/studies", params={"ranks": "1,2"}, json=job_spec())
    assert answer.status_code == 201, answer.text
    study = answer.json()
    with world.database.write() as session:
        changed = update(Job).where(Job.id == study["jobs"][1]["job"])
        session.execute(changed.values(spec={**job_spec(), "priority": 3}))
    (listed,) = world.ann.get("/v1/studies").json()["data"]
    assert [one["label"] for one in listed["jobs"]] == ["1 rank", "unknown"]
    found = world.ann.get(f"/v1/studies/{study['id']}").json()
    assert (UNREAD in found["summary"], found["points"]) == (True, [])
    cancelled = world.ann.post(f"/v1/studies/{study['id']}/cancel").json()
    assert [one["state"] for one in cancelled["jobs"]] == ["cancelled", "cancelled"]
