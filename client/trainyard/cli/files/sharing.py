"""`trainyard share`, `unshare` and `shares`."""

from enum import StrEnum
from typing import Annotated

import typer

from trainyard.cli.output import AsJson, print_json, print_list, say
from trainyard.cli.session import connect
from trainyard.errors import BadInput
from trainyard.views import Share
from trainyard.wording import moment


class Kind(StrEnum):
    """Kind of a thing that can be shared."""

    DATASET = "dataset"
    MODEL = "model"
    TOKENIZER = "tokenizer"
    TEMPLATE = "template"
    JOB = "job"
    AGENDA = "agenda"
    STUDY = "study"
    REPORT = "report"


ThingKind = Annotated[Kind, typer.Argument(metavar="KIND", help=f"One of {', '.join(Kind)}.")]
ThingName = Annotated[str, typer.Argument(metavar="NAME", help="Name or id; of a report its hash.")]
ToPerson = Annotated[str | None, typer.Option("--person", help="Name of a person.")]
ToGroup = Annotated[
    str | None, typer.Option("--group", help="Name of a lab, or of a group such as a course.")
]
ToEverybody = Annotated[bool, typer.Option("--everybody", help="All who have an account.")]


def share(
    kind: ThingKind,
    name: ThingName,
    person: ToPerson = None,
    group: ToGroup = None,
    everybody: ToEverybody = False,
    as_json: AsJson = False,
) -> None:
    """Let a person, a group or everybody read a thing of yours. They cannot change it."""
    _require_one(person, group, everybody=everybody)
    with connect() as client:
        made = client.shares.create(kind, name, person=person, group=group, everybody=everybody)
        owner = client.me().user.name
    if as_json:
        print_json(made.raw)
        return
    say(f"{with_whom(made).capitalize()} can read the {kind} {made.name}.")
    if kind in (Kind.DATASET, Kind.MODEL, Kind.TOKENIZER):
        say(f"In jobs of others its name is {owner}/{made.name}.")
    if kind is Kind.JOB:
        say(f"They start from its checkpoints by `--start-from {made.thing}/step-N`.")


def unshare(
    kind: ThingKind,
    name: ThingName,
    person: ToPerson = None,
    group: ToGroup = None,
    everybody: ToEverybody = False,
    as_json: AsJson = False,
) -> None:
    """Share a thing no longer, with one of those with whom you do; by default with all of them."""
    if person or group or everybody:
        _require_one(person, group, everybody=everybody)
    who = person or group or ""
    audience = "person" if person else "group" if group else "everybody" if everybody else None
    with connect() as client:
        ended = [
            one
            for one in client.shares.list()
            if one.kind == kind and name in (one.thing, one.name)
            if audience in (None, one.audience)
            if audience is None or one.who == who
        ]
        for one in ended:
            client.shares.end(one.id)
    if as_json:
        print_json([one.raw for one in ended])
        return
    if not ended:
        raise BadInput(f"You do not share the {kind} {name} so. `trainyard shares` shows all.")
    for one in ended:
        say(f"{with_whom(one).capitalize()} can no longer read the {kind} {one.name}.")
    say("Jobs that were submitted with it keep its bytes.")


def list_shares(as_json: AsJson = False) -> None:
    """List what you share, and with whom."""
    with connect() as client:
        shares = list(client.shares.list())
    print_list(
        shares,
        ["kind", "name", "with", "since"],
        lambda one: (one.kind, one.name, with_whom(one), moment(one.created_at)),
        empty="You share nothing. `trainyard share dataset NAME --group LAB` shares something.",
        as_json=as_json,
    )


def with_whom(share: Share) -> str:
    """Return those with whom a thing is shared, in words."""
    return f"{share.audience} {share.who}".strip()


def _require_one(person: str | None, group: str | None, *, everybody: bool) -> None:
    if sum((person is not None, group is not None, everybody)) != 1:
        raise BadInput("Name one of --person, --group and --everybody.")
