"""`client.notifications`: what you were told, and how you want to be told."""

from collections.abc import Iterator, Mapping

from trainyard.connection import Connection
from trainyard.decoding import decode
from trainyard.paging import all_pages
from trainyard.views import NewWebhook, Notice, NoticeChoices

PATH = "/v1/me/notifications"


class Notifications:
    """Notices to you."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def list(self, *, limit: int | None = None) -> Iterator[Notice]:
        """The newest first."""
        return all_pages(self._connection, PATH, Notice, limit=limit)

    def choices(self) -> NoticeChoices:
        """How you are told."""
        return decode(NoticeChoices, self._connection.get(f"{PATH}/choices"))

    def choose(self, every: str, kinds: Mapping[str, str] | None = None) -> NoticeChoices:
        """By mail, webhook, digest or off: every kind, and `kinds` that go another way."""
        body = {"every": every, "kinds": dict(kinds or {})}
        return decode(NoticeChoices, self._connection.put(f"{PATH}/choices", body))

    def set_webhook(self, url: str) -> NewWebhook:
        """Have notices posted there; the secret that signs them is shown this once."""
        return decode(NewWebhook, self._connection.put("/v1/me/webhook", {"url": url}))

    def forget_webhook(self) -> None:
        """Nothing is posted any more."""
        self._connection.delete("/v1/me/webhook")

    def test(self, channel: str) -> Notice:
        """A notice to yourself, by mail or webhook."""
        answer = self._connection.post(f"{PATH}/test", {"channel": channel}, keyed=False)
        return decode(Notice, answer)
