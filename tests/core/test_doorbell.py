"""Doorbells: heard when somebody listens, swallowed at once when nobody does."""

import json
import socket
import time
import uuid
from pathlib import Path

import pytest
import redis

from core.wire.doorbell import LIVE, SCHEDULER, Doorbell, broker_url, queue_of


def ring_everybody(bell: Doorbell) -> float:
    begun = time.monotonic()
    bell.ring_scheduler()
    bell.ring_live("job_1", {"kind": "job"})
    bell.ring_node("north-01")
    return time.monotonic() - begun


def test_rings_are_heard(valkey_url: str) -> None:
    client = redis.Redis.from_url(valkey_url)
    node = f"n-{uuid.uuid4().hex[:8]}"
    with client.pubsub(ignore_subscribe_messages=True) as channel:  # type: ignore[no-untyped-call]
        channel.subscribe(SCHEDULER, f"{LIVE}job_1")
        for _ in range(2):  # both are acknowledged before anybody rings
            channel.get_message(timeout=5)
        bell = Doorbell(valkey_url)
        bell.ring_scheduler()
        bell.ring_live("job_1", {"kind": "job"})
        heard = []
        deadline = time.monotonic() + 10
        while len(heard) < 2 and time.monotonic() < deadline:
            message = channel.get_message(timeout=1)
            if message is not None:
                heard.append((message["channel"].decode(), message["data"].decode()))
    assert heard == [(SCHEDULER, ""), (f"{LIVE}job_1", json.dumps({"kind": "job"}))]
    bell.ring_node(node)
    [task] = client.lrange(queue_of(node), 0, -1)
    assert json.loads(task)["headers"]["task"] == "worker.tasks.look"
    client.delete(queue_of(node))
    client.close()


@pytest.mark.parametrize("kind", ["no socket", "no listener", "closed port"])
def test_with_the_broker_down_a_ring_is_over_within_milliseconds(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "redis.sock"
    url = f"unix://{path}?db=0"
    with socket.socket(socket.AF_UNIX) as unix, socket.socket() as tcp:
        if kind == "no listener":
            unix.bind(str(path))
        if kind == "closed port":
            tcp.bind(("127.0.0.1", 0))
            url = f"redis://127.0.0.1:{tcp.getsockname()[1]}/0"
        bell = Doorbell(url)
        ring_everybody(bell)  # the first loads kombu's transport
        assert min(ring_everybody(bell) for _ in range(3)) < 0.1


def test_a_broker_that_accepts_and_never_answers_holds_nobody_for_long(tmp_path: Path) -> None:
    path = tmp_path / "mute.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(8)
        bell = Doorbell(f"unix://{path}?db=0")
        begun = time.monotonic()
        ring_everybody(bell)
        assert time.monotonic() - begun < 5


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("redis://host:6379/2", "redis://host:6379/2"),
        ("unix:///run/v.sock?db=3", "redis+socket:///run/v.sock?virtual_host=3"),
        ("unix:///run/v.sock", "redis+socket:///run/v.sock?virtual_host=0"),
    ],
)
def test_celery_gets_its_own_spelling_of_an_address(given: str, expected: str) -> None:
    assert broker_url(given) == expected
