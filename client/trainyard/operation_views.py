"""What the API answers about running the platform itself, as frozen dataclasses."""

from dataclasses import dataclass
from datetime import datetime

from trainyard.decoding import View


@dataclass(frozen=True, kw_only=True)
class ReadOnly(View):
    """Whether the platform is read-only, why, and until when at most."""

    read_only: bool
    reason: str
    until: datetime | None


@dataclass(frozen=True, kw_only=True)
class UnsafeSetting(View):
    """Something of the installation that could be safer, and what to do about it."""

    setting: str
    level: str
    """`danger` or `warn`"""
    found: str
    todo: str


@dataclass(frozen=True, kw_only=True)
class ClientRelease(View):
    """The client that the server carries."""

    version: str
    filename: str
    url: str
    sha256: str
    command: str
    """Installs or updates it; pip checks the hash."""
