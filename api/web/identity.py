"""Identity of a request's sender, once it is proven."""

from dataclasses import dataclass
from datetime import datetime

from core.tables.kinds import Role, Scope

RANK = {Role.USER: 0, Role.STAFF: 1, Role.ADMIN: 2}


@dataclass(frozen=True)
class Person:
    """A signed-in person."""

    id: str
    name: str
    role: Role
    """Role of the person; `user` if the token does not have the scope `all`."""
    zone: str
    token_id: str
    scopes: frozenset[Scope]
    """Scopes of the token, with those that they include."""
    made_with: str | None = None
    """Id of the API token whose end also ends everything made with it; None for a session that
    somebody signed in to."""
    token_ends_at: datetime | None = None
    """Moment at which that token ends; None if there is no such token or it has no end."""

    @property
    def is_staff(self) -> bool:
        """True for staff and administrators, who see what belongs to others."""
        return RANK[self.role] >= RANK[Role.STAFF]


@dataclass(frozen=True)
class NodeIdentity:
    """An enrolled node."""

    id: str
    name: str
