"""`trainyard sessions`: browsers and terminals in which you are signed in."""

from typing import Annotated

import typer

from trainyard.cli.group import Lists
from trainyard.cli.output import AsJson, print_answer, print_list
from trainyard.cli.session import connect
from trainyard.wording import moment

app = typer.Typer(cls=Lists, help="Sessions in which you are signed in.")


@app.command("list")
def list_sessions(as_json: AsJson = False) -> None:
    """List your sessions, the newest first; API tokens are not included."""
    with connect() as client:
        sessions = list(client.sessions.list())
    print_list(
        sessions,
        ["id", "device", "since", "last used", "ends if unused"],
        lambda session: (
            session.id,
            f"{session.name} (this one)" if session.is_this_one else session.name,
            moment(session.created_at),
            moment(session.last_used_at),
            moment(session.expires_at),
        ),
        empty="No sessions: you use an API token.",
        as_json=as_json,
    )


@app.command("end")
def end_session(session_id: Annotated[str, typer.Argument()], as_json: AsJson = False) -> None:
    """End a session, which signs its user out at once."""
    with connect() as client:
        client.sessions.end(session_id)
    print_answer({"id": session_id, "ended": True}, f"{session_id} has ended.", as_json=as_json)
