"""Who a request comes from, once that is proven."""

from dataclasses import dataclass

from core.tables import Role

RANK = {Role.USER: 0, Role.STAFF: 1, Role.ADMIN: 2}


@dataclass(frozen=True)
class Person:
    """A signed-in person."""

    id: str
    name: str
    role: Role
    zone: str
    token_id: str

    @property
    def is_staff(self) -> bool:
        """Staff and administrators see what belongs to others."""
        return RANK[self.role] >= RANK[Role.STAFF]


@dataclass(frozen=True)
class NodeIdentity:
    """An enrolled node."""

    id: str
    name: str
