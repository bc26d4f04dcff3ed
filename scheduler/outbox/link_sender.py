"""Delivery of letters with links, in a thread of every scheduler process: one letter at a time."""

import structlog

from core.base.clock import utc_now
from core.database.database import Database
from core.notices import link_letters
from core.process import read_only
from core.process.settings import SchedulerSettings
from scheduler.outbox.lookout import Lookout
from scheduler.outbox.mail import NotSent, send_mail

log = structlog.get_logger()


class LinkSender:
    """Thread that looks every few seconds for letters that are due; without a mail server it does
    nothing."""

    def __init__(self, database: Database, settings: SchedulerSettings) -> None:
        self._database = database
        self._settings = settings
        self._lookout = Lookout("letters", self.look)

    def start(self) -> None:
        """Send in a thread that ends with the process."""
        if self._settings.smtp_host:
            self._lookout.start()

    def close(self) -> None:
        """Finish the letter in hand, then end; wait 30 seconds at most."""
        self._lookout.close()

    def look(self) -> int:
        """Send until nothing more is due; return the number of letters tried."""
        tried = 0
        while not self._lookout.closed.is_set() and self._send_one():
            tried += 1
        return tried

    def _send_one(self) -> bool:
        with self._database.read() as session:
            if not link_letters.is_anything_due(session, utc_now()):
                return False
        with self._database.write() as session:
            now = utc_now()
            if read_only.state(session, now=now) is not None:
                return False
            found = link_letters.claim(session, now=now)
        if found is None:
            return False
        error = ""
        try:
            message_id = f"link-{found.letter_id}"
            send_mail(self._settings, to=found.to, letter=found.letter, message_id=message_id)
        except NotSent as refused:
            error = str(refused)
        with self._database.write() as session:
            link_letters.settle(session, found, error, now=utc_now())
        log.info("letter_sent" if not error else "letter_not_sent", letter=found.letter_id)
        return True
