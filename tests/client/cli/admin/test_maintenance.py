"""Maintenance from the command line: planned, kept, listed, ended."""

import json
from typing import Any

import pytest

from tests.client import documents as d
from tests.client.fake_server import Answer, FakeServer, as_json, listed
from tests.client.scripted import Run

PLAN: dict[str, Any] = {
    **d.MAINTENANCE,
    "id": None,
    "created_at": None,
    "occurrences": [{**d.OCCURRENCE, "held": False}],
}
FREE = {**PLAN, "displaced": []}
ADD = ("admin", "maintenance", "add", "2026-11-21T14:00+00:00", "2", "--node", "this-machine",
       "--why", "New disks.")  # fmt: skip


def sent(server: FakeServer, route: str) -> dict[str, Any]:
    return dict(json.loads(server.of(route)[-1].body))


def test_hours_without_leases_are_kept_at_once(server: FakeServer, run: Run) -> None:
    server.answer("POST /v1/maintenance/plan", as_json(FREE))
    server.answer("POST /v1/maintenance", as_json({**d.MAINTENANCE, "displaced": []}, 201))
    shown = run(*ADD, "--repeat", "FREQ=WEEKLY;COUNT=2")
    assert shown.exit_code == 0, shown.output
    assert f"cancel {d.MAINTENANCE['id']}" in shown.stdout
    body = sent(server, "POST /v1/maintenance")
    assert (body["nodes"], body["hours"], body["rule"]) == (
        ["this-machine"],
        2,
        "FREQ=WEEKLY;COUNT=2",
    )


def test_over_leases_the_plan_is_shown_and_has_to_be_named(server: FakeServer, run: Run) -> None:
    server.answer("POST /v1/maintenance/plan", as_json(PLAN))
    server.answer("POST /v1/maintenance", as_json(d.MAINTENANCE, 201))
    refused = run(*ADD)
    assert refused.exit_code == 5
    assert "moves to other" in refused.stdout
    assert f"--plan {PLAN['plan']}" in refused.stderr
    assert run(*ADD, "--dry-run").exit_code == 0
    assert not server.of("POST /v1/maintenance")
    done = run(*ADD, "--plan", PLAN["plan"], "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["id"] == d.MAINTENANCE["id"]
    assert sent(server, "POST /v1/maintenance")["plan"] == PLAN["plan"]


def test_hours_that_could_not_be_kept_are_told_by_the_exit_code(
    server: FakeServer, run: Run
) -> None:
    left = {**d.MAINTENANCE, "occurrences": PLAN["occurrences"]}
    server.answer("POST /v1/maintenance/plan", as_json(PLAN))
    server.answer("POST /v1/maintenance", as_json(left, 201))
    shown = run(*ADD, "--plan", PLAN["plan"])
    assert shown.exit_code == 5
    assert "1 of 1 are not reserved" in shown.stderr


@pytest.mark.parametrize(
    ("words", "start"),
    [
        (["2026-12-06 02:00", "3", "--zone", "Europe/Berlin"], "2026-12-06T02:00:00"),
        (["2026-12-06T02:00+01:00", "3", "--zone", "UTC"], "2026-12-06T02:00:00+01:00"),
    ],
)
def test_a_clock_time_is_meant_in_the_zone_that_is_named(
    server: FakeServer, run: Run, words: list[str], start: str
) -> None:
    server.answer("POST /v1/maintenance/plan", as_json(FREE))
    shown = run("admin", "maintenance", "add", *words, "--node", "n", "--why", "why", "--dry-run")
    assert shown.exit_code == 0, shown.output
    assert sent(server, "POST /v1/maintenance/plan")["start"] == start


def test_what_is_no_time_is_refused_before_anything_is_asked(server: FakeServer, run: Run) -> None:
    shown = run("admin", "maintenance", "add", "soon", "3", "--node", "n", "--why", "why")
    assert shown.exit_code == 2
    assert "'soon' is not a valid time" in shown.output


def test_maintenance_is_listed_and_ended(server: FakeServer, run: Run) -> None:
    ended = {**d.MAINTENANCE, "rule": None, "occurrences": [], "cancelled_at": d.NOW}
    server.answer("GET /v1/maintenance", listed([d.MAINTENANCE, ended]))
    shown = run("admin", "maintenance", "list")
    assert shown.exit_code == 0, shown.output
    for part in ("FREQ=WEEKLY;COUNT=2 (UTC)", "this-machine", "reserved", "ended", "New disks."):
        assert part in shown.stdout, part
    assert len(json.loads(run("admin", "maintenance", "list", "--json").stdout)) == 2
    route = f"DELETE /v1/maintenance/{d.MAINTENANCE['id']}"
    server.answer(route, Answer(204, b""))
    assert run("admin", "maintenance", "cancel", d.MAINTENANCE["id"]).exit_code == 0
    assert server.of(route)
