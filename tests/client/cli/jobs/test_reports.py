"""`trainyard report` and `trainyard reports`: written, saved, checked."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.client import documents as d
from tests.client.fake_server import Answer, FakeServer, as_json, listed
from tests.client.scripted import Run

SHA256 = d.REPORT["sha256"]


@pytest.fixture(autouse=True)
def answers(server: FakeServer) -> None:
    """A server that writes one report."""
    server.answer("POST /v1/reports", as_json(d.REPORT, 201))
    server.answer(f"GET /v1/reports/{SHA256}", as_json(d.REPORT))
    page = Answer(200, b"<!doctype html><h1>gpt-ddp</h1>", "text/html")
    server.answer(f"GET /reports/{SHA256}", page)


def test_a_page_is_saved_to_a_new_file(server: FakeServer, run: Run, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    shown = run("report", d.JOB_ID, "-o", str(file))
    assert shown.exit_code == 0, shown.output
    assert file.read_text() == "<!doctype html><h1>gpt-ddp</h1>"
    assert f"/reports/{SHA256}" in shown.stdout
    [asked] = server.of("POST /v1/reports")
    assert json.loads(asked.body) == {"title": "", "jobs": [d.JOB_ID]}
    again = run("report", d.JOB_ID, "-o", str(file))
    assert again.exit_code == 2
    assert "exists already" in again.output
    assert len(server.of("POST /v1/reports")) == 1, "nothing was written on the server for it"


def test_the_json_of_a_lease_is_saved_and_checked(
    server: FakeServer, run: Run, tmp_path: Path
) -> None:
    file = tmp_path / "report.json"
    shown = run("report", "--lease", d.LEASE["id"], "--output", str(file), "--json")
    assert json.loads(shown.stdout) == d.REPORT
    [asked] = server.of("POST /v1/reports")
    assert json.loads(asked.body) == {"title": "", "lease": d.LEASE["id"]}
    server.answer("POST /v1/reports/check", as_json(d.REPORT_VERDICT))
    checked = run("reports", "check", str(file))
    assert (checked.exit_code, checked.stdout.strip()) == (0, d.REPORT_VERDICT["message"])
    [sent] = server.of("POST /v1/reports/check")
    assert json.loads(sent.body) == d.REPORT


def test_one_is_deleted_by_its_hash(server: FakeServer, run: Run) -> None:
    server.answer(f"DELETE /v1/reports/{SHA256}", Answer(204, b""))
    shown = run("reports", "delete", SHA256)
    assert (shown.exit_code, shown.stdout.strip()) == (0, f"Deleted {SHA256}.")
    assert len(server.of(f"DELETE /v1/reports/{SHA256}")) == 1


@pytest.mark.parametrize("wrong", [{"intact": False}, {"known": False}])
def test_what_is_not_genuine_exits_with_1(
    server: FakeServer, run: Run, tmp_path: Path, wrong: dict[str, Any]
) -> None:
    file = tmp_path / "report.json"
    file.write_text(json.dumps(d.REPORT))
    server.answer("POST /v1/reports/check", as_json({**d.REPORT_VERDICT, **wrong}))
    assert run("reports", "check", str(file)).exit_code == 1


@pytest.mark.parametrize(
    ("content", "words"),
    [("<html>", "is not JSON"), ("[]", "is not a report"), ('{"sha256": ""}', "is not a report")],
)
def test_another_file_is_refused_before_it_is_sent(
    server: FakeServer, run: Run, tmp_path: Path, content: str, words: str
) -> None:
    file = tmp_path / "other"
    file.write_text(content)
    shown = run("reports", "check", str(file))
    assert shown.exit_code == 2
    assert words in shown.output
    assert server.of("POST /v1/reports/check") == []


def test_reports_are_listed(server: FakeServer, run: Run) -> None:
    server.answer("GET /v1/reports", listed([d.REPORT_LINE]))
    shown = run("reports", "list")
    assert d.REPORT_LINE["sha256"] in shown.stdout
    assert json.loads(run("reports", "list", "--json").stdout) == [d.REPORT_LINE]


@pytest.mark.parametrize(
    "asked", [(), ("job_a", "--lease", "lease_a"), ("job_a", "-o", "report.pdf")]
)
def test_what_makes_no_report_is_said(server: FakeServer, run: Run, asked: tuple[str, ...]) -> None:
    assert run("report", *asked).exit_code == 2
    assert server.of("POST /v1/reports") == []
