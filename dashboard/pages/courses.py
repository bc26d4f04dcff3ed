"""Courses: a student's exercise with its notes and next step, and an instructor's roster."""

import asyncio
import csv
import io
import json
from datetime import UTC, datetime

from starlette.exceptions import HTTPException
from starlette.responses import Response

from dashboard.notes import as_html
from dashboard.rendering import PAGE_HEADERS, redirect, render
from dashboard.viewer import ApiProblem, Viewer
from trainyard.views import Course, Exercise, MyExercise, Standing, StudentResult

ANSWERED = (404, 409, 422)
NEXT = {
    "wait_for_opening": "It is not open yet.",
    "book": "Book a block.",
    "start": "Start it.",
    "wait": "Wait for your jobs, or watch them.",
    "hand_in": "Hand in.",
    "done": "Handed in.",
}
URGENCY = ("book", "start", "wait", "hand_in", "wait_for_opening", "done")


async def show_all(viewer: Viewer) -> Response:
    """The courses that the viewer is in."""
    me, (courses, _) = await asyncio.gather(
        viewer.me(), viewer.page(Course, "/v1/courses", {"limit": 100})
    )
    return render("courses.html", {"me": me, "section": "courses", "courses": courses})


async def show(viewer: Viewer) -> Response:
    """Go to today's exercise: the first that is not over, else the last; staff to its roster."""
    me, course = await asyncio.gather(
        viewer.me(), viewer.get(Course, f"/v1/courses/{viewer.part('course')}")
    )
    if not course.exercises:
        return render("courses.html", {"me": me, "section": "courses", "courses": [course]})
    page = f"/courses/{course.name}/{todays(course, datetime.now(UTC)).name}"
    return redirect(page if me.user.role == "user" else f"{page}/roster")


async def exercise(viewer: Viewer) -> Response:
    """One exercise as its student sees it."""
    return await _page(viewer, None)


async def hand_in(viewer: Viewer) -> Response:
    """Hand in a report of what was started last."""
    answer = await viewer.or_refusal(
        viewer.call("POST", f"{_path(viewer)}/hand-in", json={}), ANSWERED
    )
    if isinstance(answer, ApiProblem):
        return await _page(viewer, answer)
    return redirect(f"/courses/{viewer.part('course')}/{viewer.part('exercise')}")


async def roster(viewer: Viewer) -> Response:
    """All students of an exercise, those with most to do first."""
    me, course, (lines, _) = await asyncio.gather(
        viewer.me(),
        viewer.get(Course, f"/v1/courses/{viewer.part('course')}"),
        viewer.page(Standing, f"{_path(viewer)}/roster"),
    )
    lines.sort(key=lambda one: (URGENCY.index(one.next), one.user))
    chosen = viewer.query("next")
    context = {
        "me": me,
        "section": "courses",
        "course": course,
        "exercise": _named(course, str(viewer.request.path_params["exercise"])),
        "lines": [one for one in lines if chosen in ("", one.next)],
        "counts": [(step, sum(one.next == step for one in lines)) for step in NEXT],
        "total": len(lines),
        "chosen": chosen,
        "words": NEXT,
    }
    return render("roster.html", context)


async def results_csv(viewer: Viewer) -> Response:
    """One line for each student."""
    (lines, _), (results, _) = await asyncio.gather(
        viewer.page(Standing, f"{_path(viewer)}/roster"),
        viewer.page(StudentResult, f"{_path(viewer)}/results"),
    )
    text = as_csv(lines, results)
    return _file(viewer, text, "text/csv; charset=utf-8", "csv")


async def results_json(viewer: Viewer) -> Response:
    """The results of all students by name; with `user`, that student's results.json alone."""
    results, _ = await viewer.page(StudentResult, f"{_path(viewer)}/results")
    by_name = {one.user: one.results for one in results}
    user = viewer.query("user")
    if user and user not in by_name:
        raise HTTPException(404)
    found = by_name[user] if user else by_name
    return _file(viewer, json.dumps(found, indent=2), "application/json", "json")


def todays(course: Course, now: datetime) -> Exercise:
    """Return the first exercise that is not over, else the last."""
    ahead = (one for one in course.exercises if one.due_at > now)
    return next(ahead, course.exercises[-1])


def as_csv(lines: list[Standing], results: list[StudentResult]) -> str:
    """Return a table of all students: progress and score."""
    by_name = {one.user: one for one in results}
    out = io.StringIO()
    table = csv.writer(out)
    heads = "name email booked started jobs succeeded failed handed_in late report score max_score"
    table.writerow(heads.split())
    for one in sorted(lines, key=lambda line: line.user):
        found = by_name[one.user]
        tests = found.results["tests"]
        table.writerow(
            [
                one.user,
                _plain(found.email or ""),
                *(_at(moment) for moment in (one.booked_from, one.started_at)),
                len(one.jobs),
                one.succeeded,
                one.failed,
                _at(one.handed_in_at),
                "late" if one.late else "",
                one.report or "",
                found.results["score"],
                sum(test["max_score"] for test in tests),
            ]
        )
    return out.getvalue()


def _plain(text: str) -> str:
    """A text that no spreadsheet takes for a formula."""
    return f"'{text}" if text[:1] in tuple("=+-@\t\r") else text


def _at(moment: datetime | None) -> str:
    return "" if moment is None else moment.astimezone(UTC).isoformat(timespec="seconds")


def _named(course: Course, name: str) -> Exercise:
    return next(one for one in course.exercises if one.name == name)


def _path(viewer: Viewer) -> str:
    return f"/v1/courses/{viewer.part('course')}/exercises/{viewer.part('exercise')}"


def _file(viewer: Viewer, text: str, media_type: str, ending: str) -> Response:
    name = f"{viewer.part('course')}-{viewer.part('exercise')}.{ending}"
    headers = {**PAGE_HEADERS, "Content-Disposition": f'attachment; filename="{name}"'}
    return Response(text, media_type=media_type, headers=headers)


async def _page(viewer: Viewer, refused: ApiProblem | None) -> Response:
    me, course, mine = await asyncio.gather(
        viewer.me(),
        viewer.get(Course, f"/v1/courses/{viewer.part('course')}"),
        viewer.get(MyExercise, _path(viewer)),
    )
    context = {
        "me": me,
        "section": "courses",
        "course": course,
        "exercise": mine.exercise,
        "standing": mine.standing,
        "notes": as_html(mine.notes),
        "is_over": mine.exercise.due_at < datetime.now(UTC),
        "words": NEXT,
        "refused": refused,
    }
    return render("exercise.html", context, status=refused.status if refused else 200)
