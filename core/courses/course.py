"""A course as one bundle: `course.yaml` and the files that it names. Pure.

Dates are relative to the first day, so that next year's course is a new first day: an exercise is
due on `day 8 23:59`, and the policy has `${day 1}` where a date stands.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from typing import Annotated, Literal, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from core.base.errors import BadRequest
from core.base.strict_text import BadText, Flaw, SpecText, flaws, parse_yaml
from core.spec.spec import NAME
from core.spec.template import TemplateSpec

FORMAT = 1
MAIN = "course.yaml"
LONGEST_DAYS = 400
DATE = re.compile(r"\$\{day (\d{1,3})\}")
VERSION = "${version}"
DAY = re.compile(r"day (\d{1,3}) ([01]\d|2[0-3]):([0-5]\d)")
PART = r"[A-Za-z0-9][A-Za-z0-9._ -]{0,95}"

PlainName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
BundlePath = Annotated[str, Field(pattern=rf"^{PART}(/{PART}){{0,5}}$", max_length=300)]


@dataclass(frozen=True)
class CourseMoment:
    """A time of day on a day of the course, the first one being day 1."""

    day: int
    at: time

    def on(self, first_day: date, zone: ZoneInfo) -> datetime:
        """Return the moment in a course that begins on this day."""
        return datetime.combine(first_day + timedelta(days=self.day - 1), self.at, tzinfo=zone)


def _course_moment(value: object) -> object:
    if not isinstance(value, str):
        return value
    found = DAY.fullmatch(value)
    if found is None or not 1 <= int(found[1]) <= LONGEST_DAYS:
        raise ValueError(f"{value!r}: write day and time as `day 8 23:59`, day 1 being the first")
    return CourseMoment(int(found[1]), time(int(found[2]), int(found[3])))


def _known_zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError) as error:
        raise ValueError(f"{name!r} is not a known time zone, such as America/New_York") from error
    return name


Moment = Annotated[CourseMoment, BeforeValidator(_course_moment)]


class CoursePart(BaseModel):
    """Base of the parts of a course; unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)


class CourseDataset(CoursePart):
    """A dataset that the course hands out."""

    name: PlainName
    file: BundlePath
    format: Literal["text", "jsonl", "npz", "parquet", "arrow"] = "text"


class CourseModel(CoursePart):
    """A Hugging Face model that the course hands out."""

    name: PlainName
    folder: BundlePath


class CourseTemplate(CoursePart):
    """A job, script or agenda that the course hands out."""

    file: BundlePath
    """A template as `trainyard templates add` takes it."""
    code: BundlePath | None = None
    """Folder of the code of its scripts."""


class Exercise(CoursePart):
    """Work that a student books, starts and hands in."""

    name: PlainName
    title: Annotated[str, Field(min_length=1, max_length=200)]
    notes: BundlePath
    """Markdown."""
    template: PlainName
    """Name of the template that the student starts."""
    opens: Moment
    due: Moment
    hours: Annotated[int, Field(ge=1, le=24)] = 3
    """Length of the block that it needs."""


class Course(CoursePart):
    """A course: people, rules, things that are handed out, exercises."""

    format: int
    """Version of this format."""
    name: PlainName
    title: Annotated[str, Field(min_length=1, max_length=200)]
    zone: Annotated[str, AfterValidator(_known_zone)] = "UTC"
    group: Annotated[str, Field(pattern=NAME)]
    """Lab of the students, made if there is none; all things of the course are shared with it."""
    people: BundlePath | None = None
    """List of people as CSV, as `trainyard admin import` takes it."""
    policy: BundlePath | None = None
    """Booking policy; `${day N}` in it is the date of that day, `${version}` the next version."""
    datasets: Annotated[tuple[CourseDataset, ...], Field(max_length=50)] = ()
    models: Annotated[tuple[CourseModel, ...], Field(max_length=50)] = ()
    templates: Annotated[tuple[CourseTemplate, ...], Field(max_length=50)] = ()
    exercises: Annotated[tuple[Exercise, ...], Field(max_length=50)] = ()

    @model_validator(mode="before")
    @classmethod
    def _is_known_format(cls, value: object) -> object:
        told = value.get("format") if isinstance(value, dict) else None
        if told is not None and told != FORMAT:
            raise ValueError(f"format is {told}; this server reads format {FORMAT}")
        return value

    @model_validator(mode="after")
    def _has_distinct_names(self) -> Self:
        for kind in ("datasets", "models", "exercises"):
            names = [one.name for one in getattr(self, kind)]
            twice = next((name for name in names if names.count(name) > 1), None)
            if twice is not None:
                raise ValueError(f"{kind}: {twice} is there twice")
        late = next((one for one in self.exercises if _order(one.opens) >= _order(one.due)), None)
        if late is not None:
            raise ValueError(f"exercises: {late.name} is due before it opens")
        return self


@dataclass(frozen=True)
class Bundle:
    """A course with the texts of its files."""

    course: Course
    first_day: date
    policy: str | None
    """Text of the policy, its dates filled in, its version not."""
    people: str | None
    templates: tuple[tuple[TemplateSpec, str | None], ...]
    """Each template, and the folder of its code."""
    notes: Mapping[str, str]
    """Markdown of each exercise, by its name."""

    @property
    def zone(self) -> ZoneInfo:
        return ZoneInfo(self.course.zone)


class BadBundle(BadRequest):
    """A bundle that cannot be applied; `flaws` says which file of it is wrong, and why."""

    code = "bad_bundle"
    title = "Bad bundle"

    def __init__(self, found: list[Flaw]) -> None:
        more = f" ({len(found) - 1} more below.)" if len(found) > 1 else ""
        super().__init__(f"{found[0].message}{more}", param=found[0].param)
        self.flaws = found


def read_bundle(texts: Mapping[str, str], first_day: date) -> Bundle:
    """Return the course that the texts of a bundle describe.

    Raises BadBundle with every file that is missing, cannot be read or contradicts the others.
    """
    course = _course(texts)
    found = [*_missing(course, texts)]
    templates = []
    for one in course.templates:
        text = texts.get(one.file)
        if text is not None:
            try:
                templates.append((_template(text), one.code))
            except _Unreadable as error:
                found += [_in_file(one.file, flaw) for flaw in error.flaws]
    names = [template.name for template, _ in templates]
    for exercise in course.exercises:
        if not found and exercise.template not in names:
            there = ", ".join(names) or "none"
            found.append(
                Flaw(
                    MAIN,
                    "unknown_template",
                    f"{MAIN}: exercise {exercise.name} starts the template {exercise.template}; "
                    f"the bundle has {there}.",
                )
            )
    if found:
        raise BadBundle(found)
    return Bundle(
        course=course,
        first_day=first_day,
        policy=None if course.policy is None else dated(texts[course.policy], first_day),
        people=None if course.people is None else texts[course.people],
        templates=tuple(templates),
        notes={one.name: texts[one.notes] for one in course.exercises},
    )


def dated(text: str, first_day: date) -> str:
    """Return a text with the date of each `${day N}`."""
    return DATE.sub(lambda found: str(first_day + timedelta(days=int(found[1]) - 1)), text)


def _course(texts: Mapping[str, str]) -> Course:
    if MAIN not in texts:
        raise BadBundle([_missing_file(MAIN)])
    try:
        read = parse_yaml(texts[MAIN], quoted_clocks=True)
        return Course.model_validate(read.value)
    except BadText as error:
        raise BadBundle([_in_file(MAIN, Flaw(MAIN, error.code, error.message))]) from error
    except ValidationError as error:
        told = flaws(error.errors(include_url=False), lines=read.lines)
        raise BadBundle([_in_file(MAIN, flaw) for flaw in told]) from error


def _missing(course: Course, texts: Mapping[str, str]) -> Iterator[Flaw]:
    named = [course.people, course.policy, *(one.file for one in course.templates)]
    named += [one.notes for one in course.exercises]
    for path in dict.fromkeys(named):
        if path is not None and path not in texts:
            yield _missing_file(path)


def _missing_file(path: str) -> Flaw:
    return Flaw(path, "missing_file", f"{path}: the bundle has no such file.")


class _Unreadable(Exception):
    def __init__(self, found: list[Flaw]) -> None:
        super().__init__()
        self.flaws = found


def _template(text: str) -> TemplateSpec:
    read: SpecText | None = None
    try:
        read = parse_yaml(text)
        return TemplateSpec.model_validate(read.value)
    except BadText as error:
        raise _Unreadable([Flaw("", error.code, error.message)]) from error
    except ValidationError as error:
        lines = None if read is None else read.lines
        raise _Unreadable(flaws(error.errors(include_url=False), lines=lines)) from error


def _in_file(path: str, flaw: Flaw) -> Flaw:
    param = path if flaw.param in ("", path) else f"{path}: {flaw.param}"
    return Flaw(param, flaw.code, f"{path}: {flaw.message}")


def _order(moment: CourseMoment) -> tuple[int, time]:
    return moment.day, moment.at
