"""A study's page: the answer first, every job with its numbers, and what it cannot know."""

import re

import pytest
from starlette.testclient import TestClient

from core.states import JobState
from dashboard import formats
from strategies.plan.trust.scaling import StudyKind
from tests.dashboard.fake_api import FakeApi, job, measured, study_report

STUDY = "/studies/study_01aaaaaaaaaaaaaaaaaaaaaaaa"


@pytest.fixture
def shown(api: FakeApi) -> FakeApi:
    """An API with one study."""
    api.put("/v1/studies", [study_report()])
    api.put(f"/v1{STUDY}", study_report())
    return api


def cells(text: str, label: str) -> list[str]:
    """The row of a job, without markup."""
    (row,) = [one for one in re.findall(r"<tr>(.*?)</tr>", text, re.S) if f">{label}</a>" in one]
    return [re.sub(r"<[^>]+>", "", cell).strip() for cell in re.findall(r"<t[hd].*?</t[hd]>", row)]


@pytest.mark.usefixtures("shown")
def test_it_answers_first_and_shows_every_job_with_its_link(page: TestClient) -> None:
    text = page.get(STUDY).text
    assert "<strong><bdi data-said>2 ranks are 1.60 times as fast as 1 rank" in text
    assert text.index("1.60 times as fast") < text.index("<table")
    assert "strong scaling: the batch size stays" in text
    assert cells(text, "1 rank")[2:6] == ["400 / 400", "8", "0.128s", "8,000"]
    assert cells(text, "2 ranks")[6:9] == ["1.60", "2.00", "80.0%"]
    assert cells(text, "2 ranks")[9:] == ["25.0%", "21.0%", "1.7e-7", "pass"]
    assert 'href="/jobs/job_02aaaaaaaaaaaaaaaaaaaaaaaa"' in text
    assert "<strong>2 ranks</strong>: <bdi>Communication costs some time" in text
    assert text.count('class="plot" tabindex="0"') == 2


def test_what_is_not_known_is_a_dash_with_its_reason(shown: FakeApi, page: TestClient) -> None:
    unknown = dict.fromkeys(
        ("step_time_s", "tokens_per_s", "speed_up", "efficiency", "communication", "judgement")
    )
    failed = measured(label="2 ranks", ranks=2, missing="Failed: rank 1 died.", **unknown)
    shown.put(f"/v1{STUDY}", study_report(points=[measured(), failed]))
    text = page.get(STUDY).text
    assert cells(text, "2 ranks")[4:7] == [formats.UNKNOWN] * 3
    assert "<strong>2 ranks</strong>: <bdi>Failed: rank 1 died.</bdi>" in text


def test_a_weak_study_compares_no_curves_and_a_pipeline_has_a_bubble(
    shown: FakeApi, page: TestClient
) -> None:
    weak = study_report(kind=StudyKind.WEAK)
    shown.put(f"/v1{STUDY}", weak)
    assert "Loss differs by" not in page.get(STUDY).text
    points = [measured(bubble=0.5), measured(bubble=0.2)]
    shown.put(f"/v1{STUDY}", study_report(kind=StudyKind.SCHEDULES, points=points))
    text = page.get(STUDY).text
    assert ">Bubble, predicted</th>" in text
    assert "50.0" in cells(text, "1 rank")[-4]


def test_all_that_has_not_ended_can_be_cancelled(shown: FakeApi, page: TestClient) -> None:
    assert "Cancel all 1 job<" in page.get(STUDY).text
    shown.put(f"/v1{STUDY}/cancel", study_report(), method="POST")
    answer = page.post(f"{STUDY}/cancel")
    assert (answer.status_code, answer.headers["location"]) == (303, STUDY)
    jobs = [one.model_copy(update={"state": JobState.FAILED}) for one in study_report().jobs]
    shown.put(f"/v1{STUDY}", study_report(jobs=jobs, is_final=True))
    assert "/cancel" not in page.get(STUDY).text


def test_the_piece_that_is_asked_for_again_is_the_report_alone(
    shown: FakeApi, page: TestClient
) -> None:
    text = page.get(f"{STUDY}/report", headers={"hx-request": "true"}).text
    assert text.startswith('<div id="report"')
    assert "<html" not in text


def test_studies_are_found_from_the_list_of_jobs_and_from_a_job(
    shown: FakeApi, page: TestClient
) -> None:
    member = job(study="study_01aaaaaaaaaaaaaaaaaaaaaaaa")
    shown.put("/v1/jobs", [member])
    shown.show(member)
    assert 'href="/studies"' in page.get("/jobs").text
    assert f'href="{STUDY}"' in page.get(f"/jobs/{member.id}").text
    listed = page.get("/studies").text
    assert f'href="{STUDY}"' in listed
    assert "2 ranks: running" in listed
    shown.put("/v1/studies", [])
    assert "No studies yet" in page.get("/studies").text
