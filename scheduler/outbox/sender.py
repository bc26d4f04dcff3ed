"""Delivery of notices, in a thread of every scheduler process.

Followers send too: a claim on each notice, not leadership, keeps two from sending the same one.
"""

from collections import Counter
from collections.abc import Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

import structlog

from core.base.clock import utc_now
from core.database.database import Database
from core.leases import waitlist
from core.notices import deliveries
from core.notices.deliveries import Parcel
from core.notices.notices import NoticeKind
from core.notices.words import write
from core.process import read_only
from core.process.settings import SchedulerSettings
from core.tables.kinds import Channel
from scheduler.outbox.lookout import EVERY_S, Lookout
from scheduler.outbox.mail import NotSent, send_mail
from scheduler.outbox.webhooks import post

# Parcels sent at a time, counted per channel: a mail server that hangs delays no webhook.
LANES = {(Channel.MAIL, Channel.DIGEST): 4, (Channel.WEBHOOK,): 8}

log = structlog.get_logger()


class NoticeSender:
    """Thread that looks every few seconds for due notices and sends several at a time."""

    def __init__(self, database: Database, settings: SchedulerSettings) -> None:
        self._database = database
        self._settings = settings
        self._lookout = Lookout("notices", self.look)
        self._threads = ThreadPoolExecutor(sum(LANES.values()), "send")

    def start(self) -> None:
        """Send in a thread that ends with the process."""
        self._lookout.start()

    def close(self) -> None:
        """Finish the parcels in hand, then end; wait 30 seconds at most."""
        self._lookout.close()
        self._threads.shutdown(wait=False)

    def look(self) -> int:
        """Send until nothing more is due or in hand; return the number of parcels tried."""
        in_hand: dict[Future[str], Parcel] = {}
        tried = 0
        while True:
            if not self._lookout.closed.is_set():
                for parcel in self._take(Counter(parcel.channel for parcel in in_hand.values())):
                    in_hand[self._threads.submit(self._deliver, parcel)] = parcel
            if not in_hand:
                return tried
            over, _ = wait(in_hand, timeout=EVERY_S, return_when=FIRST_COMPLETED)
            for delivery in over:
                self._settle(in_hand.pop(delivery), delivery.result())
            tried += len(over)

    def _take(self, in_hand: Mapping[Channel, int]) -> list[Parcel]:
        """Claim due parcels for which their lane has room; none while the platform is read-only."""
        with self._database.read() as session:
            if not deliveries.is_anything_due(session, utc_now()):
                return []
        parcels = []
        with self._database.write() as session:
            now = utc_now()
            if read_only.state(session, now=now) is not None:
                return []
            deliveries.route(session, can_mail=bool(self._settings.smtp_host), now=now)
            for channels, most in LANES.items():
                free = most - sum(in_hand.get(channel, 0) for channel in channels)
                if free > 0:
                    parcels += deliveries.claim(session, channels, most=free, now=now)
        return parcels

    def _deliver(self, parcel: Parcel) -> str:
        """Send a parcel; return the reason why it was not delivered, empty if it was."""
        try:
            self._send(parcel)
        except NotSent as refused:
            return str(refused)
        except Exception:  # one that can't be written must not hold up those behind it
            log.exception("notice_not_written", notices=[notice.id for notice in parcel.notices])
            return "The notice could not be written; see the scheduler's log for the cause."
        return ""

    def _settle(self, parcel: Parcel, error: str) -> None:
        with self._database.write() as session:
            now = utc_now()
            settled = deliveries.settle(session, parcel, error, now=now)
            offered = NoticeKind.BLOCK_OFFERED
            told = [one.subject for one in parcel.notices if one.kind == offered]
            if told and settled and not error:
                waitlist.tell(session, told, now=now)
        log.info(
            "notice_sent" if not error else "notice_not_sent",
            notices=[notice.id for notice in parcel.notices],
            error=error,
            channel=parcel.channel,
            settled=settled,
        )

    def _send(self, parcel: Parcel) -> None:
        if not parcel.to:
            raise NotSent("The address was removed.")
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
