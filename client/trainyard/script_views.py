"""Answers about code and secrets of scripts."""

from dataclasses import dataclass
from datetime import datetime

from trainyard.decoding import View


@dataclass(frozen=True, kw_only=True)
class Code(View):
    """An archive of code that you have uploaded."""

    sha256: str
    size: int
    unpacked_size: int
    paths: tuple[str, ...]
    created_at: datetime


@dataclass(frozen=True, kw_only=True)
class CodeLine(View):
    """An archive of code in a list; `jobs` have not ended and need it."""

    sha256: str
    size: int
    files: int
    jobs: tuple[str, ...]
    created_at: datetime


@dataclass(frozen=True, kw_only=True)
class Secret(View):
    """A secret: that it is there, not what it is."""

    name: str
    created_at: datetime
    updated_at: datetime
