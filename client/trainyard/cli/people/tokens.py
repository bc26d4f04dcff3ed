"""`trainyard tokens`: your own API tokens."""

import re
from enum import StrEnum
from typing import Annotated

import typer

from trainyard.cli.finding import TOKENS, TokenKey
from trainyard.cli.group import Lists
from trainyard.cli.output import AsJson, id_cell, note, print_answer, print_json, print_list, say
from trainyard.cli.session import connect
from trainyard.wording import moment

app = typer.Typer(cls=Lists, help="Your own API tokens, for scripts.")


class Scope(StrEnum):
    """Permission of a token; each includes `read`, and `all` every other."""

    READ = "read"
    JOBS = "jobs"
    LEASES = "leases"
    ACCOUNT = "account"
    ALL = "all"


@app.command("list")
def list_tokens(as_json: AsJson = False) -> None:
    """List your tokens, without their secrets."""
    with connect() as client:
        tokens = list(client.tokens.list())
    print_list(
        tokens,
        ["id", "name", "scopes", "expires", "last used", "state"],
        lambda token: (
            id_cell(token.id),
            token.name,
            " ".join(token.scopes),
            moment(token.expires_at),
            moment(token.last_used_at),
            f"revoked {moment(token.revoked_at)}" if token.revoked_at else "valid",
        ),
        least=["last used", "scopes"],
        empty="No tokens. Make one: trainyard tokens create NAME --scope jobs",
        as_json=as_json,
    )


@app.command("create")
def create_token(
    name: str,
    scope: Annotated[
        list[Scope] | None,
        typer.Option(help="Permission of the token; may be repeated. [default: read]"),
    ] = None,
    expires: Annotated[str, typer.Option(help="Number of days until it expires.")] = "90d",
    as_json: AsJson = False,
) -> None:
    """Create a token and show its secret, only once."""
    scopes = scope or [Scope.READ]
    with connect() as client:
        made = client.tokens.create(name, scopes=scopes, expires_in_days=_days(expires))
    if as_json:
        print_json(made.raw)
        return
    say(made.secret)
    note(
        f"For {', '.join(made.scopes)}, until {moment(made.expires_at)}. It is not shown again; "
        "set TRAINYARD_TOKEN to it."
    )


@app.command("revoke")
def revoke_token(named: TokenKey, as_json: AsJson = False) -> None:
    """Revoke a token, which stops working at once."""
    with connect() as client:
        token_id = TOKENS.id_of(client, named, changes=True)
        client.tokens.revoke(token_id)
    print_answer({"id": token_id, "revoked": True}, f"{token_id} no longer works.", as_json=as_json)


def _days(text: str) -> int:
    """Return 30 for `30d` or `30`."""
    found = re.fullmatch(r"(\d{1,4})d?", text.strip())
    if found is None or not 1 <= int(found[1]) <= 366:
        raise typer.BadParameter(f"{text!r} is not 1d to 366d", param_hint="--expires")
    return int(found[1])
