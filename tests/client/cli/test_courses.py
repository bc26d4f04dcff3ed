"""`trainyard course`: what a folder sends, and what the command says of the answer."""

import json
from hashlib import sha256
from pathlib import Path

from tests.client import documents as d
from tests.client.fake_server import FakeServer, as_json
from tests.client.scripted import Run, everything


def folder(tmp_path: Path) -> Path:
    root = tmp_path / "bundle"
    (root / "data").mkdir(parents=True)
    (root / "course.yaml").write_text("format: 1\n")
    (root / ".git").write_text("hidden")
    (root / "data" / "corpus.txt").write_text("text")
    return root


def test_texts_travel_whole_and_the_rest_as_hashes(
    server: FakeServer, run: Run, tmp_path: Path
) -> None:
    everything(server)
    server.answer("POST /v1/courses", as_json({**d.COURSE_PLAN, "applied": False}))
    told = run("course", "apply", str(folder(tmp_path)), "--first-day", "2027-01-25", "--dry-run")
    assert told.exit_code == 0, told.output
    assert "add     policy ml-lab: Version 1." in told.stdout
    assert "Nothing was changed (dry run)." in told.stdout
    assert json.loads(server.of("POST /v1/courses")[0].body) == {
        "first_day": "2027-01-25",
        "texts": {"course.yaml": "format: 1\n"},
        "files": {"data/corpus.txt": sha256(b"text").hexdigest()},
        "code": {},
        "dry_run": True,
    }
    server.answer("POST /v1/courses", as_json(d.COURSE_PLAN))
    told = run("course", "apply", str(folder(tmp_path / "b")), "--first-day", "2027-01-25")
    assert "Applied ml-lab: 1 step." in told.stdout
    none = run("course", "apply", str(tmp_path), "--first-day", "2027-01-25")
    assert (none.exit_code, "has no course.yaml" in none.stderr) == (2, True)


def test_an_export_writes_a_new_folder_and_nothing_outside(
    server: FakeServer, run: Run, tmp_path: Path
) -> None:
    everything(server)
    server.answer("GET /v1/courses/ml-lab/bundle", as_json(d.COURSE_TEXTS))
    told = run("course", "export", "ml-lab", str(tmp_path / "out"))
    assert told.exit_code == 0, told.output
    assert (tmp_path / "out" / "notes" / "two.md").read_text() == "# Two"
    again = run("course", "export", "ml-lab", str(tmp_path / "out"))
    assert (again.exit_code, "is not empty" in again.stderr) == (2, True)
    evil = {**d.COURSE_TEXTS, "texts": {"../evil.md": "x"}}
    server.answer("GET /v1/courses/ml-lab/bundle", as_json(evil))
    refused = run("course", "export", "ml-lab", str(tmp_path / "new"))
    assert (refused.exit_code, "outside" in refused.stderr) == (2, True)
    assert not (tmp_path / "evil.md").exists()


def test_results_are_a_file_for_each_student(server: FakeServer, run: Run, tmp_path: Path) -> None:
    everything(server)
    told = run("course", "results", "ml-lab", "two", str(tmp_path / "out"))
    assert told.exit_code == 0, told.output
    assert json.loads((tmp_path / "out/sam/results.json").read_text()) == {"score": 1, "tests": []}
    again = run("course", "results", "ml-lab", "two", str(tmp_path / "out"))
    assert (again.exit_code, "is not empty" in again.stderr) == (2, True)


def test_a_student_reads_the_notes_and_the_next_step(server: FakeServer, run: Run) -> None:
    everything(server)
    shown = run("course", "exercise", "ml-lab", "two").stdout
    assert "# Two" in shown
    assert "Next: start. 0 of 2 jobs succeeded, 0 failed." in shown


def test_a_forecast_says_first_whether_it_is_enough(server: FakeServer, run: Run) -> None:
    everything(server)
    path = "/v1/courses/ml-lab/exercises/two/forecast"
    server.answer(f"GET {path}", as_json(d.COURSE_FORECAST))
    told = run("course", "forecast", "ml-lab", "two", "--days", "2", "--nodes", "boxes=4")
    assert told.exit_code == 0, told.output
    first, *_ = told.stdout.splitlines()
    assert first == "Of 10 students 8 will have all that they need, 2 nothing."
    assert "Each needs 2 h on a box" in told.stdout
    assert "sam" in told.stdout
    assert server.of(f"GET {path}")[0].query == {"days_left": ["2.0"], "nodes": ["boxes=4"]}
    for wrong in (["ml-lab"], ["ml-lab", "two", "--nodes", "boxes"], ["--students", "3"]):
        assert run("course", "forecast", *wrong).exit_code == 2
