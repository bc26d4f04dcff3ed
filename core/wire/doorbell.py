"""Doorbells: messages that only say "look". Losing, doubling or forging one changes nothing.

Rung after commit, never inside a transaction. With the broker down a ring fails within milliseconds
and is only logged: the process that should have heard it polls anyway.
"""

import json
from collections.abc import Mapping
from enum import StrEnum

import redis
import structlog
from celery import Celery
from kombu.exceptions import OperationalError

SCHEDULER = "scheduler"
"""Redis channel on which the scheduler is woken."""
LIVE = "live."
"""Prefix of the Redis channels `live.<job id>` that tell the API's streams of new rows."""
LOOK = "worker.tasks.look"
"""The one Celery task; it takes no arguments and sets an event."""

log = structlog.get_logger()


class Topic(StrEnum):
    """Subject of a page; also the Redis channel that is rung when the page may read differently."""

    CALENDAR = "calendar"
    """Holders of nodes and their hours, the waitlist, and the jobs in leases."""
    RULES = "rules"
    """Rules of booking: policies, windows, grants, labs and people."""


def queue_of(node_name: str) -> str:
    """Return the Celery queue a node listens to."""
    return f"node.{node_name}"


def broker_url(redis_url: str) -> str:
    """Return Celery's spelling of a Redis address: `redis+socket://` for a unix socket."""
    if redis_url.startswith("unix://"):
        path, _, query = redis_url.removeprefix("unix://").partition("?")
        database = query.removeprefix("db=") or "0"
        return f"redis+socket://{path}?virtual_host={database}"
    return redis_url


class Doorbell:
    """Ringer of doorbells. One per process; the connections are made at the first use."""

    def __init__(self, redis_url: str) -> None:
        self._redis = redis.Redis.from_url(
            redis_url, socket_connect_timeout=0.5, socket_timeout=0.5, retry=None
        )
        self._celery = Celery("doorbell", broker=broker_url(redis_url))
        self._celery.conf.update(
            task_ignore_result=True,
            task_publish_retry=False,
            broker_connection_retry=False,
            broker_transport_options={
                "max_retries": 1,
                "interval_start": 0,
                "interval_step": 0.1,
                "interval_max": 0.1,
                "socket_timeout": 0.5,
                "socket_connect_timeout": 0.5,
            },
        )

    def ring_scheduler(self) -> None:
        """Wake the scheduler: there may be something to decide."""
        self._publish(SCHEDULER, "")

    def ring_node(self, node_name: str) -> None:
        """Wake a node: there may be new orders for it. A lost ring is only logged."""
        try:
            self._celery.send_task(LOOK, queue=queue_of(node_name), expires=60)
        except (OperationalError, redis.RedisError, OSError) as error:
            log.info("doorbell_lost", bell=queue_of(node_name), error=str(error))

    def ring_live(self, job_id: str, news: Mapping[str, object]) -> None:
        """Announce new rows about a job; `news` is a hint of what kind."""
        self._publish(LIVE + job_id, json.dumps(news))

    def ring_topic(self, topic: Topic) -> None:
        """Announce that pages of this subject may read differently now."""
        self._publish(topic, "")

    def _publish(self, channel: str, message: str) -> None:
        try:
            self._redis.publish(channel, message)
        except (redis.RedisError, OSError) as error:
            log.info("doorbell_lost", bell=channel, error=str(error))
