"""The list of jobs in every order and page by page, and where a job's ranks sit."""

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
