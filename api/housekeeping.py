"""What nobody needs any more is forgotten, a few times a day."""

import asyncio
from datetime import datetime, timedelta

import anyio
import structlog
from sqlalchemy import delete
from sqlalchemy.exc import SQLAlchemyError

from core.clock import utc_now
from core.database import Database
from core.tables import IdempotentAnswer, Link

EVERY_S = 6 * 3600.0
KEYS_LIVE = timedelta(days=7)  # how long a repeated request still finds its first answer
LINKS_LIVE = timedelta(days=7)  # after they expired: until then an error can say so

log = structlog.get_logger()


async def keep_house(database: Database) -> None:
    """Forget old idempotency keys and links, until cancelled."""
    while True:
        try:
            await anyio.to_thread.run_sync(forget_old, database, utc_now())
        except SQLAlchemyError as error:
            log.warning("house_not_kept", error=str(error))
        await asyncio.sleep(EVERY_S)


def forget_old(database: Database, now: datetime) -> None:
    """Delete idempotency keys and links that are past their time."""
    with database.write() as session:
        session.execute(
            delete(IdempotentAnswer).where(IdempotentAnswer.created_at < now - KEYS_LIVE)
        )
        session.execute(delete(Link).where(Link.expires_at < now - LINKS_LIVE))
