"""`trainyard nodes`."""

from datetime import datetime
from typing import Annotated

import typer

from trainyard.cli.output import AsJson, id_cell, print_json, print_list, say, state_text
from trainyard.cli.session import connect
from trainyard.views import Node
from trainyard.wording import moment

app = typer.Typer(help="The nodes, and one node's proof.")


@app.callback(invoke_without_command=True)
def nodes(context: typer.Context, as_json: AsJson = False) -> None:
    """List the nodes: their hardware, their use, and when they are free."""
    if context.invoked_subcommand is not None:
        return
    with connect() as client:
        found = list(client.nodes.list())
    print_list(
        found,
        ["name", "class", "state", "has", "use", "user", "job", "free", "reason"],
        lambda node: (
            node.name,
            node.node_class,
            state_text(node.state),
            has(node),
            use(node),
            ", ".join(node.users) or node.user,
            id_cell(node.job) if node.job else None,
            free(node),
            reason(node),
        ),
        sentence=True,
        least=["use", "has", "class"],
        empty="No nodes yet. Add one: trainyard admin enrol NAME",
        as_json=as_json,
    )


@app.command("show")
def show(node: Annotated[str, typer.Argument(help="Name or id.")], as_json: AsJson = False) -> None:
    """Show a node: its hardware, its state, and the last proof that it trains as planned."""
    with connect() as client:
        found = client.nodes.get(node)
    if as_json:
        print_json(found.raw)
        return
    say(f"{found.name}: {found.node_class}, {found.state}. {has(found)}.")
    if found.reason:
        say(reason(found))
    say(sharing(found))
    for sentence in proven(found):
        say(sentence)


def sharing(node: Node) -> str:
    """Return who may share the node, in a sentence with the reason."""
    words = {
        "full": "Parts of it can be leased",
        "recipes": "Parts of it can be leased for recipes; scripts run alone",
    }
    because = f": {node.no_sharing}" if node.no_sharing else ""
    return f"{words.get(node.sharing, 'Leased whole')}{because}."


def proven(node: Node) -> list[str]:
    """Return sentences about the node's last proof, and what has changed since."""
    proof = node.proof
    if proof is None:
        return ["Not proven yet. On the node: trainyard prove"]
    on = f"driver {proof.driver}, " if proof.driver else "CPU slots, "
    return [
        f"Proven {moment(proof.proven_at)} with {on}torch {proof.torch}: {proof.sentence}",
        *(f"Changed since: {change}. Prove it again." for change in proof.changes),
        f"Proof {proof.sha256}",
    ]


def has(node: Node) -> str:
    """Return the node's slots and memory."""
    hardware = node.hardware
    only = ", scripts on one node" if hardware.no_gang_sandbox else ""
    if hardware.no_sandbox:
        only = ", recipes only"
    if hardware.device == "cuda":
        model = hardware.model or "GPU"
        return f"{hardware.slots} x {model}, {hardware.memory_gib:.0f} GiB each{only}"
    return f"{hardware.slots} CPU slots, {hardware.memory_gib:.0f} GiB{only}"


def use(node: Node) -> str | None:
    """Return the node's utilisation in percent: the mean of its GPUs whose use is known."""
    if node.telemetry is None or not node.reachable:
        return None
    if node.telemetry.gpu_pct:
        known = [pct for pct in node.telemetry.gpu_pct if pct is not None]
        return f"{sum(known) / len(known):.0f} % GPU" if known else "not known"
    return f"{node.telemetry.cpu_pct:.0f} % CPU"


def free(node: Node, *, now: datetime | None = None) -> str | None:
    """Return the time at which the node is free."""
    if node.state != "ready":
        return None
    return "now" if node.free_at is None else moment(node.free_at, now=now)


def reason(node: Node) -> str:
    """Return the reason of the node's state, the time since which it has been silent, and the
    reason of each GPU that is not fit for jobs."""
    unfit = [
        f"GPU {gpu['index']} is {str(gpu['health']).replace('_', ' ')}: {gpu['reason']}"
        for gpu in node.inventory.get("gpus", [])
        if gpu.get("health", "healthy") != "healthy"
    ]
    told = " ".join([node.reason, *unfit]).strip()
    if node.unreachable_since is not None:
        return f"Not heard since {moment(node.unreachable_since)}. {told}"
    return told
