"""A course from a folder: said first, then done as a whole, or nothing of it."""

from collections import Counter
from datetime import date
from pathlib import Path

import pytest
from sqlalchemy import func, select

from core.tables.base import Base
from tests.api.conftest import World
from tests.api.courses.bundle import sdk, write_bundle
from trainyard import Conflict, Forbidden, Invalid, TrainyardError
from trainyard.views import CoursePlan

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)

FIRST = date(2027, 1, 25)
NEXT_YEAR = date(2028, 1, 24)


def rows(world: World) -> dict[str, int]:
    """Number of rows of every table that a person can see something of."""
    hidden = {"idempotent_answers", "tokens"}
    with world.database.read() as session:
        return {
            name: session.scalar(select(func.count()).select_from(table)) or 0
            for name, table in Base.metadata.tables.items()
            if name not in hidden
        }


def actions(plan: CoursePlan) -> Counter[str]:
    return Counter(step.action for step in plan.steps)


def test_a_dry_run_says_what_the_run_does_and_changes_nothing(world: World, tmp_path: Path) -> None:
    folder, before = write_bundle(tmp_path), rows(world)
    with sdk(world, "ada") as ada:
        plan = ada.courses.plan(folder, FIRST)
        assert not plan.applied
        assert {(one.kind, one.name) for one in plan.uploads} == {
            ("dataset", "corpus"),
            ("model", "tiny"),
            ("code", "code/program"),
        }
        assert rows(world) == before
        done = ada.courses.apply(folder, FIRST)
        assert done.applied
        said = {step.kind: step.what for step in done.steps}
        assert said["people"] == "2 added, 0 changed, 0 as they are."
        course = ada.courses.get("ml-lab")
        assert [one.name for one in course.exercises] == ["two", "own"]
        assert course.exercises[0].due_at.isoformat() == "2027-02-02T04:59:00+00:00"
        assert ada.policies.get("ml-lab").version == 1
        again = rows(world)

        # The same once more is nothing at all, said and done.
        assert actions(ada.courses.plan(folder, FIRST)) == {"same": len(done.steps)}
        assert actions(ada.courses.apply(folder, FIRST)) == {"same": len(done.steps)}
        kept = {name: count for name, count in rows(world).items() if name != "audit"}
        assert kept == {name: count for name, count in again.items() if name != "audit"}

        # Next year is another first day.
        later = ada.courses.apply(folder, NEXT_YEAR)
        changed = {(step.kind, step.name) for step in later.steps if step.action == "change"}
        assert changed == {
            ("policy", "ml-lab"),
            ("course", "ml-lab"),
            ("exercise", "two"),
            ("exercise", "own"),
        }
        assert ada.policies.get("ml-lab").version == 2
        assert ada.courses.get("ml-lab").exercises[0].due_at.year == 2028


def test_students_read_what_is_handed_out_and_others_do_not(world: World, tmp_path: Path) -> None:
    with sdk(world, "ada") as ada:
        ada.courses.apply(write_bundle(tmp_path), FIRST)
    added = world.admin.post("/v1/labs/ml-students/members", json={"user": "bob"})
    assert added.is_success
    with sdk(world, "bob") as bob, sdk(world, "ann") as ann:
        assert [one.name for one in bob.courses.list()] == ["ml-lab"]
        assert {one.name for one in bob.templates.list()} == {"two", "program"}
        assert bob.models.get("ada/tiny").owner == "ada"
        made = bob.templates.start("ada/program")
        assert made.job is not None
        assert bob.jobs.get(made.job).inputs[0].path == "/job/inputs/tiny"
        assert list(ann.courses.list()) == []
        assert list(ann.templates.list()) == []
        with pytest.raises(Forbidden):
            bob.courses.texts("ml-lab")
        with pytest.raises(Forbidden):
            bob.courses.delete("ml-lab")


@pytest.mark.parametrize(
    ("path", "old", "new", "words"),
    [
        ("notes/two.md", None, None, "notes/two.md: the bundle has no such file"),
        ("data/corpus.txt", None, None, "data/corpus.txt: course.yaml names this file"),
        ("templates/two.yaml", '"two"', '"Two Runs"', "templates/two.yaml: name"),
        ("templates/two.yaml", "{", "", "templates/two.yaml: "),
        ("course.yaml", "format: 1", "format: 2", "format is 2; this server reads format 1"),
        ("course.yaml", "due: day 8", "due: day 0", "write day and time as `day 8 23:59`"),
        ("course.yaml", "due: day 8 23:59", "due: day 1 08:00", "two is due before it opens"),
        ("course.yaml", "template: program", "template: other", "starts the template other"),
        ("course.yaml", "group: ml-students", "groups: [a]", "this field does not exist"),
        ("policy.yaml", "nodes: [box]", "nodes: 7", "policy.yaml: "),
        ("people.csv", "sam,", "Sam,", "'Sam' is not a valid name"),
        ("people.csv", "eve@", "sam@", "line 3"),
    ],
)
def test_a_torn_bundle_is_refused_with_its_file_and_leaves_nothing(
    world: World, tmp_path: Path, path: str, old: str | None, new: str | None, words: str
) -> None:
    folder = write_bundle(tmp_path)
    if old is None:
        (folder / path).unlink()
    else:
        text = (folder / path).read_text()
        assert old in text
        (folder / path).write_text(text.replace(old, str(new), 1))
    with sdk(world, "ada") as ada:
        before = rows(world)
        with pytest.raises(TrainyardError) as refused:
            ada.courses.plan(folder, FIRST)
        assert words in str(refused.value)
        with pytest.raises(TrainyardError):
            ada.courses.apply(folder, FIRST)
        assert rows(world) == before


def test_names_that_are_taken_are_said_and_nothing_is_half_done(
    world: World, tmp_path: Path
) -> None:
    folder = write_bundle(tmp_path)
    with sdk(world, "ada") as ada, sdk(world, "stefan") as stefan:
        (tmp_path / "other.txt").write_text("another text altogether\n")
        ada.datasets.upload(tmp_path / "other.txt", "corpus")
        (tmp_path / "other.txt").unlink()
        before = rows(world)
        with pytest.raises(Invalid, match="already have a dataset corpus with other content"):
            ada.courses.apply(folder, FIRST)
        assert rows(world) == before
        ada.datasets.delete("corpus")
        ada.courses.apply(folder, FIRST)
        with pytest.raises(Conflict, match="already is a course ml-lab"):
            stefan.courses.plan(folder, FIRST)
        course = (folder / "course.yaml").read_text()
        (folder / "course.yaml").write_text(course.replace("name: ml-lab", "name: other-lab", 1))
        with pytest.raises(Forbidden, match="list of people"):
            stefan.courses.apply(folder, FIRST)
    with sdk(world, "ann") as ann, pytest.raises(Forbidden):
        ann.courses.plan(folder, FIRST)


def test_an_export_applies_to_the_same(world: World, tmp_path: Path) -> None:
    folder = write_bundle(tmp_path / "first")
    with sdk(world, "ada") as ada:
        ada.courses.apply(folder, FIRST)
        texts = ada.courses.texts("ml-lab").texts
        assert "people.csv" not in texts
        copy = tmp_path / "copy"
        for path, text in texts.items():
            (copy / path).parent.mkdir(parents=True, exist_ok=True)
            (copy / path).write_text(text)
        course = (copy / "course.yaml").read_text()
        (copy / "course.yaml").write_text(course.replace("people: people.csv\n", ""))
        (copy / "code/program").mkdir(parents=True)
        (copy / "code/program/main.py").write_text("print('hello')\n")
        plan = ada.courses.plan(copy, FIRST)
        assert not plan.uploads
        assert {step.name for step in plan.steps if step.action != "same"} == {"ml-lab"}
        ada.courses.delete("ml-lab")
        assert list(ada.courses.list()) == []
        assert ada.courses.apply(copy, FIRST).applied
