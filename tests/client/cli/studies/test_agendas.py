"""`trainyard agenda`: what is sent, what people read, what scripts can tell from its exit code."""

from typing import Any

import pytest

from tests.client import documents as d
from tests.client.fake_server import FakeServer, as_json, refused
from tests.client.scripted import Run, everything

AGENDA = f"/v1/agendas/{d.AGENDA['id']}"
LEASE = d.LEASE["id"]
LATE = {**d.AGENDA["jobs"][1], "late_s": 720, "fits": False, "end": "2026-11-21T12:10:00+00:00"}
OVER = {"fits": False, "spare_s": -900, "first_cut": 2, "jobs": [d.AGENDA["jobs"][0], LATE]}


def test_plan_asks_for_a_lease_or_for_a_block(server: FakeServer, run: Run, job_file: str) -> None:
    everything(server)
    for asked, sent in (
        (["--lease", LEASE], {"lease": [LEASE]}),
        (["--hours", "3", "--class", "a100x4"], {"hours": ["3"], "node_class": ["a100x4"]}),
        (
            ["--hours", "3", "--class", "a100x4", "--nodes", "2"],
            {"hours": ["3"], "node_class": ["a100x4"], "nodes": ["2"]},
        ),
    ):
        shown = run("agenda", "plan", job_file, *asked)
        assert shown.exit_code == 0, shown.output
        request = server.of("POST /v1/agendas/plan")[-1]
        assert (request.body, request.query) == (b"name: gpt-ddp\n", sent)
    assert shown.stdout.startswith("It fits with 17min to spare")
    for wrong in (
        [],
        ["--hours", "3"],
        ["--lease", LEASE, "--nodes", "2"],
        ["--lease", LEASE, "--hours", "3", "--class", "a"],
    ):
        answer = run("agenda", "plan", job_file, *wrong)
        assert answer.exit_code == 2, wrong
        assert "either --lease ID" in answer.output


def test_bars_lie_where_the_jobs_do_and_change_after_the_end(
    server: FakeServer, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    everything(server)
    server.answer(f"GET {AGENDA}", as_json({**d.AGENDA, **OVER}))
    shown = run("agenda", "show", d.AGENDA["id"])
    assert shown.exit_code == 3
    one, two = (line for line in shown.stdout.splitlines() if "20 min 00 s" in line)
    bars = [line.split()[-1] for line in (one, two)]
    assert all(len(bar) == 30 for bar in bars)
    # 73 minutes on 30 columns: 11:18 is at 9, the lease stops jobs at 24
    assert bars[0] == "\u2588" * 8 + "\u00b7" * 22
    assert bars[1] == "\u00b7" * 9 + "\u2588" * 15 + "\u2592" * 6
    assert "12 min, too late" in two


@pytest.mark.parametrize("command", ["plan", "submit"])
def test_what_does_not_fit_exits_3(
    server: FakeServer, run: Run, job_file: str, command: str
) -> None:
    server.answer("POST /v1/agendas/plan", as_json({**d.AGENDA_PLAN, **OVER}))
    server.answer("POST /v1/agendas", refused(409, "over_time", "Nothing was submitted. Over."))
    assert run("agenda", command, job_file, "--lease", LEASE).exit_code == 3
    assert run("agenda", command, job_file, "--lease", LEASE, "--json").exit_code == 3


def test_other_conflicts_and_bad_input_keep_their_codes(
    server: FakeServer, run: Run, job_file: str
) -> None:
    server.answer(
        "POST /v1/agendas",
        refused(409, "lease_has_agenda", "It has one."),
        refused(422, "cannot_run", "job 2 (two): training.steps: too few."),
    )
    assert run("agenda", "submit", job_file, "--lease", LEASE).exit_code == 5
    wrong = run("agenda", "submit", job_file, "--lease", LEASE)
    assert wrong.exit_code == 2
    assert "job 2 (two)" in wrong.output


def test_anyway_is_passed_on(server: FakeServer, run: Run, job_file: str) -> None:
    everything(server)
    shown = run("agenda", "submit", job_file, "--lease", LEASE, "--anyway")
    assert shown.exit_code == 0, shown.output
    assert server.of("POST /v1/agendas")[0].query == {"lease": [LEASE], "anyway": ["true"]}
    assert f"Submitted 2 jobs as {d.AGENDA['id']}" in shown.stdout


def test_follow_tells_what_changes_and_what_is_late(
    server: FakeServer, run: Run, monkeypatch: Any
) -> None:
    monkeypatch.setattr("trainyard.cli.studies.watching.POLL_S", 0.01)
    server.answer(
        f"GET {AGENDA}",
        as_json(d.AGENDA),
        refused(503, "away", "Away."),
        as_json({**d.AGENDA, **OVER}),
        as_json(d.ENDED_AGENDA),
    )
    shown = run("agenda", "follow", d.AGENDA["id"])
    assert shown.exit_code == 0, shown.output
    told = [line for line in shown.stdout.splitlines() if line.startswith("2 two: ")]
    assert [line.split(".")[0] for line in told] == [
        "2 two: waiting",
        "2 two: waiting, late by 12 min",
        "2 two: done",
    ]
    failed = [{**job, "standing": "failed"} for job in d.ENDED_AGENDA["jobs"]]
    server.answer(f"GET {AGENDA}", as_json({**d.ENDED_AGENDA, "jobs": failed}))
    assert run("agenda", "follow", d.AGENDA["id"], "--json").exit_code == 1
