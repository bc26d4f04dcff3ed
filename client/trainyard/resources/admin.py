"""`client.admin`: people, nodes and the audit log, for staff and administrators."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from trainyard.transport.connection import Connection, segment
from trainyard.transport.decoding import decode
from trainyard.transport.paging import all_pages, whole_list
from trainyard.views import (
    AuditEntry,
    Enrolment,
    Fabric,
    InTheWay,
    Link,
    Network,
    NetworkList,
    Node,
    ReadOnly,
    UnsafeSetting,
    User,
)


class Admin:
    """Operations that only staff and administrators may perform."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    # -------------------------------------------------------------------------------- people

    def users(self) -> Iterator[User]:
        """Iterate over all people."""
        return all_pages(self._connection, "/v1/users", User)

    def add_user(
        self, name: str, *, role: str = "user", password: str | None = None, zone: str = "UTC"
    ) -> User:
        """Add a person. Without a password they sign in with a login link."""
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
        """Change the given fields of a person, named by id or name, and leave the others."""
        given = {"role": role, "disabled": disabled, "password": password}
        body = {name: value for name, value in given.items() if value is not None}
        return decode(User, self._connection.patch(f"/v1/users/{segment(user)}", body))

    def login_link(self, user: str) -> Link:
        """Create a link with which a person can sign in once."""
        return decode(Link, self._connection.post(f"/v1/users/{segment(user)}/login-link"))

    def unsafe_settings(self) -> list[UnsafeSetting]:
        """Return the settings of the installation that could be safer, the most dangerous first."""
        return whole_list(self._connection, "/v1/admin/unsafe-settings", UnsafeSetting)

    def unlink(self, user: str) -> None:
        """Forget a person's identity at the OpenID provider; their next sign-in links it anew."""
        self._connection.delete(f"/v1/users/{segment(user)}/identities")

    # ------------------------------------------------------------------- nodes, by id or name

    def enrol(self, name: str, *, node_class: str | None = None) -> Enrolment:
        """Create a single-use token for a new node."""
        body = {"name": name, "node_class": node_class}
        return decode(Enrolment, self._connection.post("/v1/admin/enrolments", body))

    def drain(self, node: str, *, reason: str | None = None) -> Node:
        """Start nothing new on the node; its running jobs continue."""
        return self._act(node, "drain", reason)

    def maintenance(self, node: str, *, reason: str | None = None) -> Node:
        """Put the node into maintenance, after draining it if it is in use."""
        return self._act(node, "maintenance", reason)

    def in_the_way(self, node: str) -> InTheWay:
        """Return the jobs that run on the node and the open leases of the node."""
        path = f"/v1/admin/nodes/{segment(node)}/in-the-way"
        return decode(InTheWay, self._connection.get(path))

    def resume(self, node: str) -> Node:
        """Put the node back into service."""
        return self._act(node, "resume")

    def quarantine(self, node: str, *, reason: str | None = None) -> Node:
        """Take the node out of service because it is suspected to be faulty."""
        return self._act(node, "quarantine", reason)

    def quarantine_slot(self, node: str, slot: int) -> Node:
        """Take one slot of the node out of service; its other slots are used as before."""
        return self._act(node, f"slots/{slot}/quarantine")

    def resume_slot(self, node: str, slot: int) -> Node:
        """Put a slot of the node back into service."""
        return self._act(node, f"slots/{slot}/resume")

    def retire(self, node: str) -> Node:
        """Take the node out of service for good; its token stops working."""
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
        """Iterate over the audit log, newest entry first.

        `action` is one action, such as `node.drain`, or a prefix: `node.` selects all actions on
        nodes.
        """
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

    def fabric(self, node_class: str) -> Fabric:
        """Return the network between the nodes of a class."""
        path = f"/v1/admin/node-classes/{segment(node_class)}/fabric"
        return decode(Fabric, self._connection.get(path))

    def set_fabric(
        self, node_class: str, *, interface: str = "", adapters: str = "", programs: str = "relay"
    ) -> Fabric:
        """Set the network between the nodes of a class, for attempts that start from now on."""
        body = {"interface": interface, "adapters": adapters, "programs": programs}
        path = f"/v1/admin/node-classes/{segment(node_class)}/fabric"
        return decode(Fabric, self._connection.put(path, body))

    def network(self) -> Network:
        """Return the hosts that programs may reach, by node class and by lab."""
        return decode(Network, self._connection.get("/v1/admin/network"))

    def set_network(
        self, hosts: Sequence[str], *, node_class: str | None = None, lab: str | None = None
    ) -> NetworkList:
        """Set the hosts that programs of a node class, or of a lab, may reach; none removes the
        list."""
        assert (node_class is None) != (lab is None)
        owner = (
            f"node-classes/{segment(node_class)}" if node_class else f"labs/{segment(lab or '')}"
        )
        path = f"/v1/admin/network/{owner}"
        return decode(NetworkList, self._connection.put(path, {"hosts": list(hosts)}))

    def begin_read_only(self, *, minutes: int, reason: str) -> ReadOnly:
        """Refuse all changes from now on, for at most `minutes`. Running jobs continue."""
        body = {"minutes": minutes, "reason": reason}
        return decode(ReadOnly, self._connection.post("/v1/admin/read-only", body))

    def end_read_only(self) -> None:
        """Accept changes again."""
        self._connection.delete("/v1/admin/read-only")

    def _act(self, node: str, verb: str, reason: str | None = None) -> Node:
        body = {"reason": reason} if reason else None
        answer: Any = self._connection.post(f"/v1/admin/nodes/{segment(node)}/{verb}", body)
        return decode(Node, answer)
