"""`client.courses`: courses as bundles, applied from a folder."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from hashlib import file_digest, sha256
from pathlib import Path

from trainyard.errors import BadInput
from trainyard.packing import pack
from trainyard.resources.code_archives import CodeArchives
from trainyard.resources.datasets import Datasets, Format
from trainyard.resources.models import Models
from trainyard.transport.connection import Connection, segment
from trainyard.transport.decoding import decode
from trainyard.transport.paging import all_pages
from trainyard.views import (
    Course,
    CourseForecast,
    CoursePlan,
    CourseTexts,
    CourseUpload,
    MyExercise,
    Standing,
    StudentResult,
)

MAIN = "course.yaml"
TEXTS = (".yaml", ".yml", ".md", ".csv")
MOST_FILES = 5000
FORMATS: dict[str, Format] = {
    "text": "text",
    "jsonl": "jsonl",
    "npz": "npz",
    "parquet": "parquet",
    "arrow": "arrow",
}


@dataclass(frozen=True)
class Folder:
    """A bundle on the disk."""

    root: Path
    texts: dict[str, str]
    files: dict[str, str]
    """SHA-256 of every other file, by path."""


class Courses:
    """Courses of the signed-in user."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def list(self) -> Iterator[Course]:
        """Iterate over the courses that you are in; staff see all."""
        return all_pages(self._connection, "/v1/courses", Course)

    def get(self, course: str) -> Course:
        """Return a course by id or name."""
        return decode(Course, self._connection.get(f"/v1/courses/{segment(course)}"))

    def plan(self, folder: str | Path, first_day: date) -> CoursePlan:
        """Return what a bundle would do. Nothing is uploaded or changed."""
        return self._plan(read_folder(folder), first_day)[0]

    def apply(self, folder: str | Path, first_day: date) -> CoursePlan:
        """Upload the datasets, models and code that are not there yet, then apply the bundle.

        The application is one transaction; uploads stay if it is refused, and are found again.
        """
        bundle = read_folder(folder)
        plan, code = self._plan(bundle, first_day)
        for needed in plan.uploads:
            self._upload(bundle.root / needed.path, needed)
        return self._apply(bundle, first_day, code, dry_run=False)

    def texts(self, course: str) -> CourseTexts:
        """Return the texts of a course's bundle, without the list of people."""
        return decode(CourseTexts, self._connection.get(f"/v1/courses/{segment(course)}/bundle"))

    def delete(self, course: str) -> None:
        """Delete a course for which nothing was handed in."""
        self._connection.delete(f"/v1/courses/{segment(course)}")

    def exercise(self, course: str, exercise: str) -> MyExercise:
        """Return an exercise with its notes and your progress."""
        return decode(MyExercise, self._connection.get(_exercise(course, exercise)))

    def hand_in(self, course: str, exercise: str, report: str | None = None) -> MyExercise:
        """Hand in a report of yours, by default one of what you started last."""
        body = {"report": report}
        path = f"{_exercise(course, exercise)}/hand-in"
        return decode(MyExercise, self._connection.post(path, body, keyed=False))

    def roster(self, course: str, exercise: str) -> Iterator[Standing]:
        """Iterate over the students of an exercise with their progress. For staff."""
        return all_pages(self._connection, f"{_exercise(course, exercise)}/roster", Standing)

    def results(self, course: str, exercise: str) -> Iterator[StudentResult]:
        """Iterate over the results of the students, from their reports. For staff."""
        return all_pages(self._connection, f"{_exercise(course, exercise)}/results", StudentResult)

    def forecast(
        self,
        course: str,
        exercise: str,
        *,
        days_left: float | None = None,
        students: int | None = None,
        nodes: Mapping[str, int] | None = None,
    ) -> CourseForecast:
        """Return whether the hours will be enough for an exercise, and who gets some. For staff.

        What is given replaces what is there: days until the deadline, students, nodes by pool.
        """
        answer = self._connection.get(
            f"{_exercise(course, exercise)}/forecast",
            days_left=days_left,
            students=students,
            nodes=",".join(f"{pool}={count}" for pool, count in (nodes or {}).items()) or None,
        )
        return decode(CourseForecast, answer)

    def forecast_policy(
        self,
        document: str,
        students: int,
        *,
        days_left: float | None = None,
        nodes: Mapping[str, int] | None = None,
        hours: int = 3,
    ) -> CourseForecast:
        """Return the same for a policy (YAML) that need not be in force, and so many students, from
        its first window on."""
        body = {
            "policy": document,
            "students": students,
            "days_left": days_left,
            "nodes": dict(nodes or {}),
            "hours": hours,
        }
        answer = self._connection.post("/v1/policies/forecast", body, keyed=False)
        return decode(CourseForecast, answer)

    def _apply(
        self, bundle: Folder, first_day: date, code: dict[str, str], *, dry_run: bool
    ) -> CoursePlan:
        body = {
            "first_day": first_day.isoformat(),
            "texts": bundle.texts,
            "files": bundle.files,
            "code": code,
            "dry_run": dry_run,
        }
        return decode(CoursePlan, self._connection.post("/v1/courses", body, keyed=False))

    def _plan(self, bundle: Folder, first_day: date) -> tuple[CoursePlan, dict[str, str]]:
        """Return the plan of a bundle, and the hash of each folder of code, packed."""
        plan = self._apply(bundle, first_day, {}, dry_run=True)
        folders = [one.path for one in plan.uploads if one.kind == "code"]
        code = {path: sha256(pack(bundle.root / path).content).hexdigest() for path in folders}
        if code:
            plan = self._apply(bundle, first_day, code, dry_run=True)
        return plan, code

    def _upload(self, path: Path, needed: CourseUpload) -> None:
        if needed.kind == "code":
            CodeArchives(self._connection).upload(pack(path))
        elif needed.kind == "model":
            Models(self._connection).upload(path, needed.name)
        else:
            Datasets(self._connection).upload(path, needed.name, FORMATS[needed.format or "text"])


def _exercise(course: str, exercise: str) -> str:
    return f"/v1/courses/{segment(course)}/exercises/{segment(exercise)}"


def read_folder(folder: str | Path) -> Folder:
    """Return the texts of a bundle, and the hashes of its other files. Raises BadInput."""
    root = Path(folder)
    if not (root / MAIN).is_file():
        raise BadInput(f"{root} has no {MAIN}: it is not the folder of a course.")
    found = sorted(
        path for path in root.rglob("*") if path.is_file() and not _is_hidden(path, root)
    )
    if len(found) > MOST_FILES:
        raise BadInput(f"{root} has {len(found):,} files; a bundle has at most {MOST_FILES:,}.")
    texts: dict[str, str] = {}
    files: dict[str, str] = {}
    for path in found:
        name = path.relative_to(root).as_posix()
        try:
            if path.suffix in TEXTS:
                texts[name] = path.read_text("utf-8")
            else:
                with path.open("rb") as content:
                    files[name] = file_digest(content, "sha256").hexdigest()
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput(f"{path}: {error}") from error
    return Folder(root, texts, files)


def _is_hidden(path: Path, root: Path) -> bool:
    return any(
        part.startswith(".") or part == "__pycache__" for part in path.relative_to(root).parts
    )
