"""A report as a page that stands alone, and the list of them."""

import re
from base64 import b64encode
from datetime import timedelta
from hashlib import sha256

import pytest
from starlette.testclient import TestClient

from api.jobs.schemas import JobInputView, PlaceView
from api.records.schemas import Series
from api.studies.schemas_reports import ReportContent, ReportJob, ReportLine, ReportView
from core.spec.inputs import InputKind
from core.wire.messages import HostUse
from dashboard.report_curves import HEIGHT, WIDTH, drawing
from tests.dashboard.fake_api import NOW, FakeApi, attempt, certificate, event, job, result
from trainyard import views
from trainyard.transport.decoding import decode

SHA = "ab" * 32
HOSTILE = "<script>alert(1)</script>\u202e"


def series(key: str, values: list[float | None]) -> Series:
    return Series(
        key=key, rank=0, steps=list(range(1, len(values) + 1)), values=values, points=len(values)
    )


@pytest.fixture
def report() -> ReportView:
    """Of one job that has ended, hostile wherever a person may have written."""
    told = ReportJob(
        job=job(name="gpt-ddp", reason=HOSTILE, result=result(), certificate=certificate("pass")),
        attempts=[attempt(reason=HOSTILE)],
        events=[event(message=HOSTILE)],
        checkpoints=[],
        artifacts=[],
        curves=[series("loss", [3.0, None, 2.0]), series("eval_loss", [2.9, 2.5, 2.1])],
        gpu_hours=0.5,
    )
    content = ReportContent(
        title="Homework",
        platform="http://127.0.0.1:8471",
        made_by="ada",
        made_at=NOW,
        lease=None,
        jobs=[told],
    )
    return ReportView(sha256=SHA, content=content)


def test_a_report_needs_nothing_but_itself(
    api: FakeApi, page: TestClient, report: ReportView
) -> None:
    api.put(f"/v1/reports/{SHA}", report)
    answer = page.get(f"/reports/{SHA}")
    text = answer.text
    for fetched in ("<script", "<link", "<img", "@import", "url("):
        assert fetched not in text, fetched
    [style] = re.findall(r"<style>(.*?)</style>", text, re.S)
    allowed = b64encode(sha256(style.encode()).digest()).decode()
    assert f"style-src 'sha256-{allowed}'" in answer.headers["content-security-policy"]
    assert " style=" not in text
    assert SHA in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;[U+202E]" in text
    assert "Certificate" in text
    assert "0.50 rank-hours" in text


def test_a_report_names_the_bytes_of_inputs(
    api: FakeApi, page: TestClient, report: ReportView
) -> None:
    rows = JobInputView(
        kind=InputKind.MODEL,
        name="lab/tiny",
        source="tiny",
        source_id="model_1",
        path="/job/inputs/lab/tiny",
        variable="TRAINYARD_INPUT_LAB_TINY",
        sha256="cd" * 32,
        size=3 << 20,
        files=2,
    )
    [one] = report.content.jobs
    told = one.model_copy(update={"job": one.job.model_copy(update={"inputs": [rows]})})
    content = report.content.model_copy(update={"jobs": [told]})
    api.put(f"/v1/reports/{SHA}", report.model_copy(update={"content": content}))
    text = page.get(f"/reports/{SHA}").text
    assert "lab/tiny" in text
    assert f">{'cd' * 32}<" in text


def test_a_report_marks_a_run_that_had_a_network(
    api: FakeApi, page: TestClient, report: ReportView
) -> None:
    assert "This run had a network" not in page.get(f"/reports/{SHA}").text
    [one] = report.content.jobs
    [tried, *_] = one.attempts
    reached = HostUse(host="pypi.org:443", connections=3, received_bytes=5 << 20)
    place = PlaceView(node="box", lease="l", slots=[0], ranks=[0], reason="", hosts=[reached])
    told = one.model_copy(update={"attempts": [tried.model_copy(update={"nodes": [place]})]})
    content = report.content.model_copy(update={"jobs": [told]})
    api.put(f"/v1/reports/{SHA}", report.model_copy(update={"content": content}))
    text = page.get(f"/reports/{SHA}").text
    assert "This run had a network" in text
    assert "pypi.org:443" in text
    assert '5.0<span class="unit">MiB</span>' in text


def test_its_curves_stay_in_their_box_and_keep_their_gaps() -> None:
    chart = drawing(
        "Loss",
        "nats",
        decode(views.Series, series("loss", [3.0, 2.9, None, 2.5, 52_000.0]).model_dump()),
    )
    assert chart.path.count("M") == 2
    numbers = [float(number) for number in re.findall(r"[\d.]+", chart.path)]
    assert all(0 <= x <= WIDTH for x in numbers[::2])
    assert all(0 <= y <= HEIGHT for y in numbers[1::2])
    assert [tick.text for tick in chart.y_ticks] == ["0", "20,000", "40,000"]
    flat = drawing("Flat", "", decode(views.Series, series("x", [1.0, 1.0]).model_dump()))
    assert flat.path.count("L") == 1


def test_the_form_writes_one_about_what_was_selected(
    api: FakeApi, page: TestClient, report: ReportView
) -> None:
    api.put("/v1/reports", report, method="POST")
    answer = page.post("/reports", data={"job": ["job_1", "job_2"]})
    assert (answer.status_code, answer.headers["location"]) == (303, f"/reports/{SHA}")
    assert api.sent("POST", "/v1/reports").body == b'{"jobs":["job_1","job_2"]}'
    page.post("/reports", data={"lease": "lease_1"})
    assert api.sent("POST", "/v1/reports").body == b'{"lease":"lease_1"}'


def test_the_bundle_is_the_apis_own_answer_byte_for_byte(
    api: FakeApi, page: TestClient, report: ReportView
) -> None:
    api.put(f"/v1/reports/{SHA}", report)
    answer = page.get(f"/reports/{SHA}/bundle")
    assert answer.content == page.get(f"/v1/reports/{SHA}").content
    assert "trainyard-report-abababababab.json" in answer.headers["content-disposition"]


def test_the_list_names_each_by_its_hash(api: FakeApi, page: TestClient) -> None:
    api.put("/v1/reports", [])
    assert "No report yet" in page.get("/reports").text
    line = ReportLine(sha256=SHA, title=HOSTILE, user="ada", made_at=NOW + timedelta(hours=1))
    api.put("/v1/reports", [line])
    text = page.get("/reports").text
    assert f'href="/reports/{SHA}"' in text
    assert "<script>alert" not in text


def test_a_report_is_deleted_from_the_list(api: FakeApi, page: TestClient) -> None:
    line = ReportLine(sha256=SHA, title="Homework", user="ada", made_at=NOW)
    api.put("/v1/reports", [line])
    assert f'action="/reports/{SHA}/delete"' in page.get("/reports").text
    api.put(f"/v1/reports/{SHA}", None, method="DELETE")
    answer = page.post(f"/reports/{SHA}/delete", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/reports")
