"""/v1/courses/COURSE/exercises: what students do in a course, and how far they are."""

from fastapi import APIRouter

from api.courses import standings
from api.courses.schemas import MyExercise, NewHandIn, StandingView, StudentResult
from api.web.auth import SignedIn, StaffOnly
from api.web.process import ProcessDep
from api.web.schemas import Page
from api.web.text_types import PlainText
from core.base.clock import utc_now

router = APIRouter(prefix="/v1/courses/{course}/exercises/{exercise}", tags=["courses"])


@router.get("", summary="Get an exercise")
def get_exercise(
    course: PlainText, exercise: PlainText, person: SignedIn, process: ProcessDep
) -> MyExercise:
    """Return an exercise of a course that you are in, with its notes and your own progress."""
    with process.read() as session:
        return standings.my_exercise(session, course, exercise, person, now=utc_now())


@router.post("/hand-in", summary="Hand in")
def hand_in(
    course: PlainText,
    exercise: PlainText,
    body: NewHandIn,
    person: SignedIn,
    process: ProcessDep,
) -> MyExercise:
    """Hand in a report: one of yours, or one that is written of the jobs you started last. A later
    one takes its place; after the exercise is due it is marked as late."""
    return standings.hand_in(process, course, exercise, person, body, now=utc_now())


@router.get("/roster", summary="Get the roster of an exercise")
def get_roster(
    course: PlainText, exercise: PlainText, person: StaffOnly, process: ProcessDep
) -> Page[StandingView]:
    """Return every student of the course with what they booked, started, finished and handed in."""
    with process.read() as session:
        found = standings.roster(session, course, exercise, person, now=utc_now())
    return Page[StandingView](data=found)


@router.get("/results", summary="Get the results of an exercise")
def get_results(
    course: PlainText, exercise: PlainText, person: StaffOnly, process: ProcessDep
) -> Page[StudentResult]:
    """Check the report of every student: whether it is genuine, and each job of the exercise. Each
    result is a `results.json` as Gradescope's autograder reads it."""
    with process.read() as session:
        return Page[StudentResult](data=standings.results(session, course, exercise, person))
