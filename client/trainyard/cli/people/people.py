"""`trainyard admin labs`, `grants`, `invite`, `import`, `describe`, `password-link`."""

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from trainyard.cli.group import Lists
from trainyard.cli.output import (
    AsJson,
    note,
    print_answer,
    print_facts,
    print_json,
    print_list,
    print_table,
    say,
)
from trainyard.cli.session import connect
from trainyard.cli.times import moment_of
from trainyard.views import Import, Lab
from trainyard.wording import moment, number

LabName = Annotated[str, typer.Argument(metavar="LAB", help="Name or id.")]
UserName = Annotated[str, typer.Argument(metavar="USER", help="Name or id.")]
Attribute = Annotated[
    list[str] | None, typer.Option("--attribute", help="NAME=TEXT; may be given more than once.")
]

labs_app = typer.Typer(cls=Lists, help="Labs: people who share a budget.")
grants_app = typer.Typer(cls=Lists, help="Exceptions to booking rules.")
invites_app = typer.Typer(cls=Lists, help="Invitations to create an account.")


@labs_app.command("list")
def list_labs(as_json: AsJson = False) -> None:
    """List all labs with their leads."""
    with connect() as client:
        labs = list(client.people.labs())
    print_list(
        labs,
        ["name", "weight", "groups", "leads", "members"],
        lambda lab: (
            lab.name,
            number(lab.weight),
            ", ".join(lab.groups),
            ", ".join(lab.leads),
            f"{len(lab.members)}: {', '.join(lab.members)}" if lab.members else "none",
        ),
        right=["weight"],
        sentence=True,
        empty="No labs. Make one: trainyard admin labs add NAME",
        as_json=as_json,
    )


@labs_app.command("add")
def add_lab(
    name: str,
    weight: Annotated[float, typer.Option(help="Share of the lab, relative to others.")] = 1.0,
    group: Annotated[
        list[str] | None, typer.Option(help="A group for booking rules, such as a course.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Create an empty lab."""
    with connect() as client:
        _answer_lab(client.people.add_lab(name, weight=weight, groups=group or ()), as_json)


@labs_app.command("set")
def set_lab(
    lab: LabName,
    weight: Annotated[float | None, typer.Option(help="Share of the lab.")] = None,
    group: Annotated[
        list[str] | None, typer.Option(help="All groups of the lab; '' for none.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Change a lab's weight or groups."""
    groups = None if group is None else [name for name in group if name]
    with connect() as client:
        _answer_lab(client.people.change_lab(lab, weight=weight, groups=groups), as_json)


@labs_app.command("add-member")
def add_member(
    lab: LabName,
    user: UserName,
    lead: Annotated[bool, typer.Option("--lead", help="Make them a lead, who may invite.")] = False,
    as_json: AsJson = False,
) -> None:
    """Add a person to a lab."""
    with connect() as client:
        _answer_lab(client.people.add_member(lab, user, is_lead=lead), as_json)


@labs_app.command("remove-member")
def remove_member(lab: LabName, user: UserName, as_json: AsJson = False) -> None:
    """Remove a person from a lab."""
    with connect() as client:
        _answer_lab(client.people.remove_member(lab, user), as_json)


@labs_app.command("move")
def move(
    user: UserName,
    from_lab: Annotated[str, typer.Option("--from", help="Lab to leave.")],
    to_lab: Annotated[str, typer.Option("--to", help="Lab to join.")],
    as_json: AsJson = False,
) -> None:
    """Move a person to another lab; future leases follow, past use stays with the old lab."""
    with connect() as client:
        moved = client.people.move(user, from_lab=from_lab, to_lab=to_lab)
    print_answer(
        moved.raw,
        f"{moved.user.name} is in {moved.to_lab} now; {len(moved.leases)} leases follow.",
        as_json=as_json,
    )


@grants_app.command("list")
def list_grants(
    user: Annotated[str | None, typer.Option(help="Only of this person.")] = None,
    now_only: Annotated[bool, typer.Option("--now", help="Only those in force now.")] = False,
    as_json: AsJson = False,
) -> None:
    """List all exceptions to rules; they are visible to everyone."""
    with connect() as client:
        grants = list(client.people.grants(user=user, now_only=now_only))
    print_list(
        grants,
        ["id", "user", "rule", "extra", "from", "to", "by", "why"],
        lambda grant: (
            grant.id,
            grant.user,
            grant.rule,
            grant.extra,
            moment(grant.starts_at),
            f"revoked {moment(grant.revoked_at)}" if grant.revoked_at else moment(grant.ends_at),
            grant.granted_by,
            grant.why,
        ),
        right=["extra"],
        sentence=True,
        empty="No exceptions.",
        as_json=as_json,
    )


@grants_app.command("add")
def add_grant(
    user: UserName,
    rule: Annotated[
        str, typer.Argument(help="Reason code of the rule to lift, such as quota_main.")
    ],
    until: Annotated[str, typer.Option(help="'2026-11-22 14:00' (your zone) or RFC 3339.")],
    why: Annotated[str, typer.Option(help="Reason, visible to everyone.")],
    since: Annotated[str | None, typer.Option("--from", help="By default now.")] = None,
    extra: Annotated[int, typer.Option(min=1, help="Number of additional leases or hours.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Let one person do more than a rule allows, for a limited time."""
    now = datetime.now().astimezone()
    starts_at = now if since is None else moment_of(since, now=now)
    with connect() as client:
        grant = client.people.grant(
            user, rule, extra=extra, starts_at=starts_at, ends_at=moment_of(until, now=now), why=why
        )
    if as_json:
        print_json(grant.raw)
        return
    say(
        f"{grant.id}: {grant.user} may do {grant.extra} more under {grant.rule} until "
        f"{moment(grant.ends_at)}."
    )


@grants_app.command("revoke")
def revoke_grant(
    grant_id: Annotated[str, typer.Argument(metavar="GRANT")], as_json: AsJson = False
) -> None:
    """Revoke an exception; leases that were booked with it stay."""
    with connect() as client:
        client.people.revoke_grant(grant_id)
    print_answer({"id": grant_id, "revoked": True}, f"{grant_id} is revoked.", as_json=as_json)


@invites_app.command("list")
def list_invites(as_json: AsJson = False) -> None:
    """List invitations and their state."""
    with connect() as client:
        invites = list(client.people.invites())
    print_list(
        invites,
        ["id", "lab", "for", "by", "state", "until"],
        lambda invite: (
            invite.id,
            invite.lab,
            invite.used_by or invite.email,
            invite.invited_by,
            invite.state,
            moment(invite.expires_at),
        ),
        empty="No invitations. Make one: trainyard admin invite --lab LAB",
        as_json=as_json,
    )


@invites_app.command("revoke")
def revoke_invite(
    invite_id: Annotated[str, typer.Argument(metavar="INVITE")], as_json: AsJson = False
) -> None:
    """Make an invitation's link stop working."""
    with connect() as client:
        client.people.revoke_invite(invite_id)
    print_answer(
        {"id": invite_id, "revoked": True}, f"{invite_id} no longer works.", as_json=as_json
    )


def invite(
    lab: Annotated[str | None, typer.Option(help="Lab to join.")] = None,
    email: Annotated[str | None, typer.Option(help="Mail address of the person.")] = None,
    attribute: Attribute = None,
    days: Annotated[int, typer.Option(min=1, max=60, help="Number of days until it expires.")] = 7,
    mail: Annotated[bool, typer.Option("--mail", help="Mail it to the person.")] = False,
    as_json: AsJson = False,
) -> None:
    """Create a link with which one person creates an account; hand it to them, or --mail it."""
    with connect() as client:
        made = client.people.invite(
            lab=lab, email=email, attributes=_attributes(attribute), days=days
        )
        if mail:
            client.people.mail_invite(made.id)
    if as_json:
        print_json(made.raw)
        return
    if mail:
        say(f"An invitation is on its way to {made.email}, until {moment(made.expires_at)}.")
        return
    note(f"Works once, until {moment(made.expires_at)}:")
    say(made.url)


def import_list(
    file: Annotated[Path, typer.Argument(help="CSV; its first line names the columns.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the changes.")] = False,
    links: Annotated[
        Path | None, typer.Option(help="Write a password link for each new person to this file.")
    ] = None,
    mail: Annotated[
        bool, typer.Option("--mail", help="Mail a password link to each new person.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Add and change the people of a list: name, email, lab, zone, role, and attributes."""
    try:
        text = file.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"{file} can't be read as text: {error}") from error
    with connect() as client:
        done = client.people.import_list(text, dry_run=dry_run, links=links is not None, mail=mail)
    if links is not None and not dry_run:
        _write_links(done, links)
    if as_json:
        print_json(done.raw)
        return
    print_table(
        ["line", "name", "action", "new"],
        ((row.line, row.name, row.action, ", ".join(row.changes)) for row in done.rows),
        right=["line"],
        empty="The list is empty.",
    )
    made = f" New labs: {', '.join(done.labs)}." if done.labs else ""
    counts = f"{done.added} new, {done.changed} changed, {done.same} as before."
    say(f"{'Nothing is written yet: ' if dry_run else ''}{counts}{made}")


def describe(
    user: UserName,
    email: Annotated[str | None, typer.Option(help="'' removes it.")] = None,
    attribute: Attribute = None,
    as_json: AsJson = False,
) -> None:
    """Set a person's mail address, or all of their attributes."""
    attributes = None if attribute is None else _attributes(attribute)
    with connect() as client:
        changed = client.people.describe(user, email=email, attributes=attributes)
    if as_json:
        print_json(changed.raw)
        return
    print_facts(
        [
            ("name", changed.name),
            ("email", changed.email),
            *((name, value) for name, value in changed.attributes.items()),
        ]
    )


def password_link(
    user: UserName,
    mail: Annotated[bool, typer.Option("--mail", help="Mail it to the person.")] = False,
    as_json: AsJson = False,
) -> None:
    """Create a link with which a person sets a new password, once; hand it to them, or --mail
    it."""
    with connect() as client:
        if mail:
            client.people.mail_password(user)
            told = f"A link to set a password is on its way to {user}."
            print_answer({"user": user, "mailed": True}, told, as_json=as_json)
            return
        link = client.people.password_link(user)
    if as_json:
        print_json(link.raw)
        return
    note(f"Works once, until {moment(link.expires_at)}:")
    say(link.url)


def _attributes(given: list[str] | None) -> dict[str, str]:
    pairs = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not equals:
            raise typer.BadParameter(f"{text!r} is not NAME=TEXT", param_hint="--attribute")
        pairs[name.strip()] = value.strip()
    return pairs


def _write_links(done: Import, path: Path) -> None:
    """Write one CSV line per person, readable by its owner alone, since each link opens an
    account."""
    path.touch(mode=0o600)
    path.chmod(0o600)
    lines = [f"{row.name},{row.password_link}\n" for row in done.rows if row.password_link]
    path.write_text("name,link\n" + "".join(lines))
    note(f"{len(lines)} links are in {path}, readable by you alone. Each works once.")


def _answer_lab(lab: Lab, as_json: bool) -> None:
    if as_json:
        print_json(lab.raw)
        return
    print_facts(
        [
            ("name", lab.name),
            ("weight", number(lab.weight)),
            ("groups", ", ".join(lab.groups)),
            ("leads", ", ".join(lab.leads)),
            ("members", ", ".join(lab.members)),
        ]
    )
