"""Offers of free blocks to the waitlist: made to the next in line, ended when nobody takes them."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Protocol

import structlog
from sqlalchemy import select
from sqlalchemy.orm import Session

from core import waitlist
from core.database import Database
from core.errors import HourTaken
from core.tables.kinds import OfferState
from core.tables.leases import Offer, Wait

log = structlog.get_logger()


class Leader(Protocol):
    """Who may write."""

    def write(self) -> AbstractContextManager[Session]:
        """A transaction that only the leader can begin."""


def serve(database: Database, leader: Leader, now: datetime) -> int:
    """End overdue offers and make new ones; how many changes."""
    with database.read() as session:
        if not waitlist.anything_to_do(session, now):
            return 0
        overdue = waitlist.overdue_offers(session, now)
    changes = 0
    for offer_id in overdue:
        with leader.write() as session:
            overdue_one = session.scalars(
                select(Offer).where(Offer.id == offer_id).with_for_update()
            ).one()
            changes += waitlist.let_pass(session, overdue_one, OfferState.EXPIRED, now=now)
    with leader.write() as session:
        changes += waitlist.close_hopeless(session, now)
    for wait_id, free in _wanted(database, now):
        try:
            with leader.write() as session:
                made = waitlist.offer(session, session.get_one(Wait, wait_id), free, now=now)
        except HourTaken as error:
            log.info("offer_overtaken", wait=wait_id, why=str(error))
            continue
        if made is not None:
            log.info("block_offered", wait=wait_id, offer=made.id)
            changes += 1
    return changes


def _wanted(database: Database, now: datetime) -> Iterator[tuple[str, waitlist.Free]]:
    """Who can be offered what, in order of the line; each found after the one before was held."""
    with database.read() as session:
        ids = [wait.id for wait in waitlist.in_line(session)]
    for wait_id in ids:
        with database.read() as session:
            free = waitlist.find(session, session.get_one(Wait, wait_id), now=now)
        if free is not None:
            yield wait_id, free
