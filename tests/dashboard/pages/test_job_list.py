"""The list of jobs: columns that are kept for a person, tags, and days of submission."""

import json
import re

import pytest
from starlette.testclient import TestClient

from core.states import JobState
from dashboard.job_columns import COLUMNS, USUAL
from tests.dashboard.fake_api import FakeApi, job, me, refusal

HOSTILE = "<script>alert(1)</script>"
HEADS = re.compile(r'<th scope="col"[^>]*>(.*?)</th>')


def _heads(page: TestClient) -> list[str]:
    return [re.sub("<[^>]+>", "", head) for head in HEADS.findall(page.get("/jobs").text)]


def test_the_columns_are_those_that_the_person_chose(api: FakeApi, page: TestClient) -> None:
    api.put("/v1/jobs", [job()])
    usual = ["State", "Name and reason", "Layout, node", "Progress", "Finish", "Loss so far"]
    assert _heads(page) == [*usual, "Loss", "Tokens/s"]
    api.put("/v1/me", me(job_columns=["loss", "data", "of another version"]))
    assert _heads(page) == ["State", "Name and reason", "Data", "Loss"]
    rows = page.get("/jobs/rows").text
    assert "python-stdlib" in rows
    assert rows.count("<td") + rows.count("<th") == 5
    checked = re.findall(
        r'name="column" value="(\w+)" form="columns" checked', page.get("/jobs").text
    )
    assert checked == ["data", "loss"]
    assert set(USUAL) < set(COLUMNS)


def test_a_choice_of_columns_is_kept_and_the_filter_stays(api: FakeApi, page: TestClient) -> None:
    api.put("/v1/me", me(), method="PATCH")
    sent = {"column": ["submitted", "curve", "evil"], "filter": "tag=lab-1&days=today&evil=1"}
    answer = page.post("/jobs/columns", data=sent)
    assert (answer.status_code, answer.headers["location"]) == (303, "/jobs?tag=lab-1&days=today")
    assert json.loads(api.sent("PATCH", "/v1/me").body) == {"job_columns": ["submitted", "curve"]}


def test_tags_stand_beside_the_name_and_lead_to_the_jobs_that_have_them(
    api: FakeApi, page: TestClient
) -> None:
    api.put("/v1/jobs", [job(tags=["lab-1"])])
    text = page.get("/jobs?tag=lab-1&order=name").text
    assert api.sent("GET", "/v1/jobs").query["tag"] == ["lab-1"]
    assert 'class="tag" href="/jobs?tag=lab-1&amp;order=name"' in text
    assert 'href="/jobs?order=name" aria-label="Show jobs without the tag lab-1 too"' in text


def test_a_tag_is_added_to_every_selected_job(api: FakeApi, page: TestClient) -> None:
    for name, tags in (("job_1", ["old"]), ("job_2", ["lab-1"])):
        api.put(f"/v1/jobs/{name}", job(tags=tags))
        api.put(f"/v1/jobs/{name}/tags", job(), method="PUT")
    answer = page.post("/jobs/tag", data={"job": ["job_1", "job_2"], "tag": " Lab-1 "})
    assert (answer.status_code, answer.headers["location"]) == (303, "/jobs?tag=lab-1")
    [put] = [call for call in api.calls if call.method == "PUT"]
    assert (put.path, json.loads(put.body)) == ("/v1/jobs/job_1/tags", {"tags": ["old", "lab-1"]})


def test_tags_are_changed_on_the_page_of_a_job(api: FakeApi, page: TestClient) -> None:
    api.show(job(tags=["lab-1"]))
    address = f"/jobs/{job().id}"
    assert 'value="lab-1"' in page.get(address).text
    api.put(f"/v1{address}/tags", job(), method="PUT")
    answer = page.post(f"{address}/tags", data={"tags": "Lab-1, done lab-1"})
    assert answer.status_code == 303
    assert json.loads(api.sent("PUT", f"/v1{address}/tags").body) == {"tags": ["lab-1", "done"]}
    api.put(f"/v1{address}/tags", refusal(422, "tags.0: Use lowercase letters."), method="PUT")
    answer = page.post(f"{address}/tags", data={"tags": HOSTILE})
    assert answer.status_code == 422
    assert "Use lowercase letters." in answer.text


def test_a_report_at_the_end_is_chosen_and_undone_on_the_page_of_a_job(
    api: FakeApi, page: TestClient
) -> None:
    address = f"/jobs/{job().id}"
    for chosen, offered in ((False, "Write it when it has ended"), (True, "Don't write it")):
        api.show(job(state=JobState.RUNNING, report_when_ended=chosen))
        assert offered in page.get(address).text
        api.put(f"/v1{address}/report", job(), method="PUT")
        sent = {"when_ended": "false" if chosen else "true"}
        assert page.post(f"{address}/report", data=sent).status_code == 303
        body = json.loads(api.sent("PUT", f"/v1{address}/report").body)
        assert body == {"when_ended": not chosen}
    api.put(f"/v1{address}/report", refusal(409, "It is written already."), method="PUT")
    answer = page.post(f"{address}/report", data={"when_ended": HOSTILE})
    assert (answer.status_code, "It is written already." in answer.text) == (409, True)
    api.show(job(state=JobState.SUCCEEDED, report_when_ended=True))
    assert "writing its report" in page.get(address).text
    api.show(job(state=JobState.SUCCEEDED, report="ab" * 32))
    assert f'href="/reports/{"ab" * 32}"' in page.get(address).text


def test_days_lie_in_the_zone_of_the_browser(api: FakeApi, page: TestClient) -> None:
    api.put("/v1/jobs", [job()])
    page.get("/jobs", params={"days": "2026-10-25", "zone": "Europe/Berlin"})
    query = api.sent("GET", "/v1/jobs").query
    assert query["since"] == ["2026-10-25T00:00:00+02:00"]
    assert query["until"] == ["2026-10-26T00:00:00+01:00"]
    page.get("/jobs", params={"days": "2026-10-25", "zone": "../etc"})
    assert api.sent("GET", "/v1/jobs").query["since"] == ["2026-10-25T00:00:00+00:00"]


@pytest.mark.parametrize("days", ["last winter", HOSTILE, "2026-11-20 to 2026-11-18"])
def test_days_that_are_none_are_refused_on_the_page(
    api: FakeApi, page: TestClient, days: str
) -> None:
    before = len(api.calls)
    text = page.get("/jobs", params={"days": days, "tag": "lab-1"}).text
    assert "Not a day" in text
    assert HOSTILE not in text
    assert 'href="/jobs?tag=lab-1"' in text
    assert [call.path for call in api.calls[before:]] == ["/v1/me"]
