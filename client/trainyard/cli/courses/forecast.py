"""`trainyard course forecast`: will the hours be enough, and who gets some?"""

from pathlib import Path
from typing import Annotated

import typer

from trainyard.cli.output import AsJson, print_json, print_table, say
from trainyard.cli.session import connect
from trainyard.errors import BadInput
from trainyard.views import CourseForecast, NodeLoad
from trainyard.wording import counted, moment

SHOWN = 20  # students, those with the least chance


def forecast(
    course: Annotated[str | None, typer.Argument(help="Name or id of the course.")] = None,
    exercise: Annotated[str | None, typer.Argument(help="Name of the exercise.")] = None,
    policy: Annotated[
        Path | None, typer.Option(help="A policy that need not be in force, in place of a course.")
    ] = None,
    students: Annotated[int | None, typer.Option(help="Size of the cohort.")] = None,
    days: Annotated[float | None, typer.Option(help="Days left until the last block ends.")] = None,
    nodes: Annotated[
        list[str] | None,
        typer.Option(metavar="POOL=N", help="Number of nodes of a pool; may be repeated."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Simulate how the students book: will the hours be enough, and who gets some? For staff.

    With the real roster, rules and bookings, or with other students, days or nodes.
    """
    counts = dict(_count(one) for one in nodes or ())
    with connect() as client:
        if policy is not None and course is None and students is not None:
            found = client.courses.forecast_policy(
                _text(policy), students, days_left=days, nodes=counts
            )
        elif policy is None and course is not None and exercise is not None:
            found = client.courses.forecast(
                course, exercise, days_left=days, students=students, nodes=counts
            )
        else:
            raise BadInput("Name COURSE and EXERCISE, or give --policy FILE and --students N.")
    if as_json:
        print_json(found.raw)
    else:
        _tell(found)


def _tell(found: CourseForecast) -> None:
    say(found.message)
    say(f"Each needs {', or '.join(found.needs)}, until {moment(found.deadline)}.")
    say(
        f"All: {found.whole:.1%}. Some: {found.part:.1%}. Nothing: {found.nothing:.1%}. "
        f"{counted(found.have_all, 'student')} of {found.students} have booked everything."
    )
    print_table(
        ["node", "hours by day", "booked", ""],
        [
            (one.node, f"{one.hours:.0f}", f"{one.booked_hours:.0f}", _share(one))
            for one in found.nodes
        ],
        empty="No nodes.",
        right=["hours by day", "booked", ""],
    )
    print_table(
        ["days left when they come", "students", "get all"],
        [(one.days_left, f"{one.students:.1f}", f"{one.served:.0%}") for one in found.arrivals],
        empty="Nobody has anything left to book.",
        right=["days left when they come", "students", "get all"],
    )
    in_doubt = [one for one in found.prospects if not one.has_all]
    if in_doubt:
        print_table(
            ["student", "chance of all", "of some"],
            [(one.user, f"{one.whole:.0%}", f"{one.part:.0%}") for one in in_doubt[:SHOWN]],
            empty="",
            right=["chance of all", "of some"],
        )
    if len(in_doubt) > SHOWN:
        say(f"{len(in_doubt) - SHOWN} more have no smaller chance.")


def _share(node: NodeLoad) -> str:
    return f"{node.booked_hours / node.hours:.0%}" if node.hours else "-"


def _count(text: str) -> tuple[str, int]:
    pool, _, count = text.partition("=")
    if not pool or not count.isdigit():
        raise BadInput(f"--nodes {text}: write POOL=N, such as long=2.")
    return pool, int(count)


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: {error}") from error
