"""`client.notifications`: your notices, and your choice of their channels."""

from collections.abc import Iterator, Mapping

from trainyard.transport.connection import Connection
from trainyard.transport.decoding import decode
from trainyard.transport.paging import all_pages
from trainyard.views import NewWebhook, Notice, NoticeChoices

PATH = "/v1/me/notifications"


class Notifications:
    """Notices to you."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def list(self, *, limit: int | None = None) -> Iterator[Notice]:
        """Iterate over your notices, newest first."""
        return all_pages(self._connection, PATH, Notice, limit=limit)

    def choices(self) -> NoticeChoices:
        """Return your channels for notices."""
        return decode(NoticeChoices, self._connection.get(f"{PATH}/choices"))

    def choose(self, every: str, kinds: Mapping[str, str] | None = None) -> NoticeChoices:
        """Choose mail, webhook, digest or off for every kind, and for the exceptions in `kinds`."""
        body = {"every": every, "kinds": dict(kinds or {})}
        return decode(NoticeChoices, self._connection.put(f"{PATH}/choices", body))

    def set_webhook(self, url: str) -> NewWebhook:
        """Have notices posted to `url`; the secret that signs them is shown only this once."""
        return decode(NewWebhook, self._connection.put("/v1/me/webhook", {"url": url}))

    def forget_webhook(self) -> None:
        """Stop posting notices to the webhook."""
        self._connection.delete("/v1/me/webhook")

    def test(self, channel: str) -> Notice:
        """Send a notice to yourself, by mail or webhook."""
        answer = self._connection.post(f"{PATH}/test", {"channel": channel}, keyed=False)
        return decode(Notice, answer)
