"""What the public API takes and gives about notices and how people want them."""

from typing import Annotated, Literal

from pydantic import Field

from api.people.people_schemas import Email
from api.schema_base import Body, Moment, View
from core.notices.notices import NoticeKind
from core.tables.kinds import Channel, DeliveryState


class NoticeView(View):
    """Something a person was told, and what became of it on its way."""

    id: int
    kind: str
    title: str
    message: str
    subject: str
    """Id of what it is about."""
    channel: Channel | None
    """None until a way is chosen for it."""
    state: DeliveryState
    attempts: int
    next_attempt_at: Moment | None
    """Of what waits: when it is tried, or tried again."""
    error: str
    """Why it has not left."""
    created_at: Moment
    sent_at: Moment | None


class ChoicesView(View):
    """How a person wants to be told."""

    every: Channel
    """Of each kind that is not named."""
    kinds: dict[str, Channel]
    known_kinds: list[str]
    email: Email | None
    webhook: str | None
    """Where signed notices are posted."""
    digest_at: str
    """When the day's digest leaves, on the clock of `zone`."""
    zone: str


class ChoicesChange(Body):
    """How one wants to be told; kinds that are not named follow `every`."""

    every: Channel = Channel.MAIL
    kinds: Annotated[dict[NoticeKind, Channel], Field(default_factory=dict)]


class NewWebhook(Body):
    """Where to post notices."""

    url: str = Field(min_length=8, max_length=500)


class WebhookMade(View):
    """A webhook, with the secret that signs what is posted: it is shown this once."""

    url: str
    secret: str


class TestNotice(Body):
    """A notice to oneself."""

    channel: Literal[Channel.MAIL, Channel.WEBHOOK]
