"""Application of a bundle: everything in one transaction, or nothing.

A dry run is the application itself, rolled back at its end, so it cannot promise anything else.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from api.courses.schemas import CoursePlan, CourseStep, CourseUpload, NewCourse
from api.files.dataset_files import files_of
from api.people import imports
from api.people.people_import import read_people
from api.policies import policy_versions
from api.sharing.shares import grant
from api.templates import templates
from api.web import audit
from api.web.bells import Bells
from api.web.errors import InvalidRequest
from api.web.identity import Person
from api.web.process import Process
from api.web.schemas import ProblemItem
from core.base.errors import Conflict, Forbidden
from core.base.ids import IdKind, new_id
from core.base.strict_text import Flaw
from core.courses.course import (
    MAIN,
    VERSION,
    BadBundle,
    Bundle,
    CourseDataset,
    CourseModel,
    dated,
    read_bundle,
)
from core.leases.active_policies import fingerprint
from core.policy.document import BadPolicy, load
from core.spec.template import qualified, scripts_in, with_code
from core.tables.courses import Course, Exercise, HandIn
from core.tables.files import Dataset, Model
from core.tables.kinds import AudienceKind, Role, SharedKind
from core.tables.people import Lab
from core.tables.policies import AppliedPolicy
from core.tables.scripts import CodeArchive


class DryRun(Exception):
    """End of a dry run: what was done is undone."""

    def __init__(self, plan: CoursePlan) -> None:
        super().__init__()
        self.plan = plan


@dataclass
class Application:
    """One application of a bundle: what it has done so far."""

    session: Session
    bells: Bells
    process: Process
    person: Person
    asked: NewCourse
    bundle: Bundle
    now: datetime
    steps: list[CourseStep] = field(default_factory=list)
    uploads: list[CourseUpload] = field(default_factory=list)
    handed_out: list[tuple[SharedKind, str]] = field(default_factory=list)
    """Kind and id of what is shared with the group."""

    def did(self, kind: str, name: str, action: str, what: str) -> None:
        """Note a step."""
        step = {"kind": kind, "name": name, "action": action, "what": what}
        self.steps.append(CourseStep.model_validate(step))

    def must_upload(self, kind: str, name: str, path: str, format: str | None = None) -> None:
        """Note what has to arrive before the bundle can be applied."""
        needed = {"kind": kind, "name": name, "path": path, "format": format}
        self.uploads.append(CourseUpload.model_validate(needed))
        self.did(kind, name, "upload", f"{path} is to be uploaded.")


def read(asked: NewCourse) -> Bundle:
    """Return the bundle of a request. Raises InvalidRequest with every file that is wrong."""
    try:
        return read_bundle(asked.texts, asked.first_day)
    except BadBundle as error:
        raise _invalid(error.flaws) from error


def apply(
    session: Session,
    bells: Bells,
    process: Process,
    person: Person,
    asked: NewCourse,
    bundle: Bundle,
    *,
    now: datetime,
) -> CoursePlan:
    """Make all that a bundle describes, and share it with its group; return what was done.

    Nothing is done as long as something has to be uploaded. Raises DryRun with the same answer for
    a dry run; InvalidRequest, Conflict, Forbidden for what is in the way.
    """
    work = Application(session, bells, process, person, asked, bundle, now)
    course = _course_row(work)
    wrong = [*_things(work)]
    if wrong:
        raise _invalid(wrong)
    _people(work)
    _policy(work)
    template_ids = _templates(work)
    done = not work.uploads
    if done:
        _share(work)
        _exercises(work, _keep_course(work, course), template_ids)
    plan = CoursePlan(
        course=bundle.course.name,
        first_day=bundle.first_day,
        applied=done and not asked.dry_run,
        steps=work.steps,
        uploads=work.uploads,
    )
    if not plan.applied:
        raise DryRun(plan)
    changed = [f"{one.kind} {one.name}" for one in work.steps if one.action != "same"]
    audit.record(session, person.id, "course.apply", plan.course, now=now, changed=changed[:100])
    return plan


def _course_row(work: Application) -> Course | None:
    """Return the course of this name, if it is the person's. Raises Conflict for another's."""
    course = work.bundle.course
    row = work.session.scalars(select(Course).where(Course.name == course.name)).one_or_none()
    if row is not None and row.owner_id != work.person.id:
        raise Conflict(
            f"name: there already is a course {course.name}, and it is another person's. Choose "
            "another name in course.yaml.",
            code="name_taken",
            param="name",
        )
    return row


def _things(work: Application) -> Iterator[Flaw]:
    """Find the datasets, models and code; yield what is taken or missing."""
    for dataset in work.bundle.course.datasets:
        yield from _dataset(work, dataset)
    for model in work.bundle.course.models:
        yield from _model(work, model)
    for template, folder in work.bundle.templates:
        if folder is None or not any("code" not in one for one in scripts_in(template.spec)):
            continue
        sha256 = work.asked.code.get(folder)
        if sha256 is not None:
            found = work.session.get(CodeArchive, (work.person.id, sha256))
            if found is None:
                work.must_upload("code", folder, folder)
        elif any(path.startswith(f"{folder}/") for path in _paths(work.asked)):
            work.must_upload("code", folder, folder)
        else:
            yield _missing(folder, "folder of code")


def _dataset(work: Application, wanted: CourseDataset) -> Iterator[Flaw]:
    sent = work.asked.files.get(wanted.file)
    row = work.session.scalars(
        select(Dataset).where(Dataset.user_id == work.person.id, Dataset.name == wanted.name)
    ).one_or_none()
    if row is None and sent is None:
        yield _missing(wanted.file, "file")
    elif row is None:
        work.must_upload("dataset", wanted.name, wanted.file, wanted.format)
    elif sent is not None and [one.sha256 for one in files_of(row)] != [sent]:
        yield Flaw(
            wanted.file,
            "name_taken",
            f"{wanted.file}: you already have a dataset {wanted.name} with other content. Delete "
            "it, or choose another name in course.yaml.",
        )
    else:
        told = "as in the bundle" if sent else "as it is here; the bundle does not bring it"
        work.did("dataset", wanted.name, "same", f"{told}.")
        work.handed_out.append((SharedKind.DATASET, row.id))


def _model(work: Application, wanted: CourseModel) -> Iterator[Flaw]:
    before = f"{wanted.folder}/"
    sent = {
        path.removeprefix(before): sha256
        for path, sha256 in work.asked.files.items()
        if path.startswith(before)
    }
    row = work.session.scalars(
        select(Model).where(Model.user_id == work.person.id, Model.name == wanted.name)
    ).one_or_none()
    if row is None and not sent:
        yield _missing(wanted.folder, "folder")
    elif row is None or (sent and _differs(row, sent)):
        work.must_upload("model", wanted.name, wanted.folder)
    else:
        told = "as in the bundle" if sent else "as it is here; the bundle does not bring it"
        work.did("model", wanted.name, "same", f"version {row.version}, {told}.")
        work.handed_out.append((SharedKind.MODEL, row.id))


def _differs(model: Model, sent: Mapping[str, str]) -> bool:
    return any(sent.get(file["path"]) != file["sha256"] for file in model.files)


def _people(work: Application) -> None:
    """Add and change people, and put them into the group."""
    group, text = work.bundle.course.group, work.bundle.people
    known = work.session.scalars(select(Lab).where(Lab.name == group)).one_or_none()
    is_admin = work.person.role is Role.ADMIN
    if text is not None and not is_admin:
        raise Forbidden("This bundle has a list of people, which only an administrator imports.")
    if text is not None:
        people, mistakes = read_people(text)
        imports.refuse(mistakes)
        people = [replace(one, lab=one.lab or group) for one in people]
        told = imports.write(
            work.session, work.bells, people, work.person, work.process, links=False, now=work.now
        )
        action = "add" if told.added else "change" if told.changed or told.labs else "same"
        what = f"{told.added} added, {told.changed} changed, {told.same} as they are."
        work.did("people", group, action, what)
    row = work.session.scalars(select(Lab).where(Lab.name == group)).one_or_none()
    if row is None:
        if not is_admin:
            raise Forbidden(f"There is no lab {group}, and only an administrator makes one.")
        work.session.add(Lab(id=new_id(IdKind.LAB), name=group, created_at=work.now))
        work.session.flush()
    if known is None:
        work.did("group", group, "add", "New.")
    else:
        work.did("group", group, "same", "It exists; its members stay.")


def _policy(work: Application) -> None:
    """Put the policy into force, as a version that has this text or as the next one."""
    path, text = work.bundle.course.policy, work.bundle.policy
    if path is None or text is None:
        return
    try:
        policy = load(text.replace(VERSION, "1"))
        policy_id = policy.policy.id
        rows = work.session.scalars(
            select(AppliedPolicy).where(AppliedPolicy.policy_id == policy_id)
        ).all()
        newest = max((row.version for row in rows), default=0)
        whole = text.replace(VERSION, str(newest + 1))
        for row in rows:
            same = text.replace(VERSION, str(row.version))
            if fingerprint(same) == row.sha256:
                if row.active:
                    work.did("policy", policy_id, "same", f"Version {row.version} is in force.")
                    return
                whole = same
        policy = load(whole)
    except BadPolicy as error:
        raise _invalid(
            [
                Flaw(f"{path}: {one.param}", one.code, f"{path}: {one.message}")
                for one in error.flaws
            ]
        ) from error
    told = policy_versions.apply(
        work.session, work.bells, whole, work.person, policy=policy, now=work.now
    )
    sentences = [*told.changes, *(f"Please check: {one}" for one in told.advice)]
    if told.num_refused:
        sentences.append(f"{told.num_refused} future leases would not have been granted.")
    action = "add" if told.replaces is None else "change"
    work.did("policy", told.id, action, f"Version {told.version}. {' '.join(sentences)}")


def _templates(work: Application) -> dict[str, str]:
    """Keep the templates; map name -> id."""
    found = {}
    for template, folder in work.bundle.templates:
        sha256 = None if folder is None else work.asked.code.get(folder)
        spec = with_code(qualified(template.spec, work.person.name), sha256)
        wanted = template.model_copy(update={"spec": spec})
        if not work.uploads:
            templates.require_valid(wanted)
        row = templates.keep(work.session, work.person.id, wanted, now=work.now)
        action = "same" if row.changed_at != work.now else "add" if row.version == 1 else "change"
        work.did("template", template.name, action, f"{template.kind}, version {row.version}.")
        work.session.flush()
        work.handed_out.append((SharedKind.TEMPLATE, row.id))
        found[template.name] = row.id
    return found


def _share(work: Application) -> None:
    """Share all that is handed out with the group."""
    group = work.bundle.course.group
    new = [
        grant(work.session, work.person, kind, thing, AudienceKind.GROUP, group, now=work.now)[1]
        for kind, thing in work.handed_out
    ]
    what = f"{len(new)} things can be read by {group}; {sum(new)} of them could not before."
    work.did("shares", group, "add" if any(new) else "same", what)


def _keep_course(work: Application, row: Course | None) -> Course:
    told, bundle = work.bundle.course, work.bundle
    values = {
        "title": told.title,
        "zone": told.zone,
        "group": told.group,
        "first_day": str(bundle.first_day),
        "texts": {path: text for path, text in work.asked.texts.items() if path != told.people},
    }
    if row is None:
        row = Course(
            id=new_id(IdKind.COURSE),
            owner_id=work.person.id,
            name=told.name,
            applied_at=work.now,
            **values,
        )
        work.session.add(row)
        work.did("course", told.name, "add", f"Its first day is {bundle.first_day}.")
    elif changes := [name for name, value in values.items() if getattr(row, name) != value]:
        for name, value in values.items():
            setattr(row, name, value)
        row.applied_at = work.now
        changed = ", ".join(name.replace("_", " ") for name in changes)
        work.did("course", told.name, "change", f"Changed: {changed}.")
    else:
        work.did("course", told.name, "same", f"Its first day is {bundle.first_day}.")
    work.session.flush()
    return row


def _exercises(work: Application, course: Course, template_ids: Mapping[str, str]) -> None:
    """Make and change the exercises; those that the bundle no longer has go, if nothing was handed
    in."""
    rows = {
        row.name: row
        for row in work.session.scalars(select(Exercise).where(Exercise.course_id == course.id))
    }
    bundle = work.bundle
    for position, told in enumerate(bundle.course.exercises):
        values = {
            "position": position,
            "title": told.title,
            "notes": dated(bundle.notes[told.name], bundle.first_day),
            "template_id": template_ids[told.template],
            "opens_at": told.opens.on(bundle.first_day, bundle.zone),
            "due_at": told.due.on(bundle.first_day, bundle.zone),
            "hours": told.hours,
        }
        row = rows.pop(told.name, None)
        what = f"From {values['opens_at']:%Y-%m-%d %H:%M} to {values['due_at']:%Y-%m-%d %H:%M}."
        if row is None:
            row = Exercise(
                id=new_id(IdKind.EXERCISE), course_id=course.id, name=told.name, **values
            )
            work.session.add(row)
            work.did("exercise", told.name, "add", what)
        elif any(getattr(row, name) != value for name, value in values.items()):
            for name, value in values.items():
                setattr(row, name, value)
            work.did("exercise", told.name, "change", what)
        else:
            work.did("exercise", told.name, "same", what)
    for row in rows.values():
        handed_in = work.session.scalar(
            select(func.count()).select_from(HandIn).where(HandIn.exercise_id == row.id)
        )
        if handed_in:
            work.did("exercise", row.name, "same", f"It stays: {handed_in} were handed in.")
        else:
            work.session.delete(row)
            work.did("exercise", row.name, "change", "It goes: the bundle no longer has it.")
    work.session.flush()


def _paths(asked: NewCourse) -> Iterator[str]:
    yield from asked.texts
    yield from asked.files


def _missing(path: str, kind: str) -> Flaw:
    return Flaw(path, "missing_file", f"{path}: {MAIN} names this {kind}, but the bundle has none.")


def _invalid(found: list[Flaw]) -> InvalidRequest:
    return InvalidRequest(
        [ProblemItem(param=one.param, code=one.code, message=one.message) for one in found],
        code="bad_bundle",
    )
