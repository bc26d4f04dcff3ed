"""`trainyard login`, `logout`, `whoami`, `storage`."""

import sys
from contextlib import closing
from typing import Annotated
from urllib.parse import parse_qs, urlsplit

import typer

from trainyard.cli.output import AsJson, note, print_answer, print_facts, print_json, say
from trainyard.cli.session import PATIENCE, connect
from trainyard.client import Trainyard
from trainyard.errors import BadInput, NotSignedIn
from trainyard.resources.people import accept_invite, set_password_by_link
from trainyard.resources.sessions import sign_in, sign_in_by_link, sign_out, start_first
from trainyard.transport import config
from trainyard.transport.connection import Connection, client_version
from trainyard.transport.releases import other_release
from trainyard.views import NewToken
from trainyard.wording import moment, size

FIRST_START, INVITE, PASSWORD = "/first-start", "/invite", "/new-password"


def login(
    url: Annotated[
        str | None, typer.Argument(help="Address of the server; by default the last one used.")
    ] = None,
    token: Annotated[
        str | None, typer.Option(help="Use this API token; `-` reads it from standard input.")
    ] = None,
    link: Annotated[
        str | None,
        typer.Option(
            help="Link to sign in, accept an invitation, set a password, or create the first user."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Sign in, and store the token for the next commands."""
    if sum(given is not None for given in (url if link else None, token, link)) > 1:
        raise typer.BadParameter("give one of URL or --link, and one of --token or --link")
    chosen = _server_of(link) if link else config.resolve(url, None).url
    if config.is_readable_on_the_way(chosen):
        note(f"Warning: {chosen} is not encrypted; others on the network can read your password.")
    if token is not None:
        secret = sys.stdin.readline().strip() if token == "-" else token.strip()
        user = _owner_of(chosen, secret)
    else:
        made = _by_link(chosen, link) if link else _by_password(chosen)
        secret, user = made.secret, made.user.name
    path = config.config_path()
    kept = config.Server(secret, user, is_session=token is None)
    config.write(path, config.read(path).with_server(chosen, kept))
    print_answer(
        {"url": chosen, "user": user},
        f"Signed in to {chosen} as {user}. The token is in {path}, readable by you alone.",
        as_json=as_json,
    )
    other = other_release(chosen, patience=PATIENCE)
    if other is not None:
        note(
            f"This server carries client {other.version}; this one is {client_version()}. "
            f"Install the server's: {other.command}"
        )


def logout(as_json: AsJson = False) -> None:
    """Sign out, and delete the stored token. An API token that you gave stays valid elsewhere."""
    path = config.config_path()
    url = config.resolve(None, None).url
    kept = config.read(path).servers.get(url)
    if kept is not None and kept.is_session:
        _end_session(url, kept.token)
    if kept is not None:
        config.write(path, config.read(path).without_server(url))
    if as_json:
        print_json({"url": url, "signed_out": kept is not None})
    elif kept is None:
        say(f"Not signed in to {url}.")
    else:
        say(f"Signed out of {url}." if kept.is_session else f"Deleted the token for {url}.")


def whoami(as_json: AsJson = False) -> None:
    """Show your account, with the number of your waiting and running jobs."""
    with connect() as client:
        me = client.me()
    if as_json:
        print_json(me.raw)
        return
    lease = me.lease and f"{me.lease.id} on {me.lease.node}, from {moment(me.lease.hold_start)}"
    print_facts(
        [
            ("name", me.user.name),
            ("role", me.user.role),
            ("server", client.url),
            ("labs", ", ".join(me.labs)),
            ("jobs", f"{me.queued} waiting, {me.running} running"),
            ("lease", lease),
        ]
    )


def storage(as_json: AsJson = False) -> None:
    """Show the storage that you use, its limits, and the retention of files."""
    with connect() as client:
        found = client.storage()
    if as_json:
        print_json(found.raw)
        return
    limits = [f"{h.name}: {size(h.used)} of {size(h.limit)}" for h in found.limits]
    print_facts(
        [
            ("kept", size(found.used)),
            *((kind, size(count)) for kind, count in found.by_kind.items()),
            ("limits", ", ".join(limits) or "none"),
            *((f"{what} kept", _days(days)) for what, days in found.keep_days.items()),
        ]
    )
    for warning in found.warnings:
        note(warning)


def _days(days: int) -> str:
    return f"{days} days after the job" if days else "forever"


def _end_session(url: str, token: str) -> None:
    with closing(Connection(config.Access(url, token), patience=PATIENCE)) as connection:
        try:
            sign_out(connection)
        except NotSignedIn:
            note("The session had ended before.")


def _server_of(link: str) -> str:
    """Return the server that gave the link."""
    parts = urlsplit(link)
    prefix = parts.path.rpartition("/")[0]
    return config.normal_url(f"{parts.scheme}://{parts.netloc}{prefix}")


def _by_link(url: str, link: str) -> NewToken:
    parts = urlsplit(link)
    given = parse_qs(parts.query)
    secrets = given.get("secret", []) + given.get("link", [])
    if len(secrets) != 1:
        raise BadInput(f"{link} has no secret in it; copy the whole link, up to its last letter.")
    is_first = parts.path.endswith(FIRST_START)
    name = password = ""
    if is_first:
        name = typer.prompt("Name of the first administrator", err=True)
        password = _new_password()
    elif parts.path.endswith(INVITE):
        name = typer.prompt(
            "User name: lowercase letters, digits, . _ -; starts with a letter", err=True
        )
        password = _password_of_ones_own()
    elif parts.path.endswith(PASSWORD):
        password = _password_of_ones_own()
    with closing(Connection(config.Access(url, None), patience=PATIENCE)) as connection:
        if is_first:
            return start_first(connection, secrets[0], name, password or None)
        if parts.path.endswith(INVITE):
            return accept_invite(connection, secrets[0], name, password)
        if parts.path.endswith(PASSWORD):
            return set_password_by_link(connection, secrets[0], password)
        return sign_in_by_link(connection, secrets[0])


def _new_password() -> str:
    return str(
        typer.prompt(
            "Password, 12 characters or more (empty: sign in by links only)",
            default="",
            show_default=False,
            hide_input=True,
            confirmation_prompt=True,
            err=True,
        )
    )


def _password_of_ones_own() -> str:
    return str(
        typer.prompt(
            "Your new password, 12 characters or more",
            hide_input=True,
            confirmation_prompt=True,
            err=True,
        )
    )


def _by_password(url: str) -> NewToken:
    name = typer.prompt(f"Name at {url}", err=True)
    password = typer.prompt("Password", hide_input=True, err=True)
    with closing(Connection(config.Access(url, None), patience=PATIENCE)) as connection:
        return sign_in(connection, name, password)


def _owner_of(url: str, token: str) -> str:
    if not token:
        raise BadInput("The token is empty.")
    with Trainyard(url, token, patience=PATIENCE) as client:
        return client.me().user.name
