"""`trainyard scale`: what is sent, what people read, what scripts can tell from its exit code."""

import json
from typing import Any

import pytest

from tests.client import documents as d
from tests.client.fake_server import FakeServer, as_json, refused
from tests.client.scripted import Run, everything

STUDY = f"/v1/studies/{d.STUDY['id']}"


def with_second(**changes: Any) -> dict[str, Any]:
    """The report, its second job in another state."""
    jobs = [d.STUDY["jobs"][0], {**d.STUDY["jobs"][1], **changes}]
    return {**d.STUDY_REPORT, "jobs": jobs}


def test_it_sends_the_file_and_the_sizes_and_shows_what_was_found(
    server: FakeServer, run: Run, job_file: str
) -> None:
    everything(server)
    shown = run("scale", job_file, "--ranks", "1,2", "--weak")
    assert shown.exit_code == 0, shown.output
    asked = server.of("POST /v1/studies")[0]
    assert (asked.body, asked.query) == (
        b"name: gpt-ddp\n",
        {"ranks": ["1,2"], "scaling": ["weak"]},
    )
    lines = shown.stdout.splitlines()
    assert f"Submitted 2 jobs as {d.STUDY['id']}" in lines
    assert "2 ranks: succeeded, job_01k9size2. Trained to the end." in lines
    assert d.STUDY_REPORT["summary"] in lines
    (row,) = [line for line in lines if line.startswith("2 ranks  ") and "80 %" in line]
    for part in ("0.08 s", "12,800", "1.60", "2.00", "25 %", "21 %", "1.7e-07", "same curve"):
        assert part in row
    assert "2 ranks: Communication costs some time, but computing is the bottleneck." in lines
    assert "bubble" not in shown.stdout


def test_bars_are_as_long_as_the_speed_ups_and_light_up_to_the_ideal(
    server: FakeServer, run: Run, job_file: str
) -> None:
    everything(server)
    shown = run("scale", job_file, "--ranks", "1,2").stdout
    bars = [line for line in shown.splitlines() if "█" in line]
    assert [bar.count("█") for bar in bars] == [20, 32]  # 1.0 and 1.6 of 2.0 on 40 columns
    assert [bar.count("░") for bar in bars] == [0, 8]


@pytest.mark.parametrize(("state", "code"), [("succeeded", 0), ("failed", 1), ("cancelled", 1)])
def test_the_exit_code_says_whether_all_succeeded(
    server: FakeServer, run: Run, job_file: str, state: str, code: int
) -> None:
    everything(server)
    server.answer(f"GET {STUDY}", as_json(with_second(state=state)))
    assert run("scale", job_file, "--ranks", "1,2").exit_code == code
    machine = run("studies", "follow", d.STUDY["id"], "--json")
    assert machine.exit_code == code
    assert json.loads(machine.stdout) == with_second(state=state)
    assert run("studies", "show", d.STUDY["id"]).exit_code == 0


def test_it_waits_for_the_last_job(server: FakeServer, run: Run, monkeypatch: Any) -> None:
    monkeypatch.setattr("trainyard.cli.studies.watching.POLL_S", 0.01)
    running = {**with_second(state="running", step=3), "is_final": False}
    server.answer(
        f"GET {STUDY}", as_json(running), refused(503, "away", "Away."), as_json(d.STUDY_REPORT)
    )
    shown = run("studies", "follow", d.STUDY["id"])
    assert shown.exit_code == 0, shown.output
    told = [line for line in shown.stdout.splitlines() if line.startswith("2 ranks: ")]
    assert [line.split(",")[0] for line in told[:2]] == ["2 ranks: running", "2 ranks: succeeded"]


def test_schedules_show_their_bubbles(server: FakeServer, run: Run, job_file: str) -> None:
    everything(server)
    points = [{**point, "bubble": 0.5} for point in d.STUDY_REPORT["points"]]
    report = {**d.STUDY_REPORT, "kind": "schedules", "points": points}
    server.answer(f"GET {STUDY}", as_json(report))
    shown = run("scale", job_file, "--schedules", "naive, 1F1B")
    assert server.of("POST /v1/studies")[0].query == {"schedules": ["naive,1F1B"]}
    for part in ("bubble", "50 %", "expected", "the prediction from the bubbles"):
        assert part in shown.stdout


def test_wrong_usage_and_a_refused_size_exit_2(server: FakeServer, run: Run, job_file: str) -> None:
    for options in ([], ["--ranks", "1,2", "--schedules", "naive,1F1B"], ["--ranks", "one"]):
        assert run("scale", job_file, *options).exit_code == 2
    detail = "Nothing was submitted, because 4 ranks do not fit."
    server.answer("POST /v1/studies", refused(422, "cannot_run", detail))
    shown = run("scale", job_file, "--ranks", "1,4")
    assert shown.exit_code == 2
    assert detail in shown.stderr
