"""Requests and answers about courses."""

from datetime import date
from typing import Annotated, Any, Literal

from pydantic import Field

from api.web.schemas import Body, Moment, View
from core.courses.grading import NextStep
from core.courses.what_if import MOST_DAYS, MOST_NODES, MOST_STUDENTS
from core.states import JobState

Path = Annotated[str, Field(max_length=300)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class NewCourse(Body):
    """A bundle: the texts of its folder, and the hashes of all that is too large for a request."""

    first_day: date
    """Day 1, in the zone of the course."""
    texts: dict[Path, Annotated[str, Field(max_length=500_000)]] = Field(max_length=300)
    """Content of `course.yaml` and of the texts that it names, by path."""
    files: dict[Path, Sha256] = Field(default_factory=dict, max_length=5000)
    """SHA-256 of every other file of the folder, by path."""
    code: dict[Path, Sha256] = Field(default_factory=dict, max_length=50)
    """SHA-256 of the uploaded archive of each folder of code, by path."""
    dry_run: bool = False
    """Say what would happen, and do nothing."""


class CourseStep(View):
    """One thing that a bundle makes or changes."""

    kind: str
    name: str
    action: Literal["add", "change", "same", "upload"]
    """`upload`: it must be uploaded before the bundle can be applied."""
    what: str


class CourseUpload(View):
    """A part of a bundle that must be uploaded first, by the routes for such things."""

    kind: Literal["dataset", "model", "code"]
    name: str
    """Name of the dataset or model; of code its folder."""
    path: str
    format: str | None
    """Format of a dataset; null otherwise."""


class CoursePlan(View):
    """Effects of a bundle: done, or those that it would have."""

    course: str
    first_day: date
    applied: bool
    """False for a dry run, and as long as something must be uploaded."""
    steps: list[CourseStep]
    uploads: list[CourseUpload]


class ExerciseView(View):
    """Work that a student books, starts and hands in."""

    name: str
    title: str
    template: str
    """Id of the template to start."""
    opens_at: Moment
    due_at: Moment
    hours: int
    """Length of the block that it needs."""


class CourseView(View):
    """A course."""

    id: str
    name: str
    title: str
    owner: str
    zone: str
    group: str
    first_day: date
    exercises: list[ExerciseView]
    applied_at: Moment


class CourseTexts(View):
    """Texts of a bundle as they were applied, without the list of people."""

    name: str
    texts: dict[str, str]


class ExerciseJob(View):
    """A job that a student started for an exercise."""

    job: str
    name: str
    state: JobState
    reason: str
    step: int
    steps: int


class StandingView(View):
    """Progress of one student in an exercise."""

    user: str
    next: NextStep
    lease: str | None
    """Booked lease: the one that runs or comes next, else the last in the time of the exercise."""
    booked_from: Moment | None
    booked_to: Moment | None
    started_at: Moment | None
    agenda: str | None
    """Id of the agenda that was started last; null if it was a job."""
    jobs: list[ExerciseJob]
    succeeded: int
    failed: int
    expected: int
    """Number of jobs that the exercise starts."""
    handed_in_at: Moment | None
    late: bool
    """True if it was handed in after the exercise was due."""
    report: str | None
    """Hash of the report that was handed in."""
    left: list[str]
    """Rest of the quotas, in words."""


class MyExercise(View):
    """An exercise with its notes, and one's own progress."""

    course: str
    exercise: ExerciseView
    notes: str
    """Markdown."""
    standing: StandingView


class NewHandIn(Body):
    """A report to hand in."""

    report: Annotated[str, Field(max_length=64)] | None = None
    """Hash of a report of yours; by default one is written of what you started last."""


class StudentResult(View):
    """Result of one student."""

    user: str
    email: str | None
    results: dict[str, Any]
    """A `results.json` as Gradescope's autograder reads it."""


PoolName = Annotated[str, Field(max_length=63)]
NumNodes = Annotated[int, Field(ge=0, le=MOST_NODES)]


class NewPolicyForecast(Body):
    """Forecast of a policy that need not be in force; it begins with its first window."""

    policy: Annotated[str, Field(max_length=500_000)]
    """The document, as YAML. Its nodes are taken to be there."""
    students: Annotated[int, Field(ge=1, le=MOST_STUDENTS)]
    days_left: Annotated[float, Field(gt=0, le=MOST_DAYS)] | None = None
    """Days from the first window's start to the end of the last block; by default the last window's
    end."""
    nodes: dict[PoolName, NumNodes] = Field(default_factory=dict, max_length=50)
    """Number of nodes by pool; by default as many as the policy names."""
    hours: Annotated[int, Field(ge=1, le=24)] = 3
    """Length of the block that each student needs, if the policy lists no alternatives."""


class ProspectView(View):
    """Chances of one student, from 0 to 1."""

    user: str
    has_all: bool
    """True if everything is booked already."""
    whole: float
    part: float


class ArrivalView(View):
    """Students who come to book so many days before the deadline."""

    days_left: int
    students: float
    served: float
    """Share of them who get all that they need."""


class NodeLoadView(View):
    """Hours of a node by day until the deadline, booked ones included."""

    node: str
    hours: float
    booked_hours: float


class ForecastPoolView(View):
    """A pool with the number of its nodes in a forecast."""

    pool: str
    title: str
    nodes: int


class CourseForecast(View):
    """Answer to the question whether the hours are enough: means of several simulations in which
    the students come and book."""

    policy: str
    begins: Moment
    deadline: Moment
    zone: str
    needs: list[str]
    """Needs of a student, in words: one of these."""
    students: int
    have_all: int
    """Students who have booked everything already."""
    whole: float
    """Share of the students who will have all that they need."""
    part: float
    """Share who will have some of it."""
    nothing: float
    hours: float
    """Node-hours by day until the deadline."""
    booked_hours: float
    """Node-hours of them that will be booked."""
    nodes: list[NodeLoadView]
    pools: list[ForecastPoolView]
    """The pools of the policy; `all` alone if it has none."""
    arrivals: list[ArrivalView]
    prospects: list[ProspectView]
    """The students who are there, least chance first."""
    message: str
