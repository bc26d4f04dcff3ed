"""`trainyard notifications`."""

from enum import StrEnum
from typing import Annotated

import typer

from trainyard.cli.group import Lists
from trainyard.cli.output import (
    AsJson,
    Limit,
    note,
    print_answer,
    print_facts,
    print_json,
    print_list,
    say,
)
from trainyard.cli.session import connect
from trainyard.views import NoticeChoices
from trainyard.wording import moment

app = typer.Typer(cls=Lists, help="Your notifications and their channels.")


class Channel(StrEnum):
    """Channel of a notification."""

    MAIL = "mail"
    WEBHOOK = "webhook"
    DIGEST = "digest"
    OFF = "off"


class TestableChannel(StrEnum):
    """Channel that can be tested."""

    MAIL = "mail"
    WEBHOOK = "webhook"


@app.command("list")
def list_notices(
    limit: Limit = 20,
    as_json: AsJson = False,
) -> None:
    """List your notifications, newest first, and whether they were sent."""
    with connect() as client:
        notices = list(client.notifications.list(limit=limit))
    print_list(
        notices,
        ["at", "what", "by", "state", "message"],
        lambda notice: (
            moment(notice.created_at),
            notice.title,
            notice.channel,
            notice.state,
            f"{notice.message} ({notice.error})" if notice.error else notice.message,
        ),
        sentence=True,
        empty="Nothing yet.",
        as_json=as_json,
    )


@app.command("choices")
def choices(as_json: AsJson = False) -> None:
    """Show the channels of your notifications."""
    with connect() as client:
        _show(client.notifications.choices(), as_json)


@app.command("choose")
def choose(
    every: Annotated[
        Channel, typer.Argument(help="Channel of every kind that --kind does not name.")
    ],
    kind: Annotated[
        list[str] | None,
        typer.Option(help="KIND=CHANNEL, such as block_offered=mail; may be repeated."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Choose the channels of your notifications; replaces the earlier choice."""
    kinds = {}
    for text in kind or ():
        name, equals, channel = text.partition("=")
        if not equals:
            raise typer.BadParameter(f"{text!r} is not KIND=CHANNEL", param_hint="--kind")
        kinds[name] = channel
    with connect() as client:
        _show(client.notifications.choose(every, kinds), as_json)


@app.command("webhook")
def webhook(
    url: Annotated[str, typer.Argument(help="Address that begins with https://; '' removes it.")],
    as_json: AsJson = False,
) -> None:
    """Set the URL that notifications are posted to, and show their signing secret, only once."""
    with connect() as client:
        if not url:
            client.notifications.forget_webhook()
            if as_json:
                print_json({"url": None})
            else:
                say("The webhook is removed.")
            return
        made = client.notifications.set_webhook(url)
    if as_json:
        print_json(made.raw)
        return
    note(f"Secret that signs the posts to {made.url}; it is not shown again:")
    say(made.secret)


@app.command("test")
def send_test(channel: TestableChannel, as_json: AsJson = False) -> None:
    """Send yourself a notification; `notifications list` then shows its result."""
    with connect() as client:
        notice = client.notifications.test(channel)
    print_answer(notice.raw, f"{notice.state}. {notice.error}".rstrip(), as_json=as_json)


def _show(chosen: NoticeChoices, as_json: bool) -> None:
    if as_json:
        print_json(chosen.raw)
        return
    print_facts(
        [
            ("every kind", chosen.every),
            *chosen.kinds.items(),
            ("mail goes to", chosen.email),
            ("webhook", chosen.webhook),
            ("digest", f"{chosen.digest_at}, {chosen.zone}"),
        ]
    )
