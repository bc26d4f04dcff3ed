"""Doorbells of all nodes, heard by one process over one connection."""

import asyncio
from collections.abc import Sequence

import redis
import redis.asyncio

from benchmarks.nodes import FakeNode
from core.wire.doorbell import queue_of

AGAIN_S = 0.5  # after a lost connection


async def hear(redis_url: str, nodes: Sequence[FakeNode]) -> None:
    """Wake each node when Celery's message is in its queue, until cancelled.

    A worker takes the message from the list that Celery names like its queue; so does this.
    """
    by_queue = {queue_of(node.name): node for node in nodes}
    while True:
        client = redis.asyncio.Redis.from_url(redis_url, socket_timeout=None, decode_responses=True)
        try:
            while True:
                rung = await client.blpop(list(by_queue), timeout=0)
                assert rung is not None
                by_queue[str(rung[0])].hear_doorbell()
        except (redis.RedisError, OSError):
            await asyncio.sleep(AGAIN_S)
        finally:
            await client.aclose()
