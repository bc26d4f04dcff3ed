"""Sign-in by access to the database: a person who can open it needs no password.

This is for the owner of the machine, who has lost every login or never had one.
"""

import os
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from api.web import audit
from api.web.credentials import issue_link
from core.base.clock import utc_now
from core.base.errors import NotFound
from core.database.database import Database
from core.tables.kinds import LinkKind, Role
from core.tables.people import User

LIFETIME = timedelta(hours=1)  # the platform may have to be started before it can be followed


@dataclass(frozen=True)
class OwnerLink:
    """A link that signs an administrator in, once."""

    name: str
    """Name of the administrator."""
    url: str
    secret: str
    expires_at: datetime


def owner_link(
    database: Database, *, url: str, actor: str, name: str | None = None
) -> OwnerLink | None:
    """Issue a login link for the administrator `name`, by default for the first one.

    Returns None if there is no administrator. Raises NotFound if `name` is not an enabled
    administrator. `actor` is recorded in the audit log.
    """
    now = utc_now()
    with database.write() as session:
        found = administrators(session)
        if not found:
            return None
        user = found[0] if name is None else _named(found, name)
        link, secret = issue_link(
            session, kind=LinkKind.LOGIN, now=now, lifetime=LIFETIME, user_id=user.id
        )
        audit.record(session, actor, "user.login_link", user.id, now=now, uid=os.getuid())
        return OwnerLink(user.name, f"{url}/login?link={secret}", secret, link.expires_at)


def administrators(session: Session) -> list[User]:
    """Return the administrators who are not disabled, oldest account first."""
    query = select(User).where(User.role == Role.ADMIN, User.disabled.is_(False))
    return list(session.scalars(query.order_by(User.id)))


def is_password_missing(database: Database) -> bool:
    """Return True if there are enabled administrators and none of them has a password."""
    with database.read() as session:
        found = administrators(session)
    return bool(found) and all(user.password_hash is None for user in found)


def _named(users: list[User], name: str) -> User:
    for user in users:
        if user.name == name:
            return user
    raise NotFound(
        f"{name!r} is not an enabled administrator here. The enabled administrators are: "
        f"{', '.join(user.name for user in users)}."
    )
