"""What the API says of notices, and of how one wants them."""

from dataclasses import dataclass
from datetime import datetime

from trainyard.decoding import View


@dataclass(frozen=True, kw_only=True)
class Notice(View):
    """Something you were told. `state` is waiting, sent, failed or kept (shown here only)."""

    id: int
    kind: str
    title: str
    message: str
    subject: str
    channel: str | None
    state: str
    attempts: int
    next_attempt_at: datetime | None
    error: str
    created_at: datetime
    sent_at: datetime | None


@dataclass(frozen=True, kw_only=True)
class NoticeChoices(View):
    """How you are told: `every` kind, and `kinds` that differ."""

    every: str
    kinds: dict[str, str]
    known_kinds: tuple[str, ...]
    email: str | None
    webhook: str | None
    digest_at: str
    zone: str


@dataclass(frozen=True, kw_only=True)
class NewWebhook(View):
    """A webhook, with the secret that signs what is posted; it is shown this once."""

    url: str
    secret: str
