"""`client.agendas`: an ordered list of jobs for one lease."""

from collections.abc import Iterator, Mapping
from typing import Any

from trainyard.resources.jobs import Spec, spec_text
from trainyard.transport.connection import Connection, segment
from trainyard.transport.decoding import decode
from trainyard.transport.paging import all_pages
from trainyard.views import Agenda, AgendaPlan


class Agendas:
    """Agendas of the signed-in user."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def plan(
        self,
        agenda: Spec,
        *,
        lease: str | None = None,
        hours: int | None = None,
        node_class: str | None = None,
        nodes: int | None = None,
    ) -> AgendaPlan:
        """Plan an agenda without submitting anything.

        The jobs have to fit into a lease of yours, together with the leases that were booked with
        it, or into `hours` on a node of `node_class`, or on that many `nodes`.
        """
        asked = {"lease": lease, "hours": hours, "node_class": node_class, "nodes": nodes}
        return decode(AgendaPlan, self._post("/v1/agendas/plan", agenda, asked))

    def create(self, agenda: Spec, *, lease: str, anyway: bool = False) -> Agenda:
        """Submit the jobs of an agenda, all or none.

        Raises Conflict with the code `over_time` if they do not fit, unless `anyway` is set.
        """
        asked = {"lease": lease, "anyway": "true" if anyway else None}
        return decode(Agenda, self._post("/v1/agendas", agenda, asked))

    def list(
        self, *, lease: str | None = None, user: str | None = None, limit: int | None = None
    ) -> Iterator[Agenda]:
        """Iterate over your agendas, newest first, or over those of one lease.

        Staff may name another `user`, or `all`.
        """
        return all_pages(
            self._connection, "/v1/agendas", Agenda, limit=limit, lease=lease, user=user
        )

    def get(self, agenda_id: str) -> Agenda:
        """Return an agenda in its present state, with its delay and the fit of its remaining
        jobs."""
        return decode(Agenda, self._connection.get(f"/v1/agendas/{segment(agenda_id)}"))

    def cancel(self, agenda_id: str) -> Agenda:
        """Cancel the waiting jobs of an agenda; a running one continues."""
        return decode(Agenda, self._connection.post(f"/v1/agendas/{segment(agenda_id)}/cancel"))

    def _post(self, path: str, agenda: Spec, asked: Mapping[str, object]) -> Any:
        params = {name: str(value) for name, value in asked.items() if value is not None}
        if isinstance(agenda, Mapping):
            return self._connection.post(path, dict(agenda), params=params)
        return self._connection.post_yaml(path, spec_text(agenda), params=params)
