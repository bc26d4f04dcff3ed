"""Courses: their rows, for those who are in them."""

from collections.abc import Sequence
from datetime import date, datetime

from sqlalchemy import ColumnElement, delete, func, literal, or_, select
from sqlalchemy.orm import Session

from api.courses.schemas import CourseTexts, CourseView, ExerciseView
from api.web import audit
from api.web.bells import Bells
from api.web.identity import Person
from api.web.paging import page
from api.web.schemas import Page
from api.web.sharing import reader_of
from core.base.errors import Conflict, NotFound
from core.tables.courses import Course, Exercise, HandIn
from core.tables.people import User


def list_courses(
    session: Session, person: Person, *, limit: int, after: str | None
) -> Page[CourseView]:
    """Return a page of the courses that a person is in; staff are in all."""
    query = select(Course).where(_may_see(session, person))
    rows = page(session, query, Course.id, after=after, limit=limit)
    data = [course_view(session, row) for (row,) in rows]
    return Page[CourseView](data=data, has_more=rows.has_more)


def find_course(session: Session, key: str, person: Person) -> Course:
    """Return a course by id or name that a person may see. Raises NotFound."""
    named = (Course.id == key) | (Course.name == key)
    row = session.scalars(select(Course).where(named, _may_see(session, person))).one_or_none()
    if row is None:
        raise NotFound(f"You are in no course {key!r}.")
    return row


def exercises_of(session: Session, course: Course) -> Sequence[Exercise]:
    """Return the exercises of a course in their order."""
    query = select(Exercise).where(Exercise.course_id == course.id)
    return session.scalars(query.order_by(Exercise.position, Exercise.id)).all()


def find_exercise(session: Session, course: Course, name: str) -> Exercise:
    """Return an exercise of a course by its name. Raises NotFound."""
    found = next((one for one in exercises_of(session, course) if one.name == name), None)
    if found is None:
        raise NotFound(f"{course.name} has no exercise {name!r}.")
    return found


def texts_of(session: Session, key: str, person: Person) -> CourseTexts:
    """Return the texts of a course's bundle. Raises NotFound."""
    row = find_course(session, key, person)
    return CourseTexts(name=row.name, texts=row.texts)


def delete_course(session: Session, _: Bells, key: str, person: Person, *, now: datetime) -> None:
    """Delete a course and its exercises. Raises Conflict once something was handed in."""
    row = find_course(session, key, person)
    ids = [one.id for one in exercises_of(session, row)]
    handed_in = session.scalar(
        select(func.count()).select_from(HandIn).where(HandIn.exercise_id.in_(ids))
    )
    if handed_in:
        raise Conflict(
            f"{handed_in} reports were handed in for {row.name}, so it stays. Take the results "
            "and keep it, or apply next year's under another name."
        )
    session.execute(delete(Exercise).where(Exercise.course_id == row.id))
    session.delete(row)
    audit.record(session, person.id, "course.delete", row.name, now=now)


def course_view(session: Session, row: Course) -> CourseView:
    """Return the view of a course."""
    return CourseView(
        id=row.id,
        name=row.name,
        title=row.title,
        owner=session.get_one(User, row.owner_id).name,
        zone=row.zone,
        group=row.group,
        first_day=date.fromisoformat(row.first_day),
        exercises=[exercise_view(one) for one in exercises_of(session, row)],
        applied_at=row.applied_at,
    )


def exercise_view(row: Exercise) -> ExerciseView:
    """Return the view of an exercise."""
    return ExerciseView(
        name=row.name,
        title=row.title,
        template=row.template_id,
        opens_at=row.opens_at,
        due_at=row.due_at,
        hours=row.hours,
    )


def _may_see(session: Session, person: Person) -> ColumnElement[bool]:
    groups = reader_of(session, person.id).groups
    mine = Course.owner_id == person.id
    return or_(literal(person.is_staff), mine, Course.group.in_(groups))
