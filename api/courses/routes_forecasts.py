"""Forecasts of a course: will the hours be enough, and who gets some?"""

from typing import Annotated

from fastapi import APIRouter, Query

from api.courses import forecasts
from api.courses.schemas import CourseForecast, NewPolicyForecast
from api.policies.documents import read_document
from api.web.auth import StaffOnly
from api.web.process import ProcessDep
from api.web.text_types import PlainText
from core.base.clock import utc_now
from core.courses.what_if import MOST_DAYS, MOST_STUDENTS, WhatIf

router = APIRouter(prefix="/v1", tags=["courses"])

NODES_OF_POOL = "[A-Za-z0-9][A-Za-z0-9._-]{0,62}=[0-9]{1,3}"
NODES = f"^{NODES_OF_POOL}(,{NODES_OF_POOL})*$"


@router.get("/courses/{course}/exercises/{exercise}/forecast", summary="Forecast an exercise")
def forecast_exercise(
    course: PlainText,
    exercise: PlainText,
    person: StaffOnly,
    process: ProcessDep,
    days_left: Annotated[
        float | None,
        Query(gt=0, le=MOST_DAYS, description="Days from now to the end of the last block."),
    ] = None,
    students: Annotated[
        int | None,
        Query(ge=0, le=MOST_STUDENTS, description="Size of the cohort; by default as it is."),
    ] = None,
    nodes: Annotated[
        str | None,
        Query(
            max_length=2000,
            pattern=NODES,
            description="Numbers of nodes by pool, such as `long=2,single=3`.",
        ),
    ] = None,
) -> CourseForecast:
    """Simulate how the students of the course book until the exercise is due: the real students,
    nodes, rules and bookings, or with other days, nodes or students."""
    pairs = (one.partition("=") for one in nodes.split(",")) if nodes else ()
    counts = {pool: int(count) for pool, _, count in pairs}
    what_if = WhatIf(days_left, students, counts)
    now = utc_now()
    with process.read() as session:
        demand, names = forecasts.read_demand(session, course, exercise, person, what_if, now=now)
    return forecasts.forecast(demand, names)


@router.post("/policies/forecast", summary="Forecast a policy")
def forecast_policy(body: NewPolicyForecast, person: StaffOnly) -> CourseForecast:
    """Simulate how so many students book under a policy that need not be in force, on the nodes
    that it names, from its first window to its last. Changes nothing."""
    demand = forecasts.policy_demand(read_document(body.policy), body, now=utc_now())
    return forecasts.forecast(demand, {})
