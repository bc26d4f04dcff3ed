"""/v1/courses: courses as bundles, for staff to apply and for their students to work in."""

from fastapi import APIRouter, Response

from api.courses import applying, courses
from api.courses.schemas import CoursePlan, CourseTexts, CourseView, NewCourse
from api.web.auth import SignedIn, StaffOnly
from api.web.process import ProcessDep
from api.web.schemas import Page
from api.web.text_types import After, Limit, PlainText
from core.base.clock import utc_now

router = APIRouter(prefix="/v1/courses", tags=["courses"])


@router.post("", summary="Apply a course")
def apply_course(body: NewCourse, person: StaffOnly, process: ProcessDep) -> CoursePlan:
    """Make all that a bundle describes, in one transaction: people and group, policy, templates,
    exercises, and shares of all that is handed out. The same bundle again changes nothing.

    Datasets, models and code are uploaded first; as long as one is missing, the answer names it and
    nothing is done. A bundle with people or a new group needs an administrator.
    """
    bundle = applying.read(body)
    now = utc_now()
    try:
        return process.transact(applying.apply, process, person, body, bundle, now=now)
    except applying.DryRun as done:
        return done.plan


@router.get("", summary="List courses")
def list_courses(
    person: SignedIn, process: ProcessDep, limit: Limit = 50, after: After = None
) -> Page[CourseView]:
    """Return the courses that you are in, newest first; staff see all."""
    with process.read() as session:
        return courses.list_courses(session, person, limit=limit, after=after)


@router.get("/{course}", summary="Get a course")
def get_course(course: PlainText, person: SignedIn, process: ProcessDep) -> CourseView:
    """Return a course that you are in, by id or name, with its exercises."""
    with process.read() as session:
        return courses.course_view(session, courses.find_course(session, course, person))


@router.get("/{course}/bundle", summary="Export a course")
def export_course(course: PlainText, person: StaffOnly, process: ProcessDep) -> CourseTexts:
    """Return the texts of the bundle as they were applied, dates relative to the first day. The
    list of people, data, models and code are not in it."""
    with process.read() as session:
        return courses.texts_of(session, course, person)


@router.delete("/{course}", status_code=204, summary="Delete a course")
def delete_course(course: PlainText, person: StaffOnly, process: ProcessDep) -> Response:
    """Delete a course for which nothing was handed in. People, rules, data, models and templates
    stay."""
    process.transact(courses.delete_course, course, person, now=utc_now())
    return Response(status_code=204)
