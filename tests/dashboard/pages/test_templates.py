"""Templates on the pages: open fields as a form, locked ones beside it, values with their types."""

import json
from typing import Any

from starlette.testclient import TestClient

from api.templates.schemas import StartView, TemplateView
from tests.answers import answer
from tests.dashboard.fake_api import FakeApi, refusal, view

ID = "tmpl_01aaaaaaaaaaaaaaaaaaaaaaaa"
PATH = f"/v1/templates/{ID}"
HOSTILE = "<script>alert(1)</script>\u202e"


def template(**changes: Any) -> Any:
    fields = {
        "id": ID,
        "name": "lab-1",
        "owner": "grace",
        "kind": "job",
        "version": 3,
        "description": HOSTILE,
        "spec": {"name": "lab", "training": {"steps": 10, "seed": 7}, "tags": ["a", "b"]},
        "open": [
            answer("TemplateFieldView", **one)
            for one in (
                {"field": "training.steps", "minimum": 1, "maximum": 100, "label": "Steps"},
                {"field": "parallelism.strategy", "choices": ["ddp", "fsdp"], "hint": HOSTILE},
                {"field": "note"},
                {"field": "tags"},
            )
        ],
    }
    return view(TemplateView, {**fields, **changes})


def test_a_template_is_one_click_from_a_new_job(api: FakeApi, page: TestClient) -> None:
    api.put("/v1/templates", [template()])
    assert f'href="/templates/{ID}"' in page.get("/jobs/new").text
    text = page.get("/templates").text
    assert "<script>alert" not in text
    assert "grace/" in text
    assert "/delete" not in text  # it is another's
    api.put("/v1/templates", [])
    assert "No templates yet" in page.get("/templates").text


def test_the_form_has_open_fields_and_shows_locked_ones(api: FakeApi, page: TestClient) -> None:
    api.put(PATH, template())
    text = page.get(f"/templates/{ID}").text
    assert 'name="v.training.steps" value="10"' in text
    assert "From 1 to 100." in text
    assert '<option value="fsdp"' in text
    assert 'name="v.training.seed"' not in text
    assert "training.seed" in text
    assert 'name="v.tags" value="a, b"' in text
    assert "<script>alert" not in text


def test_values_are_sent_with_their_types_and_refusals_keep_them(
    api: FakeApi, page: TestClient
) -> None:
    api.put(PATH, template())
    api.put(f"{PATH}/start", view(StartView, {"job": "job_01", "agenda": None}), method="POST")
    form = {
        "v.training.steps": " 20 ",
        "v.parallelism.strategy": "fsdp",
        "v.note": "",
        "v.tags": "c,d , ",
        "lease": "lease_1",
        "key": "once",
    }
    went = page.post(f"/templates/{ID}/start", data=form, follow_redirects=False)
    assert (went.status_code, went.headers["location"]) == (303, "/jobs/job_01")
    sent = api.sent("POST", f"{PATH}/start")
    assert json.loads(sent.body) == {
        "values": {"training.steps": 20, "parallelism.strategy": "fsdp", "tags": ["c", "d"]},
        "anyway": False,
        "lease": "lease_1",
    }
    assert sent.headers["idempotency-key"] == "once"
    api.put(f"{PATH}/start", refusal(422, "training.steps: 999 is more."), method="POST")
    refused = page.post(f"/templates/{ID}/start", data={**form, "v.training.steps": "999"})
    assert (refused.status_code, "999 is more" in refused.text) == (422, True)
    assert 'value="999"' in refused.text


def test_an_agenda_waits_for_a_lease(api: FakeApi, page: TestClient) -> None:
    api.put(PATH, template(kind="agenda", owner="ada"))
    text = page.get(f"/templates/{ID}").text
    assert 'href="/calendar"' in text
    assert f'href="/shares/template/{ID}"' in text
    api.put(PATH, None, method="DELETE")
    page.post(f"/templates/{ID}/delete", follow_redirects=False)
    assert api.sent("DELETE", PATH)
