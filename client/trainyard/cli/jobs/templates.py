"""`trainyard templates`."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from trainyard.cli.jobs.planning import read_job
from trainyard.cli.output import AsJson, print_answer, print_json, print_list, say
from trainyard.cli.session import connect
from trainyard.errors import BadInput
from trainyard.packing import pack
from trainyard.views import TemplateField
from trainyard.wording import moment, reference

app = typer.Typer(no_args_is_help=True, help="Jobs and agendas with locked and open fields.")
TemplateName = Annotated[
    str, typer.Argument(metavar="TEMPLATE", help="Name or id; OWNER/NAME if it is another's.")
]


@app.command("list")
def list_templates(as_json: AsJson = False) -> None:
    """List your own templates, and those shared with you as OWNER/NAME."""
    with connect() as client:
        templates, own = list(client.templates.list()), client.me().user.name
    print_list(
        templates,
        ["name", "kind", "version", "open", "changed"],
        lambda one: (
            reference(one.name, one.owner, own),
            one.kind,
            str(one.version),
            str(len(one.open)),
            moment(one.changed_at),
        ),
        empty="No templates. Keep one: trainyard templates add FILE",
        right=["version", "open"],
        as_json=as_json,
    )


@app.command("show")
def show(template: TemplateName, as_json: AsJson = False) -> None:
    """Show a template: its open fields with their defaults."""
    with connect() as client:
        found = client.templates.get(template)
    if as_json:
        print_json(found.raw)
        return
    say(f"{found.name}, version {found.version}: {found.kind} of {found.owner}.")
    if found.description:
        say(found.description)
    for one in found.open:
        default = _value_at(found.spec, one.field)
        say(f"  {one.field} = {'?' if default is None else json.dumps(default)}{_limits(one)}")
    say("All other fields are locked." if found.open else "All fields are locked.")


@app.command("add")
def add(
    file: Annotated[
        Path,
        typer.Argument(help="A template as YAML; `-` reads standard input.", show_default=False),
    ],
    code: Annotated[
        Path | None, typer.Option(help="Folder of the code of its scripts, which is uploaded.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Keep a template. One of yours with the same name gets its next version."""
    text = read_job(file)
    with connect() as client:
        sha256 = None if code is None else client.code.upload(pack(code)).sha256
        kept = client.templates.keep(text, code=sha256)
    if as_json:
        print_json(kept.raw)
        return
    say(f"Kept {kept.name}, version {kept.version}: {kept.kind}, {len(kept.open)} open fields.")
    say(f"Share it: trainyard share template {kept.name} --group LAB")


@app.command("start")
def start(
    template: TemplateName,
    values: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="Value of an open field; repeatable."),
    ] = None,
    lease: Annotated[
        str | None, typer.Option(help="Booked lease to run in; an agenda needs one.")
    ] = None,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Start an agenda even if not all of its jobs fit.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Submit a template's job or agenda, its open fields as you set them."""
    given = dict(_pair(value) for value in values or [])
    with connect() as client:
        made = client.templates.start(template, given, lease=lease, anyway=anyway)
    if as_json:
        print_json(made.raw)
    elif made.agenda is not None:
        say(f"Submitted the agenda {made.agenda}. Watch it: trainyard agenda show {made.agenda}")
    else:
        say(f"Submitted {made.job}. Watch it: trainyard follow {made.job}")


@app.command("delete")
def delete(template: TemplateName, as_json: AsJson = False) -> None:
    """Delete a template of yours. What was started from it stays."""
    with connect() as client:
        client.templates.delete(template)
    print_answer({"template": template, "deleted": True}, f"Deleted {template}.", as_json=as_json)


def _pair(text: str) -> tuple[str, Any]:
    field, equals, value = text.partition("=")
    if not equals or not field:
        raise BadInput(f"--set {text}: write FIELD=VALUE, such as training.steps=100.")
    try:
        return field, json.loads(value)
    except ValueError:
        return field, value  # a text


def _value_at(spec: Any, path: str) -> Any:
    for part in path.split("."):
        if isinstance(spec, list):
            spec = spec[int(part)] if part.isdigit() and int(part) < len(spec) else None
        else:
            spec = spec.get(part) if isinstance(spec, dict) else None
    return spec


def _limits(one: TemplateField) -> str:
    if one.choices:
        return f"  one of {', '.join(map(str, one.choices))}"
    bounds = [
        f"{word} {bound:g}"
        for word, bound in (("at least", one.minimum), ("at most", one.maximum))
        if bound is not None
    ]
    return f"  {', '.join(bounds)}" if bounds else ""
