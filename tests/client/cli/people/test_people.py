"""People, clean-ups, use and notices from the command line."""

import json
import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.client import documents as d
from tests.client.fake_server import Answer, FakeServer, as_json, listed, refused
from tests.client.scripted import Run
from trainyard.cli.app import app

CLEANUPS = "/v1/admin/cleanups"
CLEANUP = f"{CLEANUPS}/{d.CLEANUP['id']}"


def done(result: str) -> dict[str, object]:
    """The clean-up, applied, with one row that came out as `result`."""
    [row] = d.CLEANUP["rows"]
    return {**d.CLEANUP, "state": "applied", "applied_at": d.NOW,
            "undo_until": d.NOW, "rows": [{**row, "result": result}]}  # fmt: skip


def test_a_clean_up_is_previewed_with_the_command_that_applies_it(
    server: FakeServer, run: Run
) -> None:
    server.answer(f"POST {CLEANUPS}", as_json(d.CLEANUP, 201))
    shown = run("admin", "cleanup", "preview", "over_quota", "idle", "--reason", "Over.",
                "--lab", "vision", "--include-active")  # fmt: skip
    assert shown.exit_code == 0, shown.output
    for part in ("quota_main", "planned", "Two blocks are booked already.", "0 h refunded",
                 f"cleanup apply {d.CLEANUP['id']} --hash {d.CLEANUP['hash']}"):  # fmt: skip
        assert part in shown.stdout, part
    sent = json.loads(server.of(f"POST {CLEANUPS}")[0].body)
    assert sent["selector"]["wrong"] == ["over_quota", "idle"]
    assert (sent["selector"]["lab"], sent["selector"]["include_active"]) == ("vision", True)


@pytest.mark.parametrize(("result", "code"), [("removed", 0), ("skipped", 5)])
def test_apply_tells_by_its_exit_code_whether_rows_had_changed(
    server: FakeServer, run: Run, result: str, code: int
) -> None:
    server.answer(f"POST {CLEANUP}/apply", as_json(done(result)))
    shown = run("admin", "cleanup", "apply", d.CLEANUP["id"], "--hash", "41c8" * 16, "--json")
    assert shown.exit_code == code
    assert json.loads(shown.stdout)["rows"][0]["result"] == result


def test_a_lease_that_is_left_out_is_no_surprise(server: FakeServer, run: Run) -> None:
    server.answer(f"POST {CLEANUP}/apply", as_json(done("skipped")))
    [row] = d.CLEANUP["rows"]
    shown = run("admin", "cleanup", "apply", d.CLEANUP["id"], "--hash", "41c8" * 16,
                "--leave", row["lease"])  # fmt: skip
    assert shown.exit_code == 0
    assert json.loads(server.of(f"POST {CLEANUP}/apply")[0].body)["leave"] == [row["lease"]]


def test_a_stale_hash_and_a_lost_hour_are_conflicts(server: FakeServer, run: Run) -> None:
    server.answer(f"POST {CLEANUP}/apply", refused(409, "stale_hash", "Look again."))
    stale = run("admin", "cleanup", "apply", d.CLEANUP["id"], "--hash", "0" * 64)
    assert (stale.exit_code, "Look again." in stale.stderr) == (5, True)
    server.answer(f"POST {CLEANUP}/undo", as_json(done("lost")))
    assert run("admin", "cleanup", "undo", d.CLEANUP["id"]).exit_code == 5
    server.answer(f"GET {CLEANUPS}", listed([d.CLEANUP]))
    assert "Unit 4 is over." in run("admin", "cleanup", "list").stdout


def test_leases_are_protected_and_ended_by_force(server: FakeServer, run: Run) -> None:
    path = f"/v1/admin/leases/{d.LEASE['id']}"
    server.answer(f"PUT {path}/tags", as_json(d.LEASE))
    server.answer(f"POST {path}/force-release", as_json(d.LEASE))
    tagged = run("admin", "tag-lease", d.LEASE["id"], "--tag", "thesis", "--protect")
    assert "thesis, protected" in tagged.stdout
    sent = json.loads(server.of(f"PUT {path}/tags")[0].body)
    assert sent == {"tags": ["thesis"], "protected": True}
    assert "admin resume" in run("admin", "force-release", d.LEASE["id"]).stdout


def test_a_course_is_imported_and_links_are_kept_private(
    server: FakeServer, run: Run, tmp_path: Path
) -> None:
    server.answer("POST /v1/users/import", as_json(d.IMPORT))
    course, links = tmp_path / "course.csv", tmp_path / "links.csv"
    course.write_text("name,lab\ncy,vision\n")
    shown = run("admin", "import", str(course), "--links", str(links))
    assert shown.exit_code == 0, shown.output
    assert "1 new, 0 changed, 0 as before. New labs: vision." in shown.stdout
    assert stat.S_IMODE(links.stat().st_mode) == 0o600
    assert links.read_text() == f"name,link\ncy,{d.IMPORT['rows'][0]['password_link']}\n"
    assert run("admin", "import", str(tmp_path / "absent.csv")).exit_code == 2


def test_labs_invitations_and_exceptions(server: FakeServer, run: Run) -> None:
    server.answer("GET /v1/labs", listed([d.LAB]))
    server.answer("POST /v1/labs", as_json(d.LAB, 201))
    server.answer("PATCH /v1/labs/vision", as_json(d.LAB))
    server.answer("POST /v1/invites", as_json(d.INVITE_MADE, 201))
    server.answer("GET /v1/invites", listed([d.INVITE]))
    server.answer("GET /v1/grants", listed([d.GRANT]))
    server.answer("POST /v1/grants", as_json(d.GRANT, 201))
    server.answer("POST /v1/users/ada/move", as_json(d.MOVE))
    assert "course-s25" in run("admin", "labs", "list").stdout
    assert run("admin", "labs", "add", "vision", "--weight", "2").exit_code == 0
    assert run("admin", "labs", "set", "vision", "--group", "").exit_code == 0
    assert json.loads(server.of("PATCH /v1/labs/vision")[0].body) == {"groups": []}
    invited = run("admin", "invite", "--lab", "vision", "--attribute", "cohort=even")
    assert invited.stdout.strip() == d.INVITE_MADE["url"]
    assert json.loads(server.of("POST /v1/invites")[0].body)["attributes"] == {"cohort": "even"}
    assert run("admin", "invite", "--attribute", "cohort").exit_code == 2
    assert "open" in run("admin", "invites", "list").stdout
    moved = run("admin", "labs", "move", "ada", "--from", "vision", "--to", "speech")
    assert "ada is in speech now; 0 leases follow." in moved.stdout
    assert "Was ill last week." in run("admin", "grants", "list").stdout
    granted = run("admin", "grants", "add", "bob", "quota_main", "--why", "Was ill last week.",
                  "--until", "2026-11-28T10:57:00+00:00")  # fmt: skip
    assert "1 more under quota_main" in granted.stdout


def test_use_comes_as_table_json_and_csv(server: FakeServer, run: Run) -> None:
    server.answer("GET /v1/usage", as_json(d.USAGE))
    server.answer("GET /v1/me/quotas", as_json(d.QUOTAS))
    shown = run("usage")
    assert shown.exit_code == 0, shown.output
    for part in ("2026-11-16", "8.0", "6.0", "4.0", "one 3-hour block"):
        assert part in shown.stdout, part
    assert json.loads(run("admin", "usage", "--by", "lab", "--json").stdout) == d.USAGE
    server.answer("GET /v1/usage", Answer(200, b"period,user\n", "text/csv"))
    assert run("admin", "usage", "--csv").stdout == "period,user\n"


def test_notices_are_shown_chosen_and_tested(server: FakeServer, run: Run) -> None:
    server.answer("GET /v1/me/notifications", listed([d.NOTICE]))
    server.answer("GET /v1/me/notifications/choices", as_json(d.CHOICES))
    server.answer("PUT /v1/me/notifications/choices", as_json(d.CHOICES))
    server.answer("POST /v1/me/notifications/test", as_json(d.NOTICE, 202))
    server.answer("PUT /v1/me/webhook", as_json(d.WEBHOOK))
    assert "450 busy" in run("notifications", "list").stdout
    assert "08:00, UTC" in run("notifications", "choices").stdout
    chosen = run("notifications", "choose", "digest", "--kind", "block_offered=mail")
    assert chosen.exit_code == 0, chosen.output
    sent = json.loads(server.of("PUT /v1/me/notifications/choices")[0].body)
    assert sent == {"every": "digest", "kinds": {"block_offered": "mail"}}
    assert (
        run("notifications", "webhook", "https://example.org/hook").stdout.strip().startswith("ty_")
    )
    assert run("notifications", "test", "mail").stdout.startswith("waiting.")


def test_an_invitation_and_a_password_link_sign_in(server: FakeServer) -> None:
    server.answer("POST /v1/invites/accept", as_json(d.NEW_TOKEN, 201))
    server.answer("POST /v1/new-password", as_json(d.NEW_TOKEN, 201))
    runner = CliRunner()
    typed = "cy\na sentence of mine\na sentence of mine\n"
    joined = runner.invoke(app, ["login", "--link", f"{server.url}/invite?secret=abc"], input=typed)
    assert joined.exit_code == 0, joined.output
    assert json.loads(server.of("POST /v1/invites/accept")[0].body) == {
        "secret": "abc",
        "name": "cy",
        "password": "a sentence of mine",
    }
    link = f"{server.url}/new-password?secret=def"
    typed = "a sentence of mine\na sentence of mine\n"
    assert runner.invoke(app, ["login", "--link", link], input=typed).exit_code == 0


def test_what_is_in_the_way_of_a_node_is_listed(server: FakeServer, run: Run) -> None:
    server.answer("GET /v1/admin/nodes/this-machine/in-the-way", as_json(d.IN_THE_WAY))
    server.answer("POST /v1/admin/nodes/this-machine/maintenance", as_json(d.NODE))
    shown = run("admin", "in-the-way", "this-machine")
    assert f"gpt-ddp of ada ({d.JOB_ID}) runs on this-machine." in shown.stdout
    assert d.LEASE["id"] in shown.stdout
    assert run("admin", "maintenance", "begin", "this-machine").exit_code == 0


def test_links_are_mailed_in_place_of_being_shown(
    server: FakeServer, run: Run, tmp_path: Path
) -> None:
    server.answer("POST /v1/invites", as_json(d.INVITE_MADE, 201))
    sent = as_json({"message": "It is on its way."}, 202)
    server.answer(f"POST /v1/invites/{d.INVITE_MADE['id']}/letter", sent)
    server.answer("POST /v1/users/ann/password-letter", sent)
    invited = run("admin", "invite", "--email", "cy@example.org", "--mail")
    assert (invited.exit_code, d.INVITE_MADE["url"] in invited.output) == (0, False)
    assert "An invitation is on its way" in invited.stdout
    told = run("admin", "password-link", "ann", "--mail")
    assert told.stdout.strip() == "A link to set a password is on its way to ann."
    server.answer("POST /v1/users/import", as_json(d.IMPORT))
    (tmp_path / "people.csv").write_text("name\nann\n")
    assert run("admin", "import", str(tmp_path / "people.csv"), "--mail").exit_code == 0
    assert json.loads(server.of("POST /v1/users/import")[0].body)["mail"] is True
