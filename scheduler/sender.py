"""Sends notices, in a thread of every scheduler: claims, not leadership, tell senders apart."""

import threading

import structlog
from sqlalchemy.exc import SQLAlchemyError

from core.clock import utc_now
from core.database import Database
from core.notices import deliveries
from core.notices.deliveries import Parcel
from core.notices.words import write
from core.settings import SchedulerSettings
from core.tables.kinds import Channel
from scheduler.mail import NotSent, send_mail
from scheduler.webhooks import post

EVERY_S = 2.0

log = structlog.get_logger()


class Sender:
    """Looks every few seconds whether something is due, and sends it."""

    def __init__(self, database: Database, settings: SchedulerSettings) -> None:
        self._database = database
        self._settings = settings
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sender", daemon=True)

    def start(self) -> None:
        """Send in a thread that ends with the process."""
        self._thread.start()

    def close(self) -> None:
        """Finish what is in hand, then end."""
        self._closed.set()
        self._thread.join(timeout=30)

    def look(self) -> int:
        """Send all that is due; how many parcels were tried."""
        tried = 0
        with self._database.read() as session:
            if not deliveries.is_anything_due(session, utc_now()):
                return 0
        with self._database.write() as session:
            now = utc_now()
            deliveries.route(session, can_mail=bool(self._settings.smtp_host), now=now)
        while not self._closed.is_set():
            with self._database.write() as session:
                parcels = deliveries.claim(session, now=utc_now())
            if not parcels:
                break
            for parcel in parcels:
                self._deliver(parcel)
            tried += len(parcels)
        return tried

    def _deliver(self, parcel: Parcel) -> None:
        ids = [notice.id for notice in parcel.notices]
        error = ""
        try:
            self._send(parcel)
        except NotSent as refused:
            error = str(refused)
        except Exception:  # one that can't be written must not hold up those behind it
            log.exception("notice_not_written", notices=ids)
            error = "It could not be written; the log of the scheduler says why."
        with self._database.write() as session:
            settled = deliveries.settle(session, parcel, error, now=utc_now())
        log.info(
            "notice_sent" if not error else "notice_not_sent",
            notices=ids,
            error=error,
            channel=parcel.channel,
            settled=settled,
        )

    def _send(self, parcel: Parcel) -> None:
        if not parcel.to:
            raise NotSent("There is no address any more.")
        if parcel.channel is Channel.WEBHOOK:
            [notice] = parcel.notices
            post(
                parcel.to,
                secret=parcel.secret,
                notice=notice,
                private=self._settings.webhooks_to_private,
                now=utc_now(),
            )
            return
        letter = write(
            parcel.notices,
            name=parcel.user_name,
            zone=parcel.zone,
            url=self._settings.public_url.rstrip("/"),
        )
        first = parcel.notices[0].id
        send_mail(
            self._settings, to=parcel.to, letter=letter, message_id=f"{parcel.channel}-{first}"
        )

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                self.look()
            except SQLAlchemyError as error:
                log.warning("notices_wait", error=str(error).splitlines()[0])
            except Exception:
                log.exception("notices_wait")
            self._closed.wait(EVERY_S)
