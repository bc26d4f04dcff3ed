"""`client.admin`: people, nodes and the audit log, for staff and administrators."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from trainyard.connection import Connection, segment
from trainyard.decoding import decode
from trainyard.paging import all_pages, whole_list
from trainyard.views import (
    AuditEntry,
    Enrolment,
    InTheWay,
    Link,
    Node,
    ReadOnly,
    UnsafeSetting,
    User,
)


class Admin:
    """What only staff and administrators may do."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    # -------------------------------------------------------------------------------- people

    def users(self) -> Iterator[User]:
        """Everybody."""
        return all_pages(self._connection, "/v1/users", User)

    def add_user(
        self, name: str, *, role: str = "user", password: str | None = None, zone: str = "UTC"
    ) -> User:
        """Add a person; without a password they sign in by a login link."""
        body = {"name": name, "role": role, "password": password, "zone": zone}
        return decode(User, self._connection.post("/v1/users", body))

    def change_user(
        self,
        user: str,
        *,
        role: str | None = None,
        disabled: bool | None = None,
        password: str | None = None,
    ) -> User:
        """Change what is given of a person, by id or name, and leave the rest."""
        given = {"role": role, "disabled": disabled, "password": password}
        body = {name: value for name, value in given.items() if value is not None}
        return decode(User, self._connection.patch(f"/v1/users/{segment(user)}", body))

    def login_link(self, user: str) -> Link:
        """A link with which a person can sign in once."""
        return decode(Link, self._connection.post(f"/v1/users/{segment(user)}/login-link"))

    def unsafe_settings(self) -> list[UnsafeSetting]:
        """What of the installation could be safer, the most dangerous first."""
        return whole_list(self._connection, "/v1/admin/unsafe-settings", UnsafeSetting)

    def unlink(self, user: str) -> None:
        """Forget who a person is at the OpenID provider; their next sign-in links them anew."""
        self._connection.delete(f"/v1/users/{segment(user)}/identities")

    # ------------------------------------------------------------------- nodes, by id or name

    def enrol(self, name: str, *, node_class: str | None = None) -> Enrolment:
        """A single-use token for a new node."""
        body = {"name": name, "node_class": node_class}
        return decode(Enrolment, self._connection.post("/v1/admin/enrolments", body))

    def drain(self, node: str) -> Node:
        """Start nothing new there; what runs goes on."""
        return self._act(node, "drain")

    def maintenance(self, node: str) -> Node:
        """Drain it if it is in use; it is in maintenance once nothing runs on it."""
        return self._act(node, "maintenance")

    def in_the_way(self, node: str) -> InTheWay:
        """The jobs that run on it and the leases that are open on it."""
        path = f"/v1/admin/nodes/{segment(node)}/in-the-way"
        return decode(InTheWay, self._connection.get(path))

    def resume(self, node: str) -> Node:
        """Use it again."""
        return self._act(node, "resume")

    def quarantine(self, node: str) -> Node:
        """Take it out because it cannot be trusted."""
        return self._act(node, "quarantine")

    def retire(self, node: str) -> Node:
        """Take it out for good; its token stops working."""
        return self._act(node, "retire")

    def audit(
        self,
        *,
        limit: int | None = None,
        actor: str | None = None,
        action: str | None = None,
        subject: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> Iterator[AuditEntry]:
        """Who did what, newest first. `action` is such as `node.drain`; `node.` is all of it."""
        return all_pages(
            self._connection,
            "/v1/admin/audit",
            AuditEntry,
            limit=limit,
            actor=actor,
            action=action,
            subject=subject,
            since=since.isoformat() if since else None,
            until=until.isoformat() if until else None,
        )

    def begin_read_only(self, *, minutes: int, reason: str) -> ReadOnly:
        """Change nothing from now on, for so long at most. What runs goes on."""
        body = {"minutes": minutes, "reason": reason}
        return decode(ReadOnly, self._connection.post("/v1/admin/read-only", body))

    def end_read_only(self) -> None:
        """Changes are welcome again."""
        self._connection.delete("/v1/admin/read-only")

    def _act(self, node: str, verb: str) -> Node:
        answer: Any = self._connection.post(f"/v1/admin/nodes/{segment(node)}/{verb}")
        return decode(Node, answer)
