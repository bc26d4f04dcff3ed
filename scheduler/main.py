"""The scheduler process: lead or follow; decide when the doorbell rings, and as time goes by."""

import gc
import logging
import os
import secrets
import signal
import socket
import sys
import threading
import time
from datetime import datetime

import redis
import structlog
from sqlalchemy.exc import SQLAlchemyError

from core.base import tracing
from core.base.clock import utc_now
from core.database.database import Database
from core.process import read_only
from core.process.settings import SchedulerSettings
from core.wire.doorbell import SCHEDULER, Doorbell
from scheduler.cycle import Scheduler, keep_up, run_cycle
from scheduler.leadership import LeadershipClaim, LeadershipLost
from scheduler.outbox.dispatch import Dispatcher
from scheduler.outbox.link_sender import LinkSender
from scheduler.outbox.sender import NoticeSender

RECONNECT_S = 1.0
FOLLOWER_PAUSE_S = 1.0  # between two looks at the leader's row
QUIET_CYCLES = 5  # the longest rest in which nothing is written and nothing rings, in cycles

log = structlog.get_logger()


def main() -> None:
    """Run until SIGTERM or SIGINT."""
    log_as_json()
    tracing.start("trainyard-scheduler")
    settings = SchedulerSettings()
    database = Database(settings.database_url, pool_size=3)
    leadership = LeadershipClaim(
        database,
        holder=f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}",
        ttl_s=settings.leader_ttl_s,
    )
    scheduler = Scheduler(
        database=database,
        leadership=leadership,
        dispatcher=Dispatcher(Doorbell(settings.redis_url)),
        unreachable_after_s=settings.unreachable_after_s,
        gang_start_s=settings.gang_start_s,
    )
    listener = BellListener(settings.redis_url)
    listener.start()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: listener.close())
    collect_rarely()
    log.info("scheduler_started", pid=os.getpid(), holder=leadership.holder)
    sender = NoticeSender(database, settings)
    sender.start()
    letters = LinkSender(database, settings)
    letters.start()
    run(scheduler, listener, settings.cycle_s)
    resign(leadership)
    sender.close()
    letters.close()
    database.close()
    tracing.stop()
    log.info("scheduler_stopped")


class BellListener:
    """Listener that wakes the loop when the doorbell rings; without Redis only time wakes it."""

    def __init__(self, redis_url: str) -> None:
        self._redis_url = redis_url
        self._woken = threading.Event()
        self.hears = False
        """True while it is subscribed: a ring would be heard."""
        self.closed = False

    def start(self) -> None:
        """Listen in a thread that ends with the process."""
        threading.Thread(target=self._listen, name="bells", daemon=True).start()

    def close(self) -> None:
        """Wake the loop for the last time. Callable from a signal handler."""
        self.closed = True
        self._woken.set()

    def wait(self, seconds: float) -> None:
        """Wait until the doorbell rings, `seconds` at most."""
        self._woken.wait(max(0.0, seconds))
        if not self.closed:
            self._woken.clear()

    def pause(self, seconds: float) -> None:
        """Wait `seconds` even if the doorbell rings; only `close` cuts it short."""
        deadline = time.monotonic() + seconds
        while not self.closed and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, 0.1))

    def _listen(self) -> None:
        is_away = False
        while not self.closed:
            # Without a socket timeout, which would end a subscription during silence.
            client = redis.Redis.from_url(
                self._redis_url, socket_timeout=None, socket_connect_timeout=2, retry=None
            )
            try:
                with client.pubsub(ignore_subscribe_messages=True) as channel:  # type: ignore[no-untyped-call]
                    channel.subscribe(SCHEDULER)
                    self.hears = True
                    self._woken.set()  # a ring may have been missed
                    if is_away:
                        log.info("doorbell_back")
                    is_away = False
                    for _ in channel.listen():
                        self._woken.set()
            except (redis.RedisError, OSError) as error:
                if not is_away:
                    log.info("doorbell_away", error=str(error))
                is_away = True
            finally:
                self.hears = False
                client.close()
            time.sleep(RECONNECT_S)


def run(scheduler: Scheduler, listener: BellListener, cycle_s: float) -> None:
    """Run cycles until `listener` is closed.

    A pause as long as the cycle, at most `cycle_s`, follows each one even if the doorbell rings.
    """
    leadership, numbers = scheduler.leadership, scheduler.leadership.numbers
    ended: float | None = None
    while not listener.closed:
        begun, begun_at, writes = time.monotonic(), utc_now(), leadership.writes
        led = cycle(scheduler)
        took_s = time.monotonic() - begun
        if not led:
            ended = None
            listener.pause(FOLLOWER_PAUSE_S)
            continue
        if ended is not None:
            numbers.pauses.add(begun - ended)
        numbers.cycles.add(took_s)
        numbers.ended_at = utc_now()
        ended = begun + took_s
        listener.pause(min(took_s, cycle_s))
        is_quiet = listener.hears and leadership.writes == writes
        longest_s = rest_s(cycle_s, begun_at, is_quiet=is_quiet, turn_at=scheduler.turn_at)
        listener.wait(longest_s - took_s)


def rest_s(
    cycle_s: float, begun_at: datetime, *, is_quiet: bool, turn_at: datetime | None
) -> float:
    """Return the longest time, in seconds, from the beginning of one cycle to that of the next.

    `is_quiet`: the last one wrote nothing, and a ring would be heard. Then only time brings news:
    at `turn_at`, when a lease begins or ends, and at whole minutes, when windows do. One that
    passed during the cycle was not seen by it.
    """
    if not is_quiet:
        return cycle_s
    next_s = 60 - begun_at.timestamp() % 60
    if turn_at is not None:
        next_s = min(next_s, max(0.0, (turn_at - begun_at).total_seconds()))
    return min(QUIET_CYCLES * cycle_s, next_s)


def cycle(scheduler: Scheduler) -> bool:
    """Run one cycle if this process leads; return True if one was completed.

    An error is logged, and the next cycle tries again: the database may be away for a while, and
    one bad row must not stop everything else for ever.
    """
    try:
        scheduler.timekeeper.look()
        with scheduler.database.read() as session:
            if read_only.state(session, now=utc_now()) is not None:
                return False
        if not scheduler.leadership.hold():
            keep_up(scheduler, utc_now())
            return False
        with tracing.span("cycle"):
            run_cycle(scheduler, utc_now())
    except LeadershipLost:
        return False
    except SQLAlchemyError as error:
        log.error("cycle_failed", error=str(error).splitlines()[0])
        return False
    except Exception:
        log.exception("cycle_failed")
        return False
    return True


def collect_rarely() -> None:
    """Collect garbage less often than by Python's defaults.

    With ten thousand waiting jobs the collector took a third of a cycle's CPU: it looked through
    all that the cycle had made so far, over and over, of which nearly nothing was in a circle.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000)


def resign(leadership: LeadershipClaim) -> None:
    """Let the next scheduler lead at once, instead of after the time to live."""
    try:
        leadership.resign()
    except SQLAlchemyError as error:
        log.info("not_resigned", error=str(error).splitlines()[0])


def log_as_json() -> None:
    """Log one JSON object per line to standard output."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stdout),
    )


if __name__ == "__main__":
    main()
