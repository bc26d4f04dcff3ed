"""`client.templates`: jobs, scripts and agendas with locked and open fields."""

from collections.abc import Iterator, Mapping
from typing import Any

from trainyard.resources.jobs import Spec, spec_text
from trainyard.resources.shares import id_of
from trainyard.transport.connection import Connection, segment
from trainyard.transport.decoding import decode
from trainyard.transport.paging import all_pages
from trainyard.views import FilledTemplate, Start, Template


class Templates:
    """Templates of the signed-in user, and those shared with them."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def list(self) -> Iterator[Template]:
        """Iterate over your templates and those shared with you."""
        return all_pages(self._connection, "/v1/templates", Template)

    def get(self, template: str) -> Template:
        """Return a template by id, name or OWNER/NAME."""
        return decode(Template, self._connection.get(self._path(template)))

    def keep(self, template: Spec, *, code: str | None = None) -> Template:
        """Keep a template; one of yours with its name gets its next version.

        `code` is the hash of an archive of code, for scripts that name none.
        """
        params = {} if code is None else {"code": code}
        if isinstance(template, Mapping):
            answer = self._connection.post("/v1/templates", dict(template), params=params)
        else:
            text = spec_text(template)
            answer = self._connection.post_yaml("/v1/templates", text, params=params)
        return decode(Template, answer)

    def fill(self, template: str, values: Mapping[str, Any]) -> FilledTemplate:
        """Return the spec that a start with these values would submit."""
        body = {"values": dict(values)}
        return decode(
            FilledTemplate, self._connection.post(f"{self._path(template)}/fill", body, keyed=False)
        )

    def start(
        self,
        template: str,
        values: Mapping[str, Any] | None = None,
        *,
        lease: str | None = None,
        anyway: bool = False,
    ) -> Start:
        """Submit a template's job or agenda with values of its open fields, by path."""
        body: dict[str, Any] = {"values": dict(values or {}), "anyway": anyway}
        if lease is not None:
            body["lease"] = lease
        return decode(Start, self._connection.post(f"{self._path(template)}/start", body))

    def delete(self, template: str) -> None:
        """Delete a template of yours. What was started from it stays."""
        self._connection.delete(f"/v1/templates/{segment(template)}")

    def _path(self, template: str) -> str:
        found = id_of(self.list(), template) if "/" in template else template
        return f"/v1/templates/{segment(found)}"
