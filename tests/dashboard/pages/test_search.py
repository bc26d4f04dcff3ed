"""Search: hits of every kind by parts of names and ids, on a page and in every page's dialog."""

import re
from typing import Any

import pytest
from starlette.testclient import TestClient

from api.people.schemas import UserView
from core.tables.kinds import Role
from tests.dashboard.fake_api import DATASET, FakeApi, job, lease, me, node, view

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture
def found(api: FakeApi, page: TestClient) -> Any:
    """What a search answers, as address -> words."""
    for path in ("models", "studies", "agendas"):
        api.put(f"/v1/{path}", [])
    api.put("/v1/jobs", [job(name=HOSTILE)])
    api.put("/v1/leases", [lease()])
    api.put("/v1/nodes", [node()])
    api.put("/v1/datasets", [DATASET])

    def find(text: str, path: str = "/search/found") -> dict[str, str]:
        answer = page.get(path, params={"q": text})
        assert answer.status_code == 200
        assert HOSTILE not in answer.text
        lists = "".join(re.findall(r'<ul class="found">(.*?)</ul>', answer.text))
        links = re.findall(r'<li><a href="([^"]+)">(.*?)</a></li>', lists)
        return {at: re.sub('<span class="sr">.*?</span>|<[^>]+>', "", words) for at, words in links}

    return find


def test_things_are_found_by_parts_of_their_names(api: FakeApi, found: Any) -> None:
    assert found("EAST-01")["/nodes/east-01"].startswith("east-01")
    assert api.sent("GET", "/v1/jobs").query["search"] == ["EAST-01"]
    assert found(DATASET.name)[f"/datasets/{DATASET.id}"].startswith(DATASET.name)
    assert f"/leases/{lease().id}" in found(lease().id[-6:])
    assert f"/jobs/{job().id}" in found("anything that the API finds")


def test_pages_are_found_by_their_words_and_staff_finds_more(api: FakeApi, found: Any) -> None:
    assert found("cal")["/calendar"] == "Calendar"
    assert "/admin/people" not in found("clean-ups")
    assert set(found("")) >= {"/jobs", "/nodes"}
    api.put("/v1/me", me(user=view(UserView, {"name": "ada", "role": Role.STAFF})))
    api.put("/v1/users", [view(UserView, {"name": "grace", "role": Role.USER})])
    assert {"/admin/people", "/admin/people/import"} <= set(found("people"))
    assert found("exc")["/admin/grants"] == "Exceptions"
    assert next(iter(found("grace"))).startswith("/admin/people"), "before what the API finds"
    assert "/admin/cleanups" in found("clean-ups")
    assert found("grac")["/admin/people?search=grace"].startswith("grace")
    assert api.sent("GET", "/v1/jobs").query["user"] == ["all"]


def test_days_find_what_was_submitted_and_booked_then(api: FakeApi, found: Any) -> None:
    api.put("/v1/leases", [lease()])
    day = f"{lease().hold_start:%Y-%m-%d}"
    hits = found(f"gpt {day}")
    asked = [call for call in api.calls if "since" in call.query]
    assert [call.query["search"] for call in asked] == [["gpt"]]
    assert f"/jobs/{job().id}" in hits
    assert hits[f"/jobs?search=gpt&amp;days={day}"] == f"All jobs submitted {day} with gpt"
    assert f"/leases/{lease().id}" not in hits, "its words have no gpt"
    assert f"/leases/{lease().id}" in found(f"east-01 {day}")
    assert "/jobs?days=last+week" in found("last week")
    assert "/jobs?days=from+2026-11-18+to+2026-11-20" in found("from 2026-11-18 to 2026-11-20")


def test_what_is_not_found_is_said_and_not_believed(api: FakeApi, page: TestClient) -> None:
    for path in ("models", "studies", "agendas", "jobs", "leases", "nodes", "datasets"):
        api.put(f"/v1/{path}", [])
    for path in ("/search", "/search/found"):
        text = page.get(path, params={"q": HOSTILE}).text
        assert HOSTILE not in text
        assert "Nothing has “" in text


def test_the_dialog_stands_on_every_page(api: FakeApi, page: TestClient, found: Any) -> None:
    text = page.get("/nodes").text
    assert 'id="finder"' in text
    assert "data-find" in text
    assert "/nodes" in found("nodes", "/search")
