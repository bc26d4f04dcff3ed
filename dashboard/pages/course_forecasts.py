"""Forecast of an exercise: will the hours be enough, and who gets some? With other assumptions."""

import asyncio

from starlette.responses import Response

from dashboard.inner_calls import Query
from dashboard.rendering import render
from dashboard.viewer import ApiProblem, Viewer
from trainyard.views import Course, CourseForecast

ANSWERED = (409, 422)
SHOWN = 30  # students, those with the least chance
POOL = "nodes."  # before the name of a pool, in the name of its field


async def show(viewer: Viewer) -> Response:
    """The answer, with the assumptions as a form."""
    me, course = await asyncio.gather(
        viewer.me(), viewer.get(Course, f"/v1/courses/{viewer.part('course')}")
    )
    asked = {name: value for name, value in viewer.request.query_params.items() if value.strip()}
    path = f"/v1/courses/{viewer.part('course')}/exercises/{viewer.part('exercise')}/forecast"
    answer = await viewer.or_refusal(viewer.get(CourseForecast, path, query_of(asked)), ANSWERED)
    refused = answer if isinstance(answer, ApiProblem) else None
    found = answer if isinstance(answer, CourseForecast) else None
    name = str(viewer.request.path_params["exercise"])
    in_doubt = [one for one in found.prospects if not one.has_all] if found else []
    context = {
        "me": me,
        "section": "courses",
        "course": course,
        "exercise": next(one for one in course.exercises if one.name == name),
        "found": found,
        "in_doubt": in_doubt[:SHOWN],
        "more": max(0, len(in_doubt) - SHOWN),
        "asked": asked,
        "refused": refused,
    }
    return render("course_forecast.html", context, status=refused.status if refused else 200)


def query_of(asked: dict[str, str]) -> Query:
    """Return the assumptions as the API takes them."""
    nodes = [
        f"{name.removeprefix(POOL)}={value}"
        for name, value in asked.items()
        if name.startswith(POOL)
    ]
    return {name: asked.get(name) for name in ("days_left", "students")} | {
        "nodes": ",".join(nodes) or None
    }
