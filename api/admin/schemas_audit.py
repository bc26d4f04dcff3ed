"""Answers about the audit log."""

from typing import Any

from api.web.schemas import EventView


class AuditView(EventView):
    """One entry of the audit log: who did what. `kind` is the action, such as `node.drain`."""

    subject: str
    details: dict[str, Any]
    actor_name: str | None
    """Present name of the person or node that acted; null for a process."""
    subject_name: str | None
    """Present name of the entry's subject."""
