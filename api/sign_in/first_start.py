"""First start, while there are no users: a single-use link that makes the first administrator."""

from datetime import timedelta
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from sqlalchemy import delete, func, select

from api.web.credentials import issue_link
from core.base.clock import utc_now
from core.base.secret_text import digest
from core.database.database import Database
from core.process.claims import claim
from core.tables.kinds import LinkKind
from core.tables.people import Link, User
from strategies.plan.durable_files import PRIVATE, write_atomically

LIFETIME = timedelta(hours=1)


def ensure_link(database: Database, *, url: str, path: Path) -> str | None:
    """Return the first-start link, also written to `path` (mode 0600); None if there are users.

    There is one link: an API process returns the link of another one that started with it, as long
    as nobody has used it and it has not expired. Any other first-start link is deleted.
    """
    now = utc_now()
    with database.write() as session:
        # A second process waits here for the commit of the first.
        claim(session, "first-start", holder="", now=now, lasts=timedelta(0))
        if session.scalar(select(func.count()).select_from(User)):
            path.unlink(missing_ok=True)
            return None
        told = path.read_text().strip() if path.exists() else ""
        valid = select(Link.sha256).where(
            Link.kind == LinkKind.FIRST_START, Link.used_at.is_(None), Link.expires_at > now
        )
        if told.startswith(url) and digest(_secret_of(told)) in session.scalars(valid).all():
            return told
        session.execute(delete(Link).where(Link.kind == LinkKind.FIRST_START))
        _, secret = issue_link(session, kind=LinkKind.FIRST_START, now=now, lifetime=LIFETIME)
        link = f"{url}/first-start?secret={secret}"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, f"{link}\n".encode(), mode=PRIVATE)
    return link


def _secret_of(link: str) -> str:
    return "".join(parse_qs(urlsplit(link).query).get("secret", []))
