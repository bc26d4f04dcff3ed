"""What the API says of people: labs, invitations, exceptions, imports, moves."""

from dataclasses import dataclass
from datetime import datetime

from trainyard.decoding import View
from trainyard.views import User


@dataclass(frozen=True, kw_only=True)
class Session(View):
    """Where you are signed in; `name` says with what and from which address."""

    id: str
    name: str
    is_this_one: bool
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None


@dataclass(frozen=True, kw_only=True)
class Lab(View):
    """A group of people who share a budget; `members` and `leads` are names."""

    id: str
    name: str
    weight: float
    groups: tuple[str, ...]
    members: tuple[str, ...]
    leads: tuple[str, ...]
    created_at: datetime


@dataclass(frozen=True, kw_only=True)
class Invite(View):
    """An invitation, without its secret. `state` is open, used, expired or revoked."""

    id: str
    lab: str | None
    email: str | None
    attributes: dict[str, str]
    invited_by: str
    state: str
    used_by: str | None
    created_at: datetime
    expires_at: datetime


@dataclass(frozen=True, kw_only=True)
class NewInvite(Invite):
    """A fresh invitation; its link is shown this once."""

    url: str
    secret: str


@dataclass(frozen=True, kw_only=True)
class Grant(View):
    """An exception: one person may do `extra` more under `rule` for a while."""

    id: str
    user: str
    rule: str
    extra: int
    starts_at: datetime
    ends_at: datetime
    granted_by: str
    why: str
    created_at: datetime
    revoked_at: datetime | None


@dataclass(frozen=True, kw_only=True)
class ImportRow(View):
    """What one line of a list of people means. `action` is add, change or same."""

    line: int
    name: str
    action: str
    changes: tuple[str, ...]
    password_link: str | None


@dataclass(frozen=True, kw_only=True)
class Import(View):
    """What a list of people has done, or would do."""

    dry_run: bool
    added: int
    changed: int
    same: int
    labs: tuple[str, ...]
    rows: tuple[ImportRow, ...]


@dataclass(frozen=True, kw_only=True)
class Move(View):
    """From one lab to another; `leases` are the ids of those to come, which follow."""

    user: User
    from_lab: str
    to_lab: str
    leases: tuple[str, ...]
