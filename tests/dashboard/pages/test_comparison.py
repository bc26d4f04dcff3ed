"""Jobs laid over one another: what the page says of them, and what it refuses."""

from typing import Any

import pytest
from starlette.testclient import TestClient

from api.studies.schemas import ComparisonView
from core.states import JobState
from dashboard.pages.comparison import differing_first, labels_of
from tests.dashboard.fake_api import FakeApi, attempt, certificate, job, refusal, spec

A, B = "job_01aaaaaaaaaaaaaaaaaaaaaaaa", "job_02bbbbbbbbbbbbbbbbbbbbbbbb"
ADDRESS = f"/jobs/compare?job={A}&job={B}"


@pytest.fixture
def two(api: FakeApi) -> FakeApi:
    """Two jobs that differ in their strategy."""
    api.show(job(id=A, name="gpt-ddp"), attempts=[attempt()])
    fsdp = spec(parallelism={"strategy": "fsdp"}, name="gpt-fsdp")
    api.show(job(id=B, name="gpt-fsdp", spec=fsdp), attempts=[attempt()])
    return api


def against(verdict: Any = "pass", loss: float = 1.7e-7) -> ComparisonView:
    found = dict(certificate(verdict, loss=loss))
    kept = {name: found[name] for name in ComparisonView.model_fields if name in found}
    return ComparisonView(job=B, other=A, **kept)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (against(), "All 2 jobs have the same curve: the largest relative difference from ddp is"),
        (
            against("fail", loss=0.02),
            "Different curves: the loss of fsdp differs from that of ddp by 0.02 at step 12",
        ),
        (against("exempt"), "One of these layouts promises no particular curve"),
        (refusal(422, "They differ in seed."), "cannot be compared: They differ"),
    ],
)
def test_the_first_sentence_says_whether_they_are_one_curve(
    two: FakeApi, page: TestClient, answer: Any, words: str
) -> None:
    two.put(f"/v1/jobs/{B}/comparison", answer)
    text = page.get(ADDRESS).text
    assert words in text
    assert two.sent("GET", f"/v1/jobs/{B}/comparison").query == {"with": [A]}


def test_what_differs_is_marked_and_comes_first(two: FakeApi, page: TestClient) -> None:
    two.put(f"/v1/jobs/{B}/comparison", against())
    text = page.get(ADDRESS).text
    rows = text[text.index("data-specs") :].replace("<wbr>", "")
    assert rows.index("parallelism.strategy") < rows.index("training.steps")
    assert 'class="num differs"><bdi>fsdp' in rows
    fields = differing_first([{"a": {"b": 1, "c": None}, "d": [1, 2]}, {"a": {"b": 1}, "e": True}])
    assert [(field.name, field.values) for field in fields] == [
        ("d", ["1, 2", "\u2013"]),
        ("e", ["\u2013", "yes"]),
        ("a.b", ["1", "1"]),
    ]


@pytest.mark.parametrize(
    ("names", "labels"),
    [
        (["gpt-ddp", "gpt-fsdp"], ["ddp", "fsdp"]),
        (["gpt-fsdp", "gpt-full"], ["fsdp", "full"]),
        (["gpt", "gpt-2"], ["gpt", "gpt-2"]),
        (["same", "same"], ["same aaaa", "same bbbb"]),
        (["one", "two"], ["one", "two"]),
    ],
)
def test_labels_are_what_sets_the_names_apart(names: list[str], labels: list[str]) -> None:
    assert labels_of(names, [A, B]) == labels


@pytest.mark.parametrize("count", [0, 1, 7])
def test_two_to_six_jobs_can_be_compared(page: TestClient, count: int) -> None:
    asked = "&".join(f"job=job_{index}" for index in range(count))
    text = page.get(f"/jobs/compare?{asked}").text
    assert ("Select more jobs" if count < 2 else "Select fewer jobs") in text


def test_the_selection_of_the_list_becomes_the_address(page: TestClient) -> None:
    answer = page.post("/jobs/compare", data={"job": [A, B]})
    assert (answer.status_code, answer.headers["location"]) == (303, ADDRESS)


def test_a_job_that_has_not_run_wins_no_row(two: FakeApi, page: TestClient) -> None:
    two.put(f"/v1/jobs/{B}/comparison", against())
    two.show(job(id=B, name="gpt-fsdp", state=JobState.QUEUED, started_at=None), attempts=[])
    text = page.get(ADDRESS).text
    row = text[text.index("whole run so far") :].partition("</tr>")[0]
    assert row.count("<td") == 2
    assert row.count("data-v") == 1
    assert '<td class="num">\u2013</td>' in row
