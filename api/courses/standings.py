"""Progress of students in an exercise: booked, started, failed, finished, handed in."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from api.courses.courses import exercise_view, find_course, find_exercise
from api.courses.schemas import (
    ExerciseJob,
    MyExercise,
    NewHandIn,
    StandingView,
    StudentResult,
)
from api.people.quota_rest import quotas_of
from api.studies import reports
from api.studies.schemas_reports import NewReport
from api.web import audit
from api.web.bells import Bells
from api.web.identity import Person
from api.web.process import Process
from core.base.errors import Conflict, NotFound
from core.courses.grading import (
    ExerciseProgress,
    checks_of,
    expected_jobs,
    gradescope,
    has_done_its_work,
    next_step,
)
from core.jobs.jobs_in_order import jobs_in_order
from core.policy.grid import usable_end
from core.states import TERMINAL_JOB, LeaseState
from core.tables.agendas import AgendaJob
from core.tables.courses import Course, Exercise, HandIn
from core.tables.files import Report
from core.tables.jobs import Job
from core.tables.kinds import LeaseKind, Role
from core.tables.leases import Lease
from core.tables.people import Lab, Membership, User
from core.tables.templates import Template, TemplateStart

AHEAD = (LeaseState.BOOKED, LeaseState.ACTIVE)


@dataclass(frozen=True)
class Work:
    """All that the students of an exercise have done for it, by their ids."""

    template: Template
    leases: Mapping[str, Lease]
    starts: Mapping[str, Sequence[TemplateStart]]
    """Starts of each, in their order."""
    jobs: Mapping[str, Sequence[Job]]
    """Jobs of each start, by its subject."""
    hand_ins: Mapping[str, HandIn]

    def jobs_of(self, user_id: str) -> Sequence[Job]:
        """Return the jobs of a student's last start."""
        starts = self.starts.get(user_id, ())
        return self.jobs.get(starts[-1].subject, ()) if starts else ()

    def all_jobs_of(self, user_id: str) -> set[str]:
        """Return the ids of all jobs that a student started."""
        starts = self.starts.get(user_id, ())
        return {job.id for start in starts for job in self.jobs.get(start.subject, ())}


def my_exercise(
    session: Session, key: str, name: str, person: Person, *, now: datetime
) -> MyExercise:
    """Return an exercise with a person's own progress. Raises NotFound."""
    course = find_course(session, key, person)
    exercise = find_exercise(session, course, name)
    user = session.get_one(User, person.id)
    (standing,) = _standings(session, exercise, [user], now=now)
    return MyExercise(
        course=course.name,
        exercise=exercise_view(exercise),
        notes=exercise.notes,
        standing=standing,
    )


def roster(
    session: Session, key: str, name: str, person: Person, *, now: datetime
) -> list[StandingView]:
    """Return the progress of every student of an exercise, by name. Raises NotFound."""
    course = find_course(session, key, person)
    exercise = find_exercise(session, course, name)
    return _standings(session, exercise, students_of(session, course), now=now)


def results(session: Session, key: str, name: str, person: Person) -> list[StudentResult]:
    """Return the result of every student of an exercise, from the reports handed in. Raises
    NotFound."""
    course = find_course(session, key, person)
    exercise = find_exercise(session, course, name)
    students = students_of(session, course)
    work = _work(session, exercise, students)
    expected = expected_jobs(work.template.spec)
    found = []
    for user in students:
        hand_in = work.hand_ins.get(user.id)
        text = None if hand_in is None else _content(session, hand_in)
        content = None if text is None else json.loads(text)
        checks = checks_of(content, expected, started=work.all_jobs_of(user.id))
        made = gradescope(
            checks,
            sha256=None if hand_in is None else hand_in.report_sha256,
            is_late=hand_in is not None and hand_in.made_at > exercise.due_at,
            is_genuine=hand_in is not None
            and text is not None
            and reports.digest(text) == hand_in.report_sha256,
        )
        found.append(StudentResult(user=user.name, email=user.email, results=made))
    return found


def hand_in(
    process: Process, key: str, name: str, person: Person, asked: NewHandIn, *, now: datetime
) -> MyExercise:
    """Hand in a report of a person's own, or one that is written of what they started last.

    Raises NotFound; Conflict before the exercise opens, without a start, or while a job runs.
    """
    report = None
    with process.read() as session:
        exercise = find_exercise(session, find_course(session, key, person), name)
        if now < exercise.opens_at:
            raise Conflict(f"{exercise.name} opens on {exercise.opens_at:%Y-%m-%d %H:%M} UTC.")
        if asked.report is None:
            report = _report(session, exercise, person, process.url, now)
    return process.transact(_hand_in, key, name, person, asked, report=report, now=now)


def _hand_in(
    session: Session,
    bells: Bells,
    key: str,
    name: str,
    person: Person,
    asked: NewHandIn,
    *,
    report: tuple[str, str] | None,
    now: datetime,
) -> MyExercise:
    exercise = find_exercise(session, find_course(session, key, person), name)
    if report is not None:
        title, text = report
        sha256 = reports.digest(text)
        row = Report(sha256=sha256, user_id=person.id, title=title, content=text, made_at=now)
        reports.add_report(session, bells, person, report=row)
        session.flush()
    else:
        sha256 = asked.report or ""
        own = session.get(Report, sha256)
        if own is None or own.user_id != person.id or own.deleted_at is not None:
            raise NotFound(f"You have no report with the hash {sha256!r}.", param="report")
    found = session.get(HandIn, (exercise.id, person.id))
    if found is None:
        session.add(
            HandIn(exercise_id=exercise.id, user_id=person.id, report_sha256=sha256, made_at=now)
        )
    else:
        found.report_sha256, found.made_at = sha256, now
    audit.record(session, person.id, "course.hand_in", exercise.id, now=now, report=sha256)
    session.flush()
    return my_exercise(session, key, name, person, now=now)


def _report(
    session: Session, exercise: Exercise, person: Person, url: str, now: datetime
) -> tuple[str, str]:
    """Return title and text of a report of what a person started last."""
    jobs = _work(session, exercise, [session.get_one(User, person.id)]).jobs_of(person.id)
    if not jobs:
        raise Conflict(
            "You have started nothing for this exercise. Start its template, or name a report.",
            code="not_started",
        )
    unfinished = [job.name for job in jobs if job.state not in TERMINAL_JOB]
    if unfinished:
        raise Conflict(
            f"{len(unfinished)} of {len(jobs)} jobs have not ended: {', '.join(unfinished[:5])}. "
            "Wait for them or cancel them, or name a report.",
            code="not_ended",
        )
    wanted = NewReport(title=exercise.title[:120], jobs=[job.id for job in jobs])
    content = reports.content_of(session, wanted, person, url, now)
    return content.title, reports.canonical(content.model_dump(mode="json"))


def students_of(session: Session, course: Course) -> list[User]:
    """Return the members of a course's group who are no staff, by name."""
    rows = session.execute(
        select(User, Lab.name, Lab.groups)
        .join(Membership, Membership.user_id == User.id)
        .join(Lab, Lab.id == Membership.lab_id)
        .where(User.role == Role.USER, User.disabled.is_(False))
    )
    found = {user.id: user for user, name, groups in rows if course.group in (name, *groups)}
    return sorted(found.values(), key=lambda user: user.name)


def _standings(
    session: Session, exercise: Exercise, users: Sequence[User], *, now: datetime
) -> list[StandingView]:
    work = _work(session, exercise, users)
    return [_standing(session, exercise, user, work, now=now) for user in users]


def _standing(
    session: Session, exercise: Exercise, user: User, work: Work, *, now: datetime
) -> StandingView:
    lease, jobs = work.leases.get(user.id), work.jobs_of(user.id)
    starts, handed_in = work.starts.get(user.id, ()), work.hand_ins.get(user.id)
    done = [job for job in jobs if has_done_its_work(job.state, job.reason_code, job.spec)]
    failed = sum(job.state in TERMINAL_JOB for job in jobs) - len(done)
    progress = ExerciseProgress(
        is_open=now >= exercise.opens_at,
        has_lease=lease is not None and lease.state in AHEAD,
        needs_lease="jobs" in work.template.spec,
        jobs=len(jobs),
        unfinished=sum(job.state not in TERMINAL_JOB for job in jobs),
        failed=failed,
        has_handed_in=handed_in is not None,
    )
    subject = starts[-1].subject if starts else ""
    quotas = quotas_of(session, user.id, now)
    return StandingView(
        user=user.name,
        next=next_step(progress),
        lease=None if lease is None else lease.id,
        booked_from=None if lease is None else lease.hold_start,
        booked_to=None if lease is None else usable_end(lease.hold_end, lease.grace_s),
        started_at=starts[-1].created_at if starts else None,
        agenda=subject if subject.startswith("agenda_") else None,
        jobs=[
            ExerciseJob(
                job=job.id,
                name=job.name,
                state=job.state,
                reason=job.reason,
                step=job.last_step,
                steps=job.steps,
            )
            for job in jobs
        ],
        succeeded=len(done),
        failed=failed,
        expected=len(expected_jobs(work.template.spec)),
        handed_in_at=None if handed_in is None else handed_in.made_at,
        late=handed_in is not None and handed_in.made_at > exercise.due_at,
        report=None if handed_in is None else handed_in.report_sha256,
        left=list(dict.fromkeys(one.text for quota in quotas for one in quota.left)),
    )


def _work(session: Session, exercise: Exercise, users: Sequence[User]) -> Work:
    ids = [user.id for user in users]
    starts: dict[str, list[TemplateStart]] = {}
    for start in session.scalars(
        select(TemplateStart)
        .where(
            TemplateStart.template_id == exercise.template_id,
            TemplateStart.user_id.in_(ids),
            TemplateStart.created_at >= exercise.opens_at,
        )
        .order_by(TemplateStart.created_at, TemplateStart.subject)
    ):
        starts.setdefault(start.user_id, []).append(start)
    hand_ins = session.scalars(
        select(HandIn).where(HandIn.exercise_id == exercise.id, HandIn.user_id.in_(ids))
    )
    subjects = [one.subject for each in starts.values() for one in each]
    return Work(
        template=session.get_one(Template, exercise.template_id),
        leases=_leases(session, exercise, ids),
        starts=starts,
        jobs=_jobs(session, subjects),
        hand_ins={one.user_id: one for one in hand_ins},
    )


def _leases(session: Session, exercise: Exercise, ids: Iterable[str]) -> dict[str, Lease]:
    """Map user id -> the booked lease that runs or comes next, else the last one."""
    rows = session.scalars(
        select(Lease)
        .where(
            Lease.user_id.in_(ids),
            Lease.kind == LeaseKind.BOOKED,
            Lease.state != LeaseState.CANCELLED,
            Lease.hold_end > exercise.opens_at,
            Lease.hold_start < exercise.due_at,
        )
        .order_by(Lease.hold_start)
    )
    found: dict[str, Lease] = {}
    for row in rows:
        before = found.get(row.user_id)
        if before is None or before.state not in AHEAD:
            found[row.user_id] = row
    return found


def _jobs(session: Session, subjects: Sequence[str]) -> dict[str, Sequence[Job]]:
    """Map each job or agenda that was started -> its jobs."""
    of_agendas = jobs_in_order(session, AgendaJob.agenda_id, subjects)
    alone = session.scalars(select(Job).where(Job.id.in_(subjects)))
    return {**of_agendas, **{job.id: [job] for job in alone}}


def _content(session: Session, hand_in: HandIn) -> str:
    return session.get_one(Report, hand_in.report_sha256).content
