"""`trainyard admin policy` and `windows`: what is sent, and what staff read before they agree."""

import json
from pathlib import Path

from tests.client import documents as d
from tests.client.fake_server import Answer, FakeServer, as_json, listed
from tests.client.scripted import Run

WINDOW = f"/v1/windows/{d.WINDOW['id']}"


def test_apply_sends_the_file_as_it_is_and_says_what_it_would_do(
    server: FakeServer, run: Run, tmp_path: Path
) -> None:
    server.answer("POST /v1/policies", as_json(d.POLICY_PLAN))
    file = tmp_path / "course.yaml"
    file.write_text("# ours\npolicy: {id: course-unit-4, version: 2}\n")
    shown = run("admin", "policy", "apply", str(file), "--dry-run")
    assert shown.exit_code == 0, shown.output
    [asked] = server.of("POST /v1/policies")
    assert asked.body == file.read_bytes()
    assert asked.query == {"dry_run": ["true"]}
    assert asked.headers["content-type"] == "application/yaml"
    for words in (
        "course-unit-4, version 2. It replaces 1.",
        "grid.horizon_days: changed from 21 to 14.",
        "pools.long: there is no node 307G3Q3 here.",
        "1 future leases would not pass; they stay.",
        "outside_window",
        "Nothing was changed (dry run).",
    ):
        assert words in shown.stdout
    as_data = run("admin", "policy", "apply", str(file), "--dry-run", "--json")
    assert json.loads(as_data.stdout) == d.POLICY_PLAN


def test_list_show_and_versions(server: FakeServer, run: Run) -> None:
    server.answer("GET /v1/policies", listed([d.POLICY]))
    server.answer("GET /v1/policies/course-unit-4", as_json(d.POLICY_TEXT))
    server.answer("GET /v1/policies/course-unit-4/versions", listed([d.POLICY]))
    assert "America/New_York" in run("admin", "policy", "list").stdout
    shown = run("admin", "policy", "show", "course-unit-4", "--version", "2")
    assert shown.stdout == d.POLICY_TEXT["document"]
    assert server.of("GET /v1/policies/course-unit-4")[0].query == {"version": ["2"]}
    assert "active" in run("admin", "policy", "versions", "course-unit-4").stdout


def test_withdraw_asks_first(server: FakeServer, run: Run) -> None:
    server.answer("DELETE /v1/policies/course-unit-4", Answer(204))
    refused = run("admin", "policy", "withdraw", "course-unit-4", input="n\n")
    assert refused.exit_code == 1
    assert server.of("DELETE /v1/policies/course-unit-4") == []
    assert run("admin", "policy", "withdraw", "course-unit-4", "--yes").exit_code == 0
    assert len(server.of("DELETE /v1/policies/course-unit-4")) == 1


def test_a_window_is_changed_with_the_hash_of_what_was_shown(server: FakeServer, run: Run) -> None:
    done = {**d.WINDOW_PLAN, "applied": True, "num_cancelled": 1}
    server.answer(f"PATCH {WINDOW}", as_json(d.WINDOW_PLAN), as_json(done))
    to = "2026-11-28T10:57:00+00:00"
    changed = run(
        "admin", "windows", "change", d.WINDOW["id"], "--to", to, "--cancel-orphans", input="y\n"
    )
    assert changed.exit_code == 0, changed.output
    first, second = (json.loads(asked.body) for asked in server.of(f"PATCH {WINDOW}"))
    assert (first["plan"], second["plan"]) == (None, d.WINDOW_PLAN["hash"])
    assert (second["ends_at"], second["orphans"]) == (to, "cancel")
    assert "lease_01k9abcdefghjkmnpqrstvwxyz" in changed.stdout
    assert "Done; 1 leases cancelled." in changed.stdout


def test_no_means_that_nothing_is_sent_again(server: FakeServer, run: Run) -> None:
    server.answer(f"DELETE {WINDOW}", as_json({**d.WINDOW_PLAN, "window": None}))
    refused = run("admin", "windows", "delete", d.WINDOW["id"], input="n\n")
    assert refused.exit_code == 1
    assert len(server.of(f"DELETE {WINDOW}")) == 1


def test_windows_are_listed_and_added(server: FakeServer, run: Run) -> None:
    server.answer("GET /v1/windows", listed([d.WINDOW]))
    server.answer("POST /v1/windows", as_json(d.WINDOW, 201))
    assert "at once" in run("admin", "windows", "list").stdout
    added = run(
        *("admin", "windows", "add", "course-unit-4", "--pool", "long", "--pool", "single"),
        *("--from", "2026-11-21T00:00+00:00", "--to", "2026-11-28T00:00+00:00"),
    )
    assert added.exit_code == 0, added.output
    body = json.loads(server.of("POST /v1/windows")[0].body)
    assert body["pools"] == ["long", "single"]
    assert body["opens_at"] is None
    bad = run(
        *("admin", "windows", "add", "course-unit-4", "--pool", "long"),
        *("--from", "tomorrow", "--to", "2026-11-28T00:00+00:00"),
    )
    assert bad.exit_code == 2


def test_moved_leases_are_listed_and_told_of(server: FakeServer, run: Run) -> None:
    server.answer("GET /v1/admin/moved-leases", listed([d.AFFECTED_LEASE]))
    server.answer("POST /v1/admin/moved-leases", listed([d.AFFECTED_LEASE]))
    assert "outside_window" in run("admin", "policy", "moved").stdout
    told = run("admin", "policy", "moved", "--tell")
    assert "Notified the owners of 1 lease." in told.stdout
    assert len(server.of("POST /v1/admin/moved-leases")) == 1
