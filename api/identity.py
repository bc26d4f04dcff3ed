"""Who a request comes from, once that is proven."""

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
    """A plain user's, where the token has not the scope `all`."""
    zone: str
    token_id: str
    scopes: frozenset[Scope]
    """With those that they include."""
    made_with: str | None = None
    """The API token that all they make ends with; None of a session that somebody signed in to."""
    token_ends_at: datetime | None = None
    """When that token ends; None without one, or if it has no end."""

    @property
    def is_staff(self) -> bool:
        """Staff and administrators see what belongs to others."""
        return RANK[self.role] >= RANK[Role.STAFF]


@dataclass(frozen=True)
class NodeIdentity:
    """An enrolled node."""

    id: str
    name: str
