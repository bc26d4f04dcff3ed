"""Courses on the pages: a student's next step and notes, an instructor's roster and files."""

import csv
import io
import json
from typing import Any

from starlette.testclient import TestClient

from api.courses.schemas import CourseView, MyExercise, StandingView, StudentResult
from dashboard.notes import as_html
from tests.answers import answer
from tests.dashboard.fake_api import FakeApi, me, refusal, view

HOSTILE = "<script>alert(1)</script>\u202e"
PATH = "/v1/courses/ml-lab/exercises/two"


def exercise(name: str = "two", **changes: Any) -> Any:
    fields = {"name": name, "title": f"Runs {HOSTILE}", "template": "tmpl_01", "hours": 3}
    return answer("ExerciseView", **{**fields, "due_at": "2999-01-01T00:00:00+00:00", **changes})


def course(*exercises: Any) -> Any:
    told = {"name": "ml-lab", "title": HOSTILE, "group": "students", "first_day": "2027-01-25"}
    return view(CourseView, {**told, "exercises": list(exercises)})


def standing(**changes: Any) -> Any:
    job = {"job": "job_01", "name": "first", "state": "failed", "reason": HOSTILE}
    fields = {
        "user": "sam",
        "next": "start",
        "lease": "lease_01",
        "started_at": "2026-03-05T18:00:00+00:00",
        "jobs": [answer("ExerciseJob", **job)],
        "failed": 1,
        "expected": 2,
        "left": ["One 2 h"],
        **changes,
    }
    return answer("StandingView", **fields)


def mine(**changes: Any) -> Any:
    fields = {
        "course": "ml-lab",
        "exercise": exercise(),
        "notes": f"# Notes\n\n{HOSTILE} [x](javascript:alert(1))",
        "standing": standing(**changes),
    }
    return view(MyExercise, fields)


def result(user: str, score: int) -> Any:
    tests = [{"name": "first", "score": score, "max_score": 1}]
    fields = {"user": user, "email": "=cmd@x", "results": {"score": score, "tests": tests}}
    return view(StudentResult, fields)


def test_notes_are_markdown_and_nothing_else() -> None:
    found = as_html(f"# A\n\n{HOSTILE}\n\n![i](http://x/y.png) [a](javascript:x) [b](https://b)\n")
    assert "<h1>A</h1>" in found
    assert "<script" not in found
    assert "<img" not in found
    assert 'href="javascript' not in found
    assert 'href="https://b"' in found


def test_a_student_sees_the_next_step_and_hands_in(api: FakeApi, page: TestClient) -> None:
    api.put("/v1/courses", [course(exercise())])
    api.put(
        "/v1/courses/ml-lab",
        course(exercise("old", due_at="2020-01-01T00:00:00+00:00"), exercise()),
    )
    assert 'href="/courses/ml-lab/two"' in page.get("/courses").text
    today = page.get("/courses/ml-lab", follow_redirects=False)
    assert today.headers["location"] == "/courses/ml-lab/two"  # the first that is not over
    api.put(PATH, mine())
    text = page.get("/courses/ml-lab/two").text
    assert "<script>alert" not in text
    assert "<h1>Notes</h1>" in text
    assert 'href="javascript' not in text
    assert 'btn primary" href="/templates/tmpl_01?lease=lease_01"' in text
    assert "0 of 2 succeeded, 1 did not" in text
    assert "One 2 h" in text
    assert "/roster" not in text
    api.put(f"{PATH}/hand-in", mine(next="done"), method="POST")
    went = page.post("/courses/ml-lab/two/hand-in", follow_redirects=False)
    assert (went.status_code, went.headers["location"]) == (303, "/courses/ml-lab/two")
    api.put(f"{PATH}/hand-in", refusal(409, "2 of 2 jobs have not ended."), method="POST")
    refused = page.post("/courses/ml-lab/two/hand-in")
    assert (refused.status_code, "have not ended" in refused.text) == (409, True)
    api.put("/v1/courses", [])
    assert "You are in no course" in page.get("/courses").text


def test_an_instructor_sees_who_has_most_to_do_and_takes_the_grades(
    api: FakeApi, page: TestClient
) -> None:
    staff = answer("UserView", **{**me().user.model_dump(mode="json"), "role": "staff"})
    api.put("/v1/me", me(user=staff))
    api.put("/v1/courses/ml-lab", course(exercise()))
    done = {"next": "done", "report": "ab" * 32, "handed_in_at": "2026-03-05T18:00:00+00:00"}
    lines = [
        standing(user="amy", **done, late=True),
        standing(user="bob", next="hand_in"),
        standing(user="cat", next="book", jobs=[]),
    ]
    api.put(f"{PATH}/roster", [view(StandingView, line) for line in lines])
    api.put(
        f"{PATH}/results",
        [result(name, score) for name, score in zip(("amy", "bob", "cat"), (1, 0, 0), strict=True)],
    )
    today = page.get("/courses/ml-lab", follow_redirects=False)
    assert today.headers["location"] == "/courses/ml-lab/two/roster"
    text = page.get("/courses/ml-lab/two/roster").text
    assert "<script>alert" not in text
    assert text.index(">cat<") < text.index(">bob<") < text.index(">amy<")
    assert "late" in text
    only = page.get("/courses/ml-lab/two/roster?next=book").text
    assert ">cat<" in only
    assert ">bob<" not in only

    table = list(csv.DictReader(io.StringIO(page.get("/courses/ml-lab/two/results.csv").text)))
    assert [(row["name"], row["score"], row["max_score"]) for row in table] == [
        ("amy", "1", "1"),
        ("bob", "0", "1"),
        ("cat", "0", "1"),
    ]
    assert table[0]["late"] == "late"
    assert table[0]["email"] == "'=cmd@x"  # no formula
    whole = json.loads(page.get("/courses/ml-lab/two/results.json").text)
    assert whole["amy"]["score"] == 1
    one = page.get("/courses/ml-lab/two/results.json?user=bob")
    assert json.loads(one.text)["score"] == 0
    assert "attachment" in one.headers["content-disposition"]
    assert page.get("/courses/ml-lab/two/results.json?user=zed").status_code == 404
