"""`client.people`: labs, invitations, exceptions, whole courses."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from trainyard.resources.timestamps import written
from trainyard.transport.connection import Connection, segment
from trainyard.transport.decoding import decode
from trainyard.transport.paging import all_pages
from trainyard.views import Grant, Import, Invite, Lab, Link, Move, NewInvite, NewToken, User


class People:
    """Membership of labs, and personal exceptions to the rules."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    # ---------------------------------------------------------------------------- labs, by name

    def labs(self) -> Iterator[Lab]:
        """Iterate over all labs for staff, over your own labs for others."""
        return all_pages(self._connection, "/v1/labs", Lab)

    def add_lab(self, name: str, *, weight: float = 1.0, groups: Sequence[str] = ()) -> Lab:
        """Create an empty lab."""
        body = {"name": name, "weight": weight, "groups": list(groups)}
        return decode(Lab, self._connection.post("/v1/labs", body))

    def change_lab(
        self, lab: str, *, weight: float | None = None, groups: Sequence[str] | None = None
    ) -> Lab:
        """Change the given fields of a lab, and leave the others."""
        body: dict[str, object] = {}
        if weight is not None:
            body["weight"] = weight
        if groups is not None:
            body["groups"] = list(groups)
        return decode(Lab, self._connection.patch(f"/v1/labs/{segment(lab)}", body))

    def add_member(self, lab: str, user: str, *, is_lead: bool = False) -> Lab:
        """Add a member to a lab, or change the `is_lead` of one who already is a member."""
        path = f"/v1/labs/{segment(lab)}/members"
        return decode(Lab, self._connection.post(path, {"user": user, "is_lead": is_lead}))

    def remove_member(self, lab: str, user: str) -> Lab:
        """Remove a member from a lab; nothing else of theirs changes."""
        path = f"/v1/labs/{segment(lab)}/members/{segment(user)}"
        return decode(Lab, self._connection.delete(path))

    def move(self, user: str, *, from_lab: str, to_lab: str) -> Move:
        """Move a person to another lab. Future leases follow; past use stays with the old lab."""
        path = f"/v1/users/{segment(user)}/move"
        body = {"from_lab": from_lab, "to_lab": to_lab}
        return decode(Move, self._connection.post(path, body))

    # ------------------------------------------------------------------------------- coming in

    def invite(
        self,
        *,
        lab: str | None = None,
        email: str | None = None,
        attributes: Mapping[str, str] | None = None,
        days: int = 7,
    ) -> NewInvite:
        """Create a link with which one person makes an account; it is shown only this once."""
        body = {"lab": lab, "email": email, "attributes": dict(attributes or {}), "days": days}
        return decode(NewInvite, self._connection.post("/v1/invites", body))

    def invites(self) -> Iterator[Invite]:
        """Iterate over all invitations for staff, over your own for others, newest first."""
        return all_pages(self._connection, "/v1/invites", Invite)

    def revoke_invite(self, invite_id: str) -> None:
        """Revoke an invitation; its link stops working."""
        self._connection.delete(f"/v1/invites/{segment(invite_id)}")

    def mail_invite(self, invite_id: str) -> None:
        """Mail an invitation to the address that it was made for; the link that was shown stops
        working then."""
        self._connection.post(f"/v1/invites/{segment(invite_id)}/letter", keyed=False)

    def import_list(
        self, csv: str, *, dry_run: bool = False, links: bool = False, mail: bool = False
    ) -> Import:
        """Add and change the people of a CSV list; `links` makes password links for new ones,
        `mail` sends one to each who has an address."""
        body = {"csv": csv, "dry_run": dry_run, "links": links, "mail": mail}
        return decode(Import, self._connection.post("/v1/users/import", body))

    def password_link(self, user: str) -> Link:
        """Create a link with which a person sets a new password, once."""
        return decode(Link, self._connection.post(f"/v1/users/{segment(user)}/password-link"))

    def mail_password(self, user: str) -> None:
        """Mail a person a link with which to set a password, once."""
        self._connection.post(f"/v1/users/{segment(user)}/password-letter", keyed=False)

    def describe(
        self,
        user: str,
        *,
        email: str | None = None,
        attributes: Mapping[str, str] | None = None,
    ) -> User:
        """Set a person's address, or all of their attributes; an empty address removes it."""
        body: dict[str, object] = {}
        if email is not None:
            body["email"] = email or None
        if attributes is not None:
            body["attributes"] = dict(attributes)
        return decode(User, self._connection.patch(f"/v1/users/{segment(user)}", body))

    # ------------------------------------------------------------------------------ exceptions

    def grants(self, *, user: str | None = None, now_only: bool = False) -> Iterator[Grant]:
        """Iterate over all people's exceptions to the booking rules, newest first."""
        return all_pages(self._connection, "/v1/grants", Grant, user=user, now_only=now_only)

    def grant(
        self,
        user: str,
        rule: str,
        *,
        extra: int = 1,
        starts_at: datetime,
        ends_at: datetime,
        why: str,
    ) -> Grant:
        """Lift one rule, by its reason code, for blocks that start in the given time."""
        body = {
            "user": user,
            "rule": rule,
            "extra": extra,
            "starts_at": written(starts_at),
            "ends_at": written(ends_at),
            "why": why,
        }
        return decode(Grant, self._connection.post("/v1/grants", body))

    def revoke_grant(self, grant_id: str) -> None:
        """Revoke an exception from now on."""
        self._connection.delete(f"/v1/grants/{segment(grant_id)}")


def accept_invite(connection: Connection, secret: str, name: str, password: str) -> NewToken:
    """Accept an invitation: make an account and sign in."""
    body = {"secret": secret, "name": name, "password": password}
    return decode(NewToken, connection.post("/v1/invites/accept", body, keyed=False))


def set_password_by_link(connection: Connection, secret: str, password: str) -> NewToken:
    """Set a new password by a link, and sign in; every other session ends."""
    body = {"secret": secret, "password": password}
    return decode(NewToken, connection.post("/v1/new-password", body, keyed=False))
