"""The list of jobs in every order and page by page, and where a job's ranks sit."""

from datetime import UTC, datetime

import pytest
from sqlalchemy import update

from core.tables.jobs import Job
from tests.api.conftest import World
from tests.api.shapes import job_spec

LOSSES = {"b": 2.0, "a": None, "D": 1.0, "c": 2.0}


@pytest.fixture
def listed(world: World) -> dict[str, str]:
    """Name to id of four jobs, submitted in this order, with these losses."""
    ids = {
        name: world.ann.post("/v1/jobs", json=job_spec(name=name)).json()["id"] for name in LOSSES
    }
    with world.database.write() as session:
        for name, loss in LOSSES.items():
            session.execute(update(Job).where(Job.id == ids[name]).values(last_loss=loss))
    return ids


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("newest", "cDab"),
        ("oldest", "baDc"),
        ("name", "abcD"),
        ("loss", "Dbca"),
    ],
)
def test_every_order_goes_on_where_the_page_before_ended(
    world: World, listed: dict[str, str], order: str, expected: str
) -> None:
    found, after = "", ""
    while True:
        page = world.ann.get(
            "/v1/jobs", params={"order": order, "limit": 1, **({"after": after} if after else {})}
        ).json()
        found += "".join(job["name"] for job in page["data"])
        if not page["has_more"]:
            break
        after = page["data"][-1]["id"]
    assert found == expected


def test_a_search_finds_part_of_a_name_an_id_or_a_person(
    world: World, listed: dict[str, str]
) -> None:
    def names(search: str) -> str:
        page = world.admin.get("/v1/jobs", params={"search": search, "user": "all"}).json()
        return "".join(job["name"] for job in page["data"])

    assert names("d") == "D"
    for part in (listed["a"], listed["a"][-6:], listed["a"].removeprefix("job_")[:-2]):
        assert names(part) == "a"
    assert names(listed["a"][-3:]) == ""
    assert names("ann") == "cDab"
    assert names("%") == ""


def test_tags_begin_as_those_of_the_spec_and_are_changed_later(world: World) -> None:
    job = world.ann.post("/v1/jobs", json=job_spec(name="t", tags=["lab-1", "big"])).json()
    world.ann.post("/v1/jobs", json=job_spec(name="u"))
    assert job["tags"] == ["lab-1", "big"]

    def tagged(tag: str) -> list[str]:
        answer = world.ann.get("/v1/jobs", params={"tag": tag}).json()
        assert world.ann.get("/v1/jobs", params={"search": tag}).json() == answer
        return [one["name"] for one in answer["data"]]

    assert tagged("lab-1") == tagged("LAB-1") == ["t"]
    for part in ("lab", "lab_1", "lab-1, big", "%"):
        assert tagged(part) == []
    address = f"/v1/jobs/{job['id']}/tags"
    assert world.ann.put(address, json={"tags": ["done"]}).json()["tags"] == ["done"]
    assert tagged("lab-1") == []
    assert tagged("done") == ["t"]
    clone = world.ann.post(f"/v1/jobs/{job['id']}/clone").json()
    assert clone["tags"] == ["lab-1", "big"]
    assert world.bob.put(address, json={"tags": []}).status_code == 404
    assert world.ann.put(address, json={"tags": []}).json()["tags"] == []


@pytest.mark.parametrize(
    ("tags", "param"),
    [
        (["Lab 1"], "tags.0"),
        (["a", "a"], "tags"),
        ([f"t{n}" for n in range(21)], "tags"),
        (['"'], "tags.0"),
    ],
)
def test_tags_that_are_none_are_refused(world: World, tags: list[str], param: str) -> None:
    answer = world.ann.post("/v1/jobs", json=job_spec(tags=tags))
    assert (answer.status_code, answer.json()["param"]) == (422, param)


def test_jobs_are_found_by_when_they_were_submitted(world: World, listed: dict[str, str]) -> None:
    with world.database.write() as session:
        for day, name in enumerate(LOSSES, start=1):
            at = datetime(2026, 11, day, 12, tzinfo=UTC)
            session.execute(update(Job).where(Job.id == listed[name]).values(created_at=at))

    def names(**asked: str) -> str:
        return "".join(
            job["name"] for job in world.ann.get("/v1/jobs", params=asked).json()["data"]
        )

    assert names(since="2026-11-02T12:00:00Z", until="2026-11-04T12:00:00Z") == "Da"
    assert names(until="2026-11-02T14:00:00+02:00") == "b"
    refused = world.ann.get("/v1/jobs?since=2026-11-02T12:00:00")
    assert (refused.status_code, refused.json()["param"]) == (422, "since")


def test_an_order_that_is_none_is_refused(world: World) -> None:
    answer = world.ann.get("/v1/jobs?order=luck")
    assert (answer.status_code, answer.json()["param"]) == (422, "order")


def test_the_layout_has_a_seat_for_every_rank_and_the_passes_of_a_pipeline(world: World) -> None:
    spec = job_spec(
        parallelism={"strategy": "pipeline", "data_parallel_replicate_degree": None},
    )
    job_id = world.ann.post("/v1/jobs", json=spec).json()["id"]
    layout = world.ann.get(f"/v1/jobs/{job_id}/layout").json()
    assert [(seat["rank"], seat["pipeline"]) for seat in layout["seats"]] == [(0, 0), (1, 1)]
    assert {slot["kind"] for slot in layout["timeline"]} >= {"forward", "backward"}
    assert layout["nodes"] == []
    assert world.bob.get(f"/v1/jobs/{job_id}/layout").status_code == 404
