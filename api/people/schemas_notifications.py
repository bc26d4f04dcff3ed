"""Requests and answers of the public API about notices and the channels chosen for them."""

from typing import Annotated, Literal

from pydantic import Field

from api.people.schemas import Email
from api.web.schemas import Body, Moment, View
from core.notices.notices import NoticeKind
from core.tables.kinds import Channel, DeliveryState


class NoticeView(View):
    """A notice to a person, and the state of its delivery."""

    id: int
    kind: str
    title: str
    message: str
    subject: str
    """Id of the object that the notice is about, or the hash of the report."""
    page: str = ""
    """Path of the page about it, such as `/jobs/job_...`; empty if there is none."""
    channel: Channel | None
    """Channel by which the notice is sent; null until one is chosen."""
    state: DeliveryState
    attempts: int
    next_attempt_at: Moment | None
    """Time of the first or next attempt to send a waiting notice; otherwise null."""
    error: str
    """Reason that the notice has not left; empty if there is none."""
    created_at: Moment
    sent_at: Moment | None


class ChoicesView(View):
    """Channels that a person has chosen for notices, and their addresses."""

    every: Channel
    """Channel of every kind that `kinds` does not name."""
    kinds: dict[str, Channel]
    known_kinds: list[str]
    email: Email | None
    webhook: str | None
    """URL to which signed notices are posted; null if there is none."""
    digest_at: str
    """Time of day at which the digest leaves, as `HH:MM` on the clock of `zone`."""
    zone: str


class ChoicesChange(Body):
    """Channels to choose for notices; kinds that are not named follow `every`."""

    every: Channel = Channel.MAIL
    kinds: Annotated[dict[NoticeKind, Channel], Field(default_factory=dict)]


class NewWebhook(Body):
    """An address to which notices are to be posted."""

    url: str = Field(min_length=8, max_length=500)


class WebhookMade(View):
    """A webhook with the secret that signs its posts, which is shown only in this answer."""

    url: str
    secret: str


class TestNotice(Body):
    """A test notice to yourself."""

    channel: Literal[Channel.MAIL, Channel.WEBHOOK]
