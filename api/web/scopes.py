"""Scopes of API tokens, and the scope that each route needs.

A session may do all that its person may; a token only what its scopes name. Deny by default: a
signed-in person's route that is in none of these areas stops the start of the API.
"""

from collections.abc import Iterable
from functools import cache

from core.base.errors import Forbidden
from core.tables.kinds import Scope

AREAS: dict[Scope, tuple[str, ...]] = {  # /v1/<area>; the scope is what a change there needs
    Scope.JOBS: (
        "jobs",
        "studies",
        "agendas",
        "reports",
        "shares",
        "templates",
        "courses",
        "code",
        "secrets",
        "datasets",
        "models",
        "tokenizers",
        "uploads",
        "workspace",
        "workbenches",
    ),
    Scope.LEASES: ("leases", "waitlist", "calendars"),
    Scope.ACCOUNT: ("me", "tokens", "sessions", "invites"),
    Scope.ALL: (
        *("admin", "users", "labs", "grants", "policies", "windows", "maintenance"),
        *("nodes", "usage", "bands", "changes"),
    ),
}
EXCEPTIONS = {
    "POST /v1/jobs/plan": Scope.READ,
    "POST /v1/agendas/plan": Scope.READ,
    "POST /v1/leases/verdict": Scope.READ,
    "POST /v1/reports/check": Scope.READ,
    "POST /v1/templates/{template_id}/fill": Scope.READ,
    "POST /v1/courses": Scope.ALL,
    "DELETE /v1/courses/{course}": Scope.ALL,
    "POST /v1/policies/forecast": Scope.READ,
    "DELETE /v1/sessions/current": Scope.READ,  # whoever finds a token may make it useless
    "POST /v1/me/login-link": Scope.ALL,  # the session that it opens may do everything
}


class MissingScope(Forbidden):
    """Refusal of a token that lacks the scope of the route."""

    code = "missing_scope"

    def __init__(self, scope: Scope, held: Iterable[Scope]) -> None:
        holds = ", ".join(one for one in Scope if one in set(held)) or "none"
        super().__init__(
            f"This needs a token with the scope {scope}; yours holds {holds}. Make one: "
            f"trainyard tokens create NAME --scope {scope}, or on the account page."
        )
        # RFC 6750, section 3.1
        self.headers = {"WWW-Authenticate": f'Bearer error="insufficient_scope", scope="{scope}"'}


@cache
def scope_of(method: str, path: str) -> Scope:
    """Return the scope that a signed-in person's token needs for this route. Raises LookupError if
    none is declared."""
    name = path.split("/")[2]
    for scope, areas in AREAS.items():
        if name in areas:
            return EXCEPTIONS.get(
                f"{method} {path}", Scope.READ if method in ("GET", "HEAD") else scope
            )
    raise LookupError(f"{method} {path}: api/web/scopes.py does not say which scope it needs")


def included(scopes: Iterable[Scope]) -> frozenset[Scope]:
    """Return the scopes and those that they include: every scope includes `read`, `all` every
    other."""
    held = frozenset(scopes)
    if Scope.ALL in held:
        return frozenset(Scope)
    return held | {Scope.READ} if held else held
