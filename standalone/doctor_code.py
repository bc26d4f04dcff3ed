"""`trainyard doctor --server`: the archives of code in the store that hold what is private.

Clients leave such files out by the same rule; an older one, or another, may have sent them.
"""

from collections.abc import Iterator
from typing import NamedTuple

from sqlalchemy import select, tuple_
from sqlalchemy.orm import Session

from core.tables.people import User
from core.tables.scripts import CodeArchive
from trainyard.doctor import Examiner, Finding
from trainyard.packing.private_files import why_private

SHOWN = 3  # paths of each archive
AT_A_TIME = 50  # archives; each has up to 5,000 paths


class PrivateArchive(NamedTuple):
    """An archive of code that holds what is private, by its paths."""

    owner: str
    sha256: str
    paths: list[str]


def private_archives(session: Session) -> Iterator[PrivateArchive]:
    """Look through the paths of every archive, some archives at a time."""
    place = tuple_(User.name, CodeArchive.sha256)
    query = (
        select(User.name, CodeArchive.sha256, CodeArchive.paths)
        .join(User, User.id == CodeArchive.user_id)
        .order_by(User.name, CodeArchive.sha256)
        .limit(AT_A_TIME)
    )
    last = ("", "")
    while rows := session.execute(query.where(place > last)).all():
        for owner, sha256, paths in rows:
            if private := [path for path in paths if why_private(path)]:
                yield PrivateArchive(owner, sha256, private)
        last = (rows[-1][0], rows[-1][1])


def about_code(finding: Examiner, session: Session) -> Iterator[Finding]:
    """Report archives that hold hidden files, or files that may be keys or passwords."""
    found = False
    for archive in private_archives(session):
        found = True
        more = len(archive.paths) - SHOWN
        yield finding(
            "code",
            "warn",
            f"{archive.owner}'s archive {archive.sha256[:12]} holds "
            f"{', '.join(archive.paths[:SHOWN])}{f' and {more:,} more' if more > 0 else ''}",
            "Unless this is intended, its owner should change the secrets in it, and delete "
            f"it with `trainyard archives delete {archive.sha256[:12]}` once no job needs it.",
        )
    if not found:
        yield finding("code", "ok", "no archive has hidden files or files that are named like keys")
