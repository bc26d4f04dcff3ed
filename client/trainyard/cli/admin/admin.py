"""`trainyard admin`: people and nodes."""

import json
from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal

import typer

from trainyard.cli.admin import cleanups, maintenance, network, policies
from trainyard.cli.output import (
    AsJson,
    Limit,
    note,
    print_answer,
    print_json,
    print_list,
    print_table,
    say,
)
from trainyard.cli.people import people, usage
from trainyard.cli.session import connect
from trainyard.views import Node, User
from trainyard.wording import moment

Role = Literal["user", "staff", "admin"]
NodeName = Annotated[str, typer.Argument(metavar="NODE", help="Name or id.")]
Reason = Annotated[
    str | None, typer.Option("--reason", help="Reason, shown to everyone with the node.")
]
OneSlot = Annotated[
    int | None, typer.Option("--slot", help="Only this slot (GPU, or CPU slot), from 0.")
]
UserName = Annotated[str, typer.Argument(metavar="USER", help="Name or id.")]

app = typer.Typer(no_args_is_help=True, help="People and nodes, for staff and administrators.")
app.add_typer(people.labs_app, name="labs")
app.add_typer(people.grants_app, name="grants")
app.add_typer(people.invites_app, name="invites")
app.add_typer(policies.policy_app, name="policy")
app.add_typer(policies.windows_app, name="windows")
app.add_typer(cleanups.app, name="cleanup")
app.add_typer(maintenance.app, name="maintenance")
app.add_typer(network.app, name="network")
app.command("usage")(usage.admin_usage)
app.command("tag-lease")(cleanups.tag_lease)
app.command("force-release")(cleanups.force_release)
app.command("invite")(people.invite)
app.command("import")(people.import_list)
app.command("describe")(people.describe)
app.command("password-link")(people.password_link)


@app.command("users")
def users(as_json: AsJson = False) -> None:
    """List all accounts."""
    with connect() as client:
        found = list(client.admin.users())
    print_list(
        found,
        ["name", "id", "role", "email", "zone", "since", "state"],
        lambda user: (
            user.name,
            user.id,
            user.role,
            user.email,
            user.zone,
            moment(user.created_at),
            "disabled" if user.disabled else "active",
        ),
        empty="Nobody.",
        as_json=as_json,
    )


@app.command("add-user")
def add_user(
    name: str,
    role: Annotated[Role, typer.Option(help="Role of the person.")] = "user",
    as_json: AsJson = False,
) -> None:
    """Add a person; asks for a password (empty: they sign in by a login link)."""
    password = typer.prompt(
        "Password for them, 12 characters or more (empty: none)",
        default="",
        show_default=False,
        hide_input=True,
        confirmation_prompt=True,
        err=True,
    )
    with connect() as client:
        user = client.admin.add_user(name, role=role, password=password or None)
    _answer_user(user, f"Added {user.name} ({user.role}).", as_json)


@app.command("disable-user")
def disable_user(user: UserName, as_json: AsJson = False) -> None:
    """Disable a person's tokens and sessions; their jobs no longer start."""
    with connect() as client:
        changed = client.admin.change_user(user, disabled=True)
    _answer_user(changed, f"{changed.name} is disabled.", as_json)


@app.command("enable-user")
def enable_user(user: UserName, as_json: AsJson = False) -> None:
    """Enable a disabled person's account again."""
    with connect() as client:
        changed = client.admin.change_user(user, disabled=False)
    _answer_user(changed, f"{changed.name} is enabled.", as_json)


@app.command("set-role")
def set_role(user: UserName, role: Role, as_json: AsJson = False) -> None:
    """Change a person's role."""
    with connect() as client:
        changed = client.admin.change_user(user, role=role)
    _answer_user(changed, f"{changed.name} is {changed.role} now.", as_json)


@app.command("login-link")
def login_link(user: UserName, as_json: AsJson = False) -> None:
    """Create a link with which a person can sign in once; hand it to them yourself."""
    with connect() as client:
        link = client.admin.login_link(user)
    if as_json:
        print_json(link.raw)
        return
    note(f"Works once, until {moment(link.expires_at)}:")
    say(link.url)


@app.command("unlink")
def unlink(user: UserName, as_json: AsJson = False) -> None:
    """Unlink a person from their single sign-on identity; their next sign-in there links them
    again."""
    with connect() as client:
        client.admin.unlink(user)
    print_answer(
        {"user": user, "unlinked": True},
        f"{user} is no longer linked to a single sign-on identity.",
        as_json=as_json,
    )


@app.command("enrol")
def enrol(
    name: Annotated[str, typer.Argument(help="Small letters, digits and hyphens.")],
    node_class: Annotated[
        str | None, typer.Option("--class", help="By default taken from the hardware.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Create the single-use token with which a new node joins."""
    with connect() as client:
        enrolment = client.admin.enrol(name, node_class=node_class)
    if as_json:
        print_json(enrolment.raw)
        return
    note(f"Run this on {name} before {moment(enrolment.expires_at)}; it works once:")
    say(enrolment.command)


@app.command("drain")
def drain(node: NodeName, reason: Reason = None, as_json: AsJson = False) -> None:
    """Start no new jobs on a node; running ones continue."""
    with connect() as client:
        _answer_node(client.admin.drain(node, reason=reason), as_json)


@app.command("in-the-way")
def in_the_way(node: NodeName, as_json: AsJson = False) -> None:
    """List the jobs and leases that keep a node from being retired."""
    with connect() as client:
        found = client.admin.in_the_way(node)
    if as_json:
        print_json(found.raw)
        return
    for job in found.jobs:
        say(f"{job.name} of {job.user} ({job.id}) runs on {found.node}.")
    print_table(
        ["lease", "owner", "state", "from", "to"],
        (
            (lease.id, lease.user, lease.state, moment(lease.hold_start), moment(lease.hold_end))
            for lease in found.leases
        ),
        empty=f"No leases are open on {found.node}.",
    )


@app.command("resume")
def resume(node: NodeName, slot: OneSlot = None, as_json: AsJson = False) -> None:
    """Use a drained, dirty or quarantined node again, or one slot of it."""
    with connect() as client:
        if slot is None:
            _answer_node(client.admin.resume(node), as_json)
        else:
            _answer_slot(client.admin.resume_slot(node, slot), slot, as_json)


@app.command("quarantine")
def quarantine(
    node: NodeName, slot: OneSlot = None, reason: Reason = None, as_json: AsJson = False
) -> None:
    """Take a node out of service, or one slot of it, because it is suspected to be faulty."""
    with connect() as client:
        if slot is None:
            _answer_node(client.admin.quarantine(node, reason=reason), as_json)
        else:
            _answer_slot(client.admin.quarantine_slot(node, slot), slot, as_json)


@app.command("retire")
def retire(node: NodeName, as_json: AsJson = False) -> None:
    """Retire a node permanently; its token stops working."""
    with connect() as client:
        _answer_node(client.admin.retire(node), as_json)


@app.command("audit")
def audit(
    limit: Limit = 50,
    actor: Annotated[
        str | None, typer.Option(help="Only actions of this person, node or process: name or id.")
    ] = None,
    action: Annotated[
        str | None,
        typer.Option(
            help="Only this action, such as node.drain; `node.` matches every action of nodes."
        ),
    ] = None,
    subject: Annotated[
        str | None, typer.Option(help="Only actions on this object: name or id.")
    ] = None,
    days: Annotated[
        int | None, typer.Option(min=1, help="Only actions of the last N days.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the actions of people and nodes, newest first."""
    since = datetime.now(UTC) - timedelta(days=days) if days else None
    with connect() as client:
        entries = list(
            client.admin.audit(
                limit=limit, actor=actor, action=action, subject=subject, since=since
            )
        )
    print_list(
        entries,
        ["at", "who", "what", "on", "details"],
        lambda entry: (
            moment(entry.at),
            entry.actor_name or entry.actor,
            entry.kind,
            entry.subject_name or entry.subject,
            json.dumps(entry.details, ensure_ascii=False) if entry.details else "",
        ),
        sentence=True,
        empty="Nothing has been recorded yet.",
        as_json=as_json,
    )


def _answer_user(user: User, sentence: str, as_json: bool) -> None:
    print_answer(user.raw, sentence, as_json=as_json)


def _answer_slot(node: Node, number: int, as_json: bool) -> None:
    said = next(
        (f"Slot {number} of {node.name} is {slot.state}. {slot.reason}".rstrip())
        for slot in node.slots
        if slot.slot == number
    )
    print_answer(node.raw, said, as_json=as_json)


def _answer_node(node: Node, as_json: bool) -> None:
    print_answer(node.raw, f"{node.name} is {node.state}. {node.reason}".rstrip(), as_json=as_json)
