"""`trainyard course`: a course as one bundle."""

import json
from datetime import date, datetime
from pathlib import Path
from typing import Annotated

import typer

from trainyard.cli.courses.forecast import forecast
from trainyard.cli.output import AsJson, print_answer, print_json, print_list, say
from trainyard.cli.session import connect
from trainyard.errors import BadInput
from trainyard.views import CoursePlan
from trainyard.wording import counted, moment

ExerciseName = Annotated[str, typer.Argument(metavar="EXERCISE", help="Name of the exercise.")]

app = typer.Typer(no_args_is_help=True, help="Courses as bundles: people, rules, data, exercises.")
CourseName = Annotated[str, typer.Argument(metavar="COURSE", help="Name or id of the course.")]


@app.command("apply")
def apply(
    folder: Annotated[Path, typer.Argument(help="Folder with course.yaml and what it names.")],
    first_day: Annotated[
        datetime, typer.Option("--first-day", formats=["%Y-%m-%d"], help="Date of day 1.")
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would happen.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make all that a bundle describes, all or nothing. The same again changes nothing.

    Next year: the same folder with another first day.
    """
    day: date = first_day.date()
    with connect() as client:
        ask = client.courses.plan if dry_run else client.courses.apply
        plan = ask(folder, day)
    if as_json:
        print_json(plan.raw)
        return
    _tell(plan, dry_run=dry_run)


@app.command("export")
def export(
    course: CourseName,
    folder: Annotated[Path, typer.Argument(help="New folder to write.")],
    as_json: AsJson = False,
) -> None:
    """Write the texts of a course's bundle. The list of people, data, models and code are not in
    it; what is on the server already is found there."""
    with connect() as client:
        found = client.courses.texts(course)
    if folder.exists() and any(folder.iterdir()):
        raise BadInput(f"{folder} is not empty. Name a new folder.")
    for path, text in found.texts.items():
        target = folder / path
        if not target.resolve().is_relative_to(folder.resolve()):
            raise BadInput(f"{path} would lie outside {folder}.")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, "utf-8")
    written = {"course": found.name, "files": sorted(found.texts)}
    told = f"Wrote {counted(len(found.texts), 'file')} of {found.name} to {folder}."
    print_answer(written, told, as_json=as_json)


@app.command("list")
def list_courses(as_json: AsJson = False) -> None:
    """List the courses that you are in."""
    with connect() as client:
        courses = list(client.courses.list())
    print_list(
        courses,
        ["name", "title", "group", "first day", "exercises"],
        lambda one: (
            one.name,
            one.title,
            one.group,
            str(one.first_day),
            ", ".join(f"{each.name} (due {moment(each.due_at)})" for each in one.exercises),
        ),
        empty="No courses.",
        as_json=as_json,
    )


@app.command("delete")
def delete(course: CourseName, as_json: AsJson = False) -> None:
    """Delete a course for which nothing was handed in."""
    with connect() as client:
        client.courses.delete(course)
    print_answer({"course": course, "deleted": True}, f"Deleted {course}.", as_json=as_json)


@app.command("exercise")
def exercise(course: CourseName, name: ExerciseName, as_json: AsJson = False) -> None:
    """Show an exercise: its notes, your progress, and the next step."""
    with connect() as client:
        found = client.courses.exercise(course, name)
    if as_json:
        print_json(found.raw)
        return
    standing = found.standing
    say(f"{found.exercise.title}: due {moment(found.exercise.due_at)}.")
    say(found.notes.rstrip())
    done = f"{standing.succeeded} of {standing.expected} jobs succeeded"
    say(f"Next: {standing.next.replace('_', ' ')}. {done}, {standing.failed} failed.")
    if standing.report is not None:
        say(f"Handed in {moment(standing.handed_in_at)}{' (late)' if standing.late else ''}.")


@app.command("hand-in")
def hand_in(
    course: CourseName,
    name: ExerciseName,
    report: Annotated[
        str | None, typer.Option(help="Hash of a report of yours; by default a new one.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Hand in a report of what you started last. A later one takes its place."""
    with connect() as client:
        found = client.courses.hand_in(course, name, report)
    if as_json:
        print_json(found.raw)
        return
    late = ", after it was due" if found.standing.late else ""
    say(f"Handed in {found.exercise.title}{late}: report {found.standing.report}.")


@app.command("roster")
def roster(course: CourseName, name: ExerciseName, as_json: AsJson = False) -> None:
    """List the students of an exercise with what they booked, started and handed in. For staff."""
    with connect() as client:
        lines = list(client.courses.roster(course, name))
    print_list(
        lines,
        ["student", "next", "booked", "started", "jobs", "failed", "handed in", "left"],
        lambda one: (
            one.user,
            one.next.replace("_", " "),
            moment(one.booked_from),
            moment(one.started_at),
            f"{one.succeeded}/{one.expected}",
            str(one.failed),
            moment(one.handed_in_at) + (" late" if one.late else ""),
            "; ".join(one.left),
        ),
        empty="No students.",
        right=["jobs", "failed"],
        as_json=as_json,
    )


@app.command("results")
def results(
    course: CourseName,
    name: ExerciseName,
    folder: Annotated[Path, typer.Argument(help="New folder for STUDENT/results.json.")],
    as_json: AsJson = False,
) -> None:
    """Check every report, and write a results.json of each student for Gradescope. For staff."""
    with connect() as client:
        found = list(client.courses.results(course, name))
    if folder.exists() and any(folder.iterdir()):
        raise BadInput(f"{folder} is not empty. Name a new folder.")
    for one in found:
        target = folder / one.user / "results.json"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(one.results, indent=2), "utf-8")
    written = {one.user: one.results["score"] for one in found}
    told = f"Wrote the results of {counted(len(found), 'student')} to {folder}."
    print_answer(written, told, as_json=as_json)


app.command("forecast")(forecast)


def _tell(plan: CoursePlan, *, dry_run: bool) -> None:
    for step in plan.steps:
        say(f"{step.action:7} {step.kind} {step.name}: {step.what}")
    changed = sum(step.action != "same" for step in plan.steps)
    if dry_run:
        say(f"{counted(changed, 'step')} to do. Nothing was changed (dry run).")
    elif changed:
        say(f"Applied {plan.course}: {counted(changed, 'step')}.")
    else:
        say(f"{plan.course} is as the bundle says; nothing was changed.")
