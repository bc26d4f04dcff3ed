"""The library's pages: rows as tokens, models with their versions and origin, tokenizers."""

import json
import re
from typing import Any

from starlette.testclient import TestClient

from api.files.schemas import DatasetRows, DatasetView, ModelView, TokenizerView, UploadView
from api.sharing.schemas import ShareView
from tests.dashboard.fake_api import FakeApi, refusal, view

DATA, MODEL = "data_01aaaaaaaaaaaaaaaaaaaaaaaa", "model_01aaaaaaaaaaaaaaaaaaaaaaaa"
JOB = "job_01aaaaaaaaaaaaaaaaaaaaaaaa"
HOSTILE = "<script>alert(1)</script>\u202e"


def model(**changes: Any) -> Any:
    fields = {
        "id": MODEL,
        "name": "tiny",
        "architecture": "LlamaForCausalLM",
        "parameters": 32_608,
        "size": 2048,
        "files": [{"path": "config.json", "size": 10, "sha256": "a" * 64}],
        "version": 2,
        "origin": {"job": JOB, "step": 400, "epoch": 1},
        "used_by": [JOB],
    }
    return view(ModelView, {**fields, **changes})


def tokenizer() -> Any:
    fields = {"id": "tok_01", "name": HOSTILE, "vocabulary_size": 32_000, "size": 9, "job": None}
    return view(TokenizerView, {**fields, "files": []})


def test_rows_are_tokens_and_those_only_read_are_marked(api: FakeApi, page: TestClient) -> None:
    files = [{"path": f"{number}.jsonl", "size": 10, "sha256": "b" * 64} for number in range(2)]
    api.put(
        f"/v1/datasets/{DATA}", view(DatasetView, {"id": DATA, "name": "chats", "files": files})
    )
    pieces = [{"text": "Hi" + HOSTILE, "learned": False}, {"text": " Ho", "learned": True}]
    row = {
        "place": "line 1",
        "form": "chat",
        "num_tokens": 7,
        "num_learned": 3,
        "pieces": pieces,
        "is_cut": True,
    }
    shown = view(DatasetRows, {"tokenizer": "tok_01", "rows": [row]})
    api.put(f"/v1/datasets/{DATA}/rows", shown)
    api.put("/v1/tokenizers", [tokenizer()])
    text = page.get(f"/datasets/{DATA}?tokenizer=tok_01").text
    assert api.sent("GET", f"/v1/datasets/{DATA}/rows").query == {"tokenizer": ["tok_01"]}
    assert re.search(r'class="token only-read"[^>]*>Hi&lt;script', text)
    assert re.search(r'class="token (odd|even)"> Ho</span>', text)
    assert "7 tokens, 3 of them learned; its beginning" in re.sub(r"<[^>]+>", "", text)
    assert "1.jsonl" in text
    assert "<script>alert" not in text
    assert 'value="tok_01" selected' in text
    assert "Fetched from" not in text
    origin = {"job": JOB, "epoch": 1, "hub": f"lab/{HOSTILE}@c0ffee"}
    api.put(f"/v1/datasets/{DATA}", view(DatasetView, {"id": DATA, "origin": origin}))
    text = page.get(f"/datasets/{DATA}").text
    assert f'@c0ffee</bdi> by <a href="/jobs/{JOB}">' in text
    assert "<script>alert" not in text
    why = refusal(422, "There is no preview: the reader failed.")
    api.put(f"/v1/datasets/{DATA}/rows", why)
    assert "the reader failed" in page.get(f"/datasets/{DATA}").text


def test_a_model_shows_versions_origin_and_jobs(api: FakeApi, page: TestClient) -> None:
    first = model(id="model_01b", name="tiny@1", version=1, origin=None, used_by=[])
    other = model(id="model_01c", name="tiny-two", version=1)
    api.put("/v1/models", [model(), first, other])
    api.put(f"/v1/models/{MODEL}", model())
    listed = page.get("/models").text
    assert f'<a href="/jobs/{JOB}">step 400 of a job</a>' in listed
    assert "upload" in listed
    text = page.get(f"/models/{MODEL}").text
    assert 'href="/models/model_01b"' in text
    assert "tiny-two" not in text
    assert text.count(f'href="/jobs/{JOB}"') == 2
    hub = {"job": JOB, "step": None, "epoch": 1, "hub": f"lab/{HOSTILE}@c0ffee"}
    api.put("/v1/models", [model(origin=hub)])
    api.put(f"/v1/models/{MODEL}", model(origin=hub))
    for text in (page.get("/models").text, page.get(f"/models/{MODEL}").text):
        assert "lab/&lt;script&gt;" in text
        assert f'href="/jobs/{JOB}"' in text
        assert "<script>alert" not in text
    assert "@c0ffee" in text
    api.put("/v1/models", [])
    assert "No models yet" in page.get("/models").text


def test_tokenizers_are_listed_safely(api: FakeApi, page: TestClient) -> None:
    api.put("/v1/tokenizers", [tokenizer()])
    text = page.get("/tokenizers").text
    assert "32,000" in text
    assert "<script>alert" not in text
    api.put("/v1/tokenizers", [])
    assert "No tokenizers yet" in page.get("/tokenizers").text


def test_what_others_share_has_its_owner_and_no_buttons(api: FakeApi, page: TestClient) -> None:
    mine = view(DatasetView, {"id": DATA, "name": "mine", "owner": "ada"})
    theirs = view(DatasetView, {"id": "data_02", "name": "rows", "owner": "grace"})
    api.put("/v1/datasets", [mine, theirs])
    text = page.get("/datasets").text
    assert f'href="/shares/dataset/{DATA}"' in text
    assert "grace/</span><bdi>rows</bdi>" in text
    assert "/shares/dataset/data_02" not in text
    assert "/datasets/data_02/delete" not in text
    api.put("/v1/models", [model(owner="grace")])
    api.put(f"/v1/models/{MODEL}", model(owner="grace"))
    assert "/shares/model" not in page.get("/models").text
    assert "model.checkpoint: grace/tiny" in page.get(f"/models/{MODEL}").text


def test_a_thing_is_shared_by_form_and_ended_by_button(api: FakeApi, page: TestClient) -> None:
    fields = {"kind": "model", "thing": MODEL, "name": "tiny", "audience": "group"}
    one = view(ShareView, {**fields, "id": "share_01", "who": HOSTILE})
    api.put("/v1/shares", [one])
    api.put(f"/v1/models/{MODEL}", model(owner="ada"))
    text = page.get(f"/shares/model/{MODEL}").text
    assert api.sent("GET", "/v1/shares").query["thing"] == [MODEL]
    assert "<script>alert" not in text
    assert "ada/tiny" in text
    assert f'action="/shares/model/{MODEL}/share_01/end"' in text
    assert "<script>alert" not in page.get("/shares").text
    for form, asked in (
        ({"audience": "group", "who": " course "}, {"group": "course"}),
        ({"audience": "person", "who": "bob"}, {"person": "bob"}),
        ({"audience": "everybody", "who": "ignored"}, {"everybody": True}),
    ):
        api.put("/v1/shares", one, method="POST")
        answer = page.post(f"/shares/model/{MODEL}", data=form, follow_redirects=False)
        assert (answer.status_code, answer.headers["location"]) == (303, f"/shares/model/{MODEL}")
        assert json.loads(api.sent("POST", "/v1/shares").body) == {
            "kind": "model",
            "thing": MODEL,
            **asked,
        }
    api.put("/v1/shares", refusal(404, "There is no person 'bop'."), method="POST")
    refused = page.post(f"/shares/model/{MODEL}", data={"audience": "person", "who": "bop"})
    assert (refused.status_code, "no person" in refused.text) == (404, True)
    api.put("/v1/shares/share_01", None, method="DELETE")
    page.post(f"/shares/model/{MODEL}/share_01/end", follow_redirects=False)
    assert api.sent("DELETE", "/v1/shares/share_01")


def test_what_was_broken_off_is_listed_and_can_be_deleted(api: FakeApi, page: TestClient) -> None:
    fields = {"path": "a.jsonl", "format": "jsonl", "size": 4 << 20, "received": 3 << 20}
    broken = view(UploadView, {"id": "up_01", **fields})
    model = view(UploadView, {"id": "up_02", **fields, "path": "config.json", "format": "file"})
    api.put("/v1/uploads", [broken, model])
    text = page.get("/datasets").text
    told = " ".join(re.sub(r"<[^>]+>", "", text).split())
    assert re.search(r"a\.jsonl 3\.0\s?MiB of 4\.0\s?MiB; choose it again to go on", told)
    assert "config.json" not in text
    api.put("/v1/uploads/up_01", None, method="DELETE")
    deleted = page.post("/datasets/uploads/up_01/delete")
    assert (deleted.status_code, deleted.headers["location"]) == (303, "/datasets")
    assert api.sent("DELETE", "/v1/uploads/up_01")
    gone = refusal(404, "You have no unfinished upload 'up_01'.")
    api.put("/v1/uploads/up_01", gone, method="DELETE")
    assert "You have no unfinished upload" in page.post("/datasets/uploads/up_01/delete").text
