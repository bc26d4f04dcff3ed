"""What can go wrong. Each function breaks something and returns what mends it.

A fault knows nothing of the others: two may hit the same process, so mending must bear that what it
mends is gone, or was mended.
"""

import contextlib
import fcntl
import os
import random
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
import psycopg
import redis
from sqlalchemy import make_url, select

from core.tables.processes import Leadership
from core.wire.doorbell import SCHEDULER, queue_of
from tests.chaos.fleet import NODES, Fleet, reboot
from tests.chaos.link import Weather

Mend = Callable[[], None]

FLAP_S = 0.5
CLOCK_JUMPS_S = (3.0, 90.0, 7_200.0, 100_000.0)


@dataclass(frozen=True)
class Strike:
    """One fault in a round: which, on what, when, for how long and how hard."""

    fault: str
    target: int
    """0 or 1: which of the two."""
    at_s: float
    lasts_s: float
    amount: float
    """From -1 to 1, for faults that have a size."""


Fault = Callable[[Fleet, Strike], Mend]


def nothing() -> None:
    """There is nothing to mend."""


def kill_api(fleet: Fleet, strike: Strike) -> Mend:
    return _kill(fleet, f"api-{strike.target + 1}")


def stop_api(fleet: Fleet, strike: Strike) -> Mend:
    return _stop(fleet, f"api-{strike.target + 1}")


def kill_leader(fleet: Fleet, strike: Strike) -> Mend:
    return _kill(fleet, _leader(fleet, strike))


def stop_leader(fleet: Fleet, strike: Strike) -> Mend:
    return _stop(fleet, _leader(fleet, strike))


def kill_both_schedulers(fleet: Fleet, strike: Strike) -> Mend:
    return _both(_kill(fleet, "scheduler-1"), _kill(fleet, "scheduler-2"))


def kill_worker(fleet: Fleet, strike: Strike) -> Mend:
    return _kill(fleet, f"node-{NODES[strike.target]}")


def stop_worker(fleet: Fleet, strike: Strike) -> Mend:
    return _stop(fleet, f"node-{NODES[strike.target]}")


def kill_shim(fleet: Fleet, strike: Strike) -> Mend:
    for process in _shims(fleet, NODES[strike.target]):
        process.kill()
    return nothing


def kill_rank(fleet: Fleet, strike: Strike) -> Mend:
    for process in _ranks(fleet, NODES[strike.target])[:1]:
        process.kill()
    return nothing


def stop_rank(fleet: Fleet, strike: Strike) -> Mend:
    stopped = _ranks(fleet, NODES[strike.target])[:1]
    for process in stopped:
        process.suspend()

    def mend() -> None:
        for process in stopped:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()

    return mend


def reboot_node(fleet: Fleet, strike: Strike) -> Mend:
    return reboot(fleet, NODES[strike.target])


def unplug_node(fleet: Fleet, strike: Strike) -> Mend:
    """Packets are lost, both ways; without namespaces what was sent waits in the proxy."""
    node = fleet.nodes[NODES[strike.target]]
    if node.namespace is None:
        return _weather(fleet, strike, Weather.FROZEN)
    node.plug(is_in=False)
    return lambda: node.plug(is_in=True)


def freeze_network(fleet: Fleet, strike: Strike) -> Mend:
    """What was sent arrives after the partition: late writes."""
    return _weather(fleet, strike, Weather.FROZEN)


def lose_answers(fleet: Fleet, strike: Strike) -> Mend:
    """Every request of a node is carried out, and none is answered."""
    return _weather(fleet, strike, Weather.DEAF)


def cut_connections(fleet: Fleet, strike: Strike) -> Mend:
    return _weather(fleet, strike, Weather.CUT)


def slow_network(fleet: Fleet, strike: Strike) -> Mend:
    """100 kbit/s, and a third of a second for every piece."""
    return _weather(fleet, strike, Weather.SLOW)


def flap_network(fleet: Fleet, strike: Strike) -> Mend:
    """Down and up again, every half second."""
    over = threading.Event()

    def flap() -> None:
        while not over.is_set():
            clear = _weather(fleet, strike, Weather.CUT)
            over.wait(FLAP_S)
            clear()
            over.wait(FLAP_S)

    flapping = threading.Thread(target=flap, name="flap")
    flapping.start()

    def mend() -> None:
        over.set()
        flapping.join()

    return mend


def fill_node_disk(fleet: Fleet, strike: Strike) -> Mend:
    return _fill(fleet, str(fleet.nodes[NODES[strike.target]].folder))


def fill_store(fleet: Fleet, strike: Strike) -> Mend:
    return _fill(fleet, str(fleet.folder / "store"))


def fill_database_disk(fleet: Fleet, strike: Strike) -> Mend:
    """PostgreSQL can write no more; it may end itself, and is then started again."""
    empty = _fill(fleet, str(fleet.folder / "pg" / "data"))
    start = _start_database(fleet)

    def mend() -> None:
        empty()
        start()

    return mend


def move_api_clock(fleet: Fleet, strike: Strike) -> Mend:
    return _move_clock(fleet, f"api-{strike.target + 1}", strike)


def move_leader_clock(fleet: Fleet, strike: Strike) -> Mend:
    return _move_clock(fleet, _leader(fleet, strike), strike)


def move_node_clock(fleet: Fleet, strike: Strike) -> Mend:
    return _move_clock(fleet, f"node-{NODES[strike.target]}", strike)


def kill_database(fleet: Fleet, strike: Strike) -> Mend:
    server = fleet.server
    assert server is not None
    if server.process is not None and server.process.poll() is None:
        server.kill()
    return _start_database(fleet)


def restart_database(fleet: Fleet, strike: Strike) -> Mend:
    server = fleet.server
    assert server is not None
    if server.process is not None and server.process.poll() is None:
        server.stop()
    return _start_database(fleet)


def end_database_sessions(fleet: Fleet, strike: Strike) -> Mend:
    end = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
    )
    with (
        contextlib.suppress(psycopg.OperationalError),
        psycopg.connect(_plain_url(fleet), autocommit=True) as connection,
    ):
        connection.execute(end)
    return nothing


def hold_job_rows(fleet: Fleet, strike: Strike) -> Mend:
    """PostgreSQL: a stranger has locked every job and lease, and does not end its transaction."""
    try:
        stranger = psycopg.connect(_plain_url(fleet))
    except psycopg.OperationalError:
        return nothing
    with contextlib.suppress(psycopg.OperationalError):
        stranger.execute("SELECT id FROM jobs FOR UPDATE")
        stranger.execute("SELECT id FROM leases FOR UPDATE")
    return stranger.close


def crowd_database(fleet: Fleet, strike: Strike) -> Mend:
    """PostgreSQL: strangers take the connections that are left."""
    strangers = []
    with contextlib.suppress(psycopg.OperationalError):
        while True:
            strangers.append(psycopg.connect(_plain_url(fleet)))

    def mend() -> None:
        for stranger in strangers:
            stranger.close()

    return mend


def hold_writer_lock(fleet: Fleet, strike: Strike) -> Mend:
    """SQLite: somebody writes and does not end."""
    descriptor = os.open(f"{fleet.database.url.database}.writer", os.O_RDWR | os.O_CREAT, 0o600)
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return lambda: os.close(descriptor)


def kill_broker(fleet: Fleet, strike: Strike) -> Mend:
    return _kill(fleet, "broker")


def stop_broker(fleet: Fleet, strike: Strike) -> Mend:
    return _stop(fleet, "broker")


def lose_doorbells(fleet: Fleet, strike: Strike) -> Mend:
    """FLUSHALL: every doorbell that rings is lost."""
    with contextlib.suppress(redis.RedisError):
        _broker(fleet).flushall()
    return nothing


def double_doorbells(fleet: Fleet, strike: Strike) -> Mend:
    """Every bell a hundred times, and garbage among them."""
    rng = random.Random(strike.amount)
    with contextlib.suppress(redis.RedisError):
        broker = _broker(fleet)
        for _ in range(100):
            broker.publish(SCHEDULER, rng.randbytes(20))
            broker.publish("live.job_unknown", b"{")
            for name in NODES:
                broker.lpush(queue_of(f"node-{name}"), rng.randbytes(rng.randrange(1, 200)))
    return nothing


def kill_everything(fleet: Fleet, strike: Strike) -> Mend:
    """kill -9 of every process of the platform, started again in another order each time."""
    names = list(fleet.children)
    for name in names:
        fleet.kill(name)
    database = kill_database(fleet, strike) if fleet.server is not None else nothing

    def mend() -> None:
        database()
        random.Random(strike.amount).shuffle(names)
        for name in names:
            fleet.release(name)

    return mend


ANYWHERE: tuple[Fault, ...] = (
    kill_api, stop_api, kill_leader, stop_leader, kill_both_schedulers, kill_worker, stop_worker,
    kill_shim, kill_rank, stop_rank, reboot_node, unplug_node, freeze_network, lose_answers,
    cut_connections, slow_network, flap_network, move_api_clock, move_leader_clock,
    move_node_clock, kill_broker, stop_broker, lose_doorbells, double_doorbells, kill_everything,
)  # fmt: skip
AS_ROOT: tuple[Fault, ...] = (fill_node_disk, fill_store)
POSTGRESQL: tuple[Fault, ...] = (
    kill_database, restart_database, end_database_sessions, hold_job_rows, crowd_database,
)  # fmt: skip
POSTGRESQL_AS_ROOT: tuple[Fault, ...] = (fill_database_disk,)
SQLITE: tuple[Fault, ...] = (hold_writer_lock,)


def faults_for(kind: str, *, is_root: bool) -> dict[str, Fault]:
    """By name, what can be done here."""
    by_database = POSTGRESQL if kind == "postgresql" else SQLITE
    as_root = AS_ROOT + (POSTGRESQL_AS_ROOT if kind == "postgresql" else ()) if is_root else ()
    return {f.__name__: f for f in (*ANYWHERE, *as_root, *by_database)}


def _kill(fleet: Fleet, name: str) -> Mend:
    fleet.kill(name)
    return lambda: fleet.release(name)


def _stop(fleet: Fleet, name: str) -> Mend:
    fleet.signal(name, signal.SIGSTOP)
    return lambda: fleet.signal(name, signal.SIGCONT)


def _both(one: Mend, other: Mend) -> Mend:
    def mend() -> None:
        one()
        other()

    return mend


def _leader(fleet: Fleet, strike: Strike) -> str:
    """The scheduler that leads; with the database away, one of the two."""
    with contextlib.suppress(Exception), fleet.database.read() as session:
        holder = session.scalar(select(Leadership.holder)) or ""
        for name in ("scheduler-1", "scheduler-2"):
            process = fleet.children[name].process
            if process is not None and f":{process.pid}:" in holder:
                return name
    return f"scheduler-{strike.target + 1}"


def _weather(fleet: Fleet, strike: Strike, weather: Weather) -> Mend:
    node = fleet.nodes[NODES[strike.target]]

    def change(to: Weather) -> None:
        node.api.change(to)
        node.broker.change(to)

    change(weather)
    return lambda: change(Weather.CLEAR)


def _start_database(fleet: Fleet) -> Mend:
    server = fleet.server
    assert server is not None

    def mend() -> None:
        if server.process is None or server.process.poll() is not None:
            server.start()

    return mend


def _plain_url(fleet: Fleet) -> str:
    """For psycopg itself."""
    url = make_url(fleet.database.url).set(drivername="postgresql")
    return url.render_as_string(hide_password=False)


def _fill(fleet: Fleet, folder: str) -> Mend:
    path = os.path.join(folder, "filler")
    with contextlib.suppress(OSError), open(path, "ab", buffering=0) as file:
        while True:
            file.write(b"\0" * 65536)

    def mend() -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    return mend


def _move_clock(fleet: Fleet, name: str, strike: Strike) -> Mend:
    """By some seconds, minutes, two hours or more than a day, either way."""
    size = CLOCK_JUMPS_S[int(abs(strike.amount) * 0.999 * len(CLOCK_JUMPS_S))]
    fleet.set_clock(name, size if strike.amount > 0 else -size)
    return lambda: fleet.set_clock(name, 0.0)


def _shims(fleet: Fleet, node: str) -> list[psutil.Process]:
    return [p for p in _processes(fleet, node) if not _is_rank(p)]


def _ranks(fleet: Fleet, node: str) -> list[psutil.Process]:
    return [p for p in _processes(fleet, node) if _is_rank(p)]


def _processes(fleet: Fleet, node: str) -> list[psutil.Process]:
    found = []
    for pid, _ in fleet.attempt_processes(node):
        with contextlib.suppress(psutil.NoSuchProcess):
            found.append(psutil.Process(pid))
    return sorted(found, key=lambda process: process.pid)


def _is_rank(process: psutil.Process) -> bool:
    """A rank writes its pid down; a shim does not."""
    with contextlib.suppress(OSError, psutil.Error):
        folder = process.cwd()
        for rank in range(2):
            path = Path(folder) / f"rank-{rank}.pid"
            if path.exists() and path.read_text() == str(process.pid):
                return True
    return False


def _broker(fleet: Fleet) -> redis.Redis:
    return redis.Redis.from_url(fleet.redis_url, socket_timeout=1, socket_connect_timeout=1)
