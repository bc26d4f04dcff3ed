"""`trainyard admin network`: the hosts that programs may reach, by node class and by lab."""

from typing import Annotated

import typer

from trainyard.cli.output import AsJson, note, print_json, print_table, say
from trainyard.cli.session import connect
from trainyard.errors import BadInput
from trainyard.views import NetworkList

app = typer.Typer(no_args_is_help=True, help="Hosts that programs may reach. No list: none.")


@app.command("show")
def show(as_json: AsJson = False) -> None:
    """Show the hosts of every node class and lab that has a list, and those of each group."""
    with connect() as client:
        found = client.admin.network()
    if as_json:
        print_json(found.raw)
        return
    print_table(
        ["for", "hosts"],
        [(_owner(each), ", ".join(each.hosts)) for each in found.lists],
        empty="No host is listed, so no program reaches any.",
    )
    for name, hosts in found.groups.items():
        note(f"{name}: {', '.join(hosts)}")


@app.command("set")
def set_hosts(
    hosts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="HOST...",
            help="pypi.org, registry.example:5000, '*.hf.co', a group (pypi, huggingface), or "
            "private:NAME for a host of the site's own network.",
        ),
    ] = None,
    node_class: Annotated[
        str | None, typer.Option("--class", help="Programs on nodes of this class.")
    ] = None,
    lab: Annotated[str | None, typer.Option(help="Programs of this lab's members.")] = None,
    none: Annotated[bool, typer.Option("--none", help="Remove the list.")] = False,
    as_json: AsJson = False,
) -> None:
    """Set the hosts that programs of a node class or a lab may reach, instead of those before.

    Running programs lose a host that is removed within seconds.
    """
    if (node_class is None) == (lab is None):
        raise BadInput("Name a node class with --class, or a lab with --lab.")
    if bool(hosts) == none:
        raise BadInput("Name hosts, or use --none to remove the list.")
    with connect() as client:
        found = client.admin.set_network(hosts or [], node_class=node_class, lab=lab)
    if as_json:
        print_json(found.raw)
    elif found.hosts:
        say(f"Programs of {_owner(found)} may reach: {', '.join(found.hosts)}")
    else:
        say(f"{_owner(found)} has no list any more.".capitalize())


def _owner(found: NetworkList) -> str:
    return f"class {found.node_class}" if found.lab is None else f"lab {found.lab}"
