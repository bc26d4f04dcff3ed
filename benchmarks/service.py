"""Load figures: submissions and metric points per second, a long chart, idle memory.

Each figure is taken on SQLite and on PostgreSQL, in turn, with fsync on, on the whole platform as
`trainyard up` starts it: broker, API, scheduler, and this machine's worker with its launchers. The
clients are processes of the same machine, so the rates are lower bounds.
"""

import http.client
import json
import statistics
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cache, partial
from pathlib import Path

import psutil
import yaml

from api.web.credentials import issue_link, issue_token
from benchmarks.lean import LeanConnection
from benchmarks.ratios import percentile
from core.base.clock import utc_now
from core.base.ids import IdKind, new_id
from core.database.database import Database
from core.database.schema import upgrade
from core.states import LIVE_ATTEMPT
from core.tables.jobs import Attempt
from core.tables.kinds import LinkKind, Role, Scope, TokenKind
from core.tables.people import User
from standalone.data_directory import DataDirectory
from standalone.processes import describe, listen
from tests.postgresql import running_server
from tests.running import running_platform, wait_for

EXAMPLE = Path(__file__).parents[1] / "examples" / "gpt-ddp.yaml"
CLIENTS = 8
SETTLED_S = 10.0
LAUNCHERS = ("warm", "spawner")
NO_LIMITS = {
    "TRAINYARD_SUBMISSIONS_PER_MINUTE": "100000000",
    "TRAINYARD_MAX_QUEUED_JOBS": "100000000",
}
KEYS = ("loss", "lr", "grad_norm", "tokens_per_s", "step_time_s", "tps", "data_time_s", "loss_max")


@dataclass(frozen=True)
class ServedApi:
    """An API on a new database, with one fake node that keeps a job."""

    url_host: str
    port: int
    user_token: str
    """Token of the administrator."""
    client_tokens: tuple[str, ...]
    """Tokens of CLIENTS users: submissions of one user take turns, because a quota is counted."""
    node_token: str
    database_url: str


def submissions(
    served: ServedApi, seconds: float, clients: int = CLIENTS
) -> tuple[float, float, int]:
    """Return accepted submissions per second, the 99th percentile of the answer time in ms, and
    how many there were."""
    with ThreadPoolExecutor(clients) as pool:
        parts = pool.map(partial(_submit_for, served, seconds), served.client_tokens[:clients])
        latencies = [latency for part in parts for latency in part]
    return len(latencies) / seconds, 1000 * percentile(latencies, 0.99), len(latencies)


def metric_points(
    served: ServedApi, seconds: float, attempt: dict[str, object], *, lines: int, first_rank: int
) -> float:
    """Return the metric points stored per second, from CLIENTS clients, a rank each from
    `first_rank` on, that post so many lines of 8 keys at a time."""
    with ProcessPoolExecutor(CLIENTS) as pool:
        counts = pool.map(
            _post_metrics_for,
            [served] * CLIENTS,
            [seconds] * CLIENTS,
            [attempt] * CLIENTS,
            range(first_rank, first_rank + CLIENTS),
            [lines] * CLIENTS,
        )
        return sum(counts) / seconds


def long_chart(served: ServedApi, attempt: dict[str, object], count: int = 1_000_000) -> float:
    """Return the median time, in ms, to read a series of `count` points reduced to 1,000."""
    rank = 1000
    with connection_to(served) as connection:
        lines_a_batch = 5000
        for first in range(0, count, lines_a_batch):
            lines = [{"step": first + i, "curve": float(i % 97)} for i in range(lines_a_batch)]
            body = {**attempt, "rank": rank, "first_line": first, "lines": lines}
            ask(connection, "POST", "/v1/node/metrics", served.node_token, body, 200)
        times = []
        path = f"/v1/jobs/{attempt['job_id']}/metrics?keys=curve&resolution=1000"
        for _ in range(15):
            started = time.perf_counter()
            answer = ask(connection, "GET", path, served.user_token, None, 200)
            times.append(time.perf_counter() - started)
        assert answer["series"][0]["points"] == count  # type: ignore[index]
    return 1000 * statistics.median(times)


def idle_memory() -> dict[str, float]:
    """Return the proportional set size, in MiB, of each process of `trainyard up`, itself included.

    Measured after 50 requests, once the sum has not changed by 1 % for SETTLED_S. The warm launcher
    rests then, as after ten idle minutes, which are shortened here.
    """
    with running_platform({"TRAINYARD_WARM_RESTS_AFTER_MIN": "0.05"}, forked=False) as platform:
        with platform.http() as http:
            for _ in range(50):
                http.get("/v1/jobs").raise_for_status()
        names = {platform.up_pid(): "up"}
        for name in ("valkey", "api", "scheduler", "worker"):
            names[platform.process(name).pid] = name
        sizes, since = _weigh(platform.up_pid(), names), time.monotonic()
        while time.monotonic() - since < SETTLED_S:
            time.sleep(1)
            now = _weigh(platform.up_pid(), names)
            if abs(sum(now.values()) - sum(sizes.values())) > 0.01 * sum(sizes.values()):
                sizes, since = now, time.monotonic()
        return sizes


def _weigh(up: int, names: dict[int, str]) -> dict[str, float]:
    sizes: dict[str, float] = {}
    parent = psutil.Process(up)
    for process in [parent, *parent.children(recursive=True)]:
        try:
            words = process.cmdline()
            size = process.memory_full_info().pss / (1 << 20)
        except psutil.NoSuchProcess:
            continue
        launcher = next((kind for kind in LAUNCHERS if f"worker.{kind}" in words), None)
        name = names.get(process.pid) or launcher or "others"
        sizes[name] = sizes.get(name, 0.0) + size
    return sizes


@contextmanager
def serving(kind: str) -> Iterator[ServedApi]:
    """Start the platform on `sqlite` or `postgresql`, with rate limits too high to matter."""
    with tempfile.TemporaryDirectory(prefix="ty-b-", dir="/tmp") as name:
        folder = Path(name)
        if kind == "sqlite":
            with _served_on(f"sqlite:///{folder / 'bench.db'}", folder) as served:
                yield served
        else:
            with running_server() as url, _served_on(url, folder) as served:
                yield served


@contextmanager
def _served_on(database_url: str, folder: Path) -> Iterator[ServedApi]:
    database = Database(database_url)
    upgrade(database)
    data = DataDirectory(folder)
    data.create()
    listener = listen(None)
    processes = describe(data, listener)
    for child in (processes.api, processes.scheduler):
        child.environment = {**child.environment, "TRAINYARD_DATABASE_URL": database_url}
    processes.api.environment = {**processes.api.environment, **NO_LIMITS}
    try:
        processes.start(_enrolment(database, "this-machine"))
        yield _prepared(database, data, listener.getsockname()[1], database_url)
    finally:
        processes.stop()
        listener.close()
        database.close()


def _prepared(database: Database, data: DataDirectory, port: int, database_url: str) -> ServedApi:
    """Create an administrator, the clients' users, and a node that is enrolled and has reported."""
    link = data.first_start.read_text()
    with connection_to(ServedApi("127.0.0.1", port, "", (), "", database_url)) as connection:
        body: dict[str, object] = {"secret": link.partition("secret=")[2].strip(), "name": "bench"}
        user = ask(connection, "POST", "/v1/first-start", "", body, 201)
    return with_clients(database, port, database_url, str(user["secret"]))


def with_clients(database: Database, port: int, database_url: str, user_token: str) -> ServedApi:
    """Create the clients' users, and a node that is enrolled and has reported."""
    served = ServedApi("127.0.0.1", port, user_token, (), "", database_url)
    inventory = {
        **{"hostname": "bench", "cores": 64, "memory_gib": 256.0, "gpus": [], "slots": 64},
        **{"python": "3.11", "torch": "2.13.0"},
    }
    with connection_to(served) as connection:
        body: dict[str, object] = {"token": _enrolment(database, "bench"), "inventory": inventory}
        node = ask(connection, "POST", "/v1/node/enrol", "", body, 201)
        heartbeat: dict[str, object] = {
            **{"incarnation": "1", "boot_id": "b", "inventory": inventory, "attempts": []},
            **{"clean": True},
            "telemetry": {"cpu_pct": 1.0, "memory_used_gib": 1.0, "disk_free_gib": 100.0},
        }
        token = str(node["node_token"])
        ask(connection, "POST", "/v1/node/heartbeat", token, heartbeat, 200)
    clients = add_people(database, "client", CLIENTS, Role.USER)
    return ServedApi("127.0.0.1", port, user_token, clients, token, database_url)


def add_people(database: Database, name: str, count: int, role: Role) -> tuple[str, ...]:
    """Add people named `name0`, `name1` and so on; return their tokens."""
    now, secrets_made = utc_now(), []
    with database.write() as session:
        for number in range(count):
            user = User(
                id=new_id(IdKind.USER),
                name=f"{name}{number}",
                role=role,
                disabled=False,
                created_at=now,
            )
            session.add(user)
            session.flush()
            _, secret = issue_token(
                session,
                kind=TokenKind.API,
                name="bench",
                now=now,
                user_id=user.id,
                scopes=[Scope.ALL],
            )
            secrets_made.append(secret)
    return tuple(secrets_made)


def running_attempt(served: ServedApi) -> dict[str, object]:
    """Submit a job for the fake node, wait until the scheduler starts it, return (job, epoch)."""
    with connection_to(served) as connection:
        nodes = ask(connection, "GET", "/v1/nodes", served.user_token, None, 200)["data"]
        assert isinstance(nodes, list)
        [fake] = [node for node in nodes if node["name"] == "bench"]
        wanted = {**example_job()}
        resources = wanted["resources"]
        assert isinstance(resources, dict)
        wanted["resources"] = {**resources, "node_class": fake["node_class"]}
        job = ask(connection, "POST", "/v1/jobs", served.user_token, wanted, 201)
    database = Database(served.database_url)

    def assigned() -> bool:
        with database.read() as session:
            found = session.query(Attempt).filter(
                Attempt.job_id == str(job["id"]), Attempt.state.in_(LIVE_ATTEMPT)
            )
            return found.first() is not None

    try:
        wait_for(assigned, what="an attempt")
    finally:
        database.close()
    return {"job_id": job["id"], "epoch": 1}


def drain(served: ServedApi) -> None:
    """Drain every node: jobs submitted afterwards wait, and no training competes for the cores."""
    with connection_to(served) as connection:

        def nodes() -> list[dict[str, object]]:
            found = ask(connection, "GET", "/v1/nodes", served.user_token, None, 200)["data"]
            assert isinstance(found, list)
            return found

        # This machine's own node may not have reported yet.
        wait_for(lambda: all(node["state"] != "pending" for node in nodes()), what="all nodes")
        for node in nodes():
            path = f"/v1/admin/nodes/{node['id']}/drain"
            ask(connection, "POST", path, served.user_token, {"reason": "measured"}, 200)


def _submit_for(served: ServedApi, seconds: float, token: str) -> list[float]:
    latencies = []
    body = json.dumps(example_job()).encode()
    end = time.monotonic() + seconds
    with closing(LeanConnection(served.url_host, served.port, token)) as connection:
        while time.monotonic() < end:
            started = time.perf_counter()
            connection.post("/v1/jobs", body, 201)
            latencies.append(time.perf_counter() - started)
    return latencies


def _post_metrics_for(
    served: ServedApi, seconds: float, attempt: dict[str, object], rank: int, lines_a_batch: int
) -> int:
    first, stored = 0, 0
    values = dict.fromkeys(KEYS, 1.25)
    end = time.monotonic() + seconds
    with closing(LeanConnection(served.url_host, served.port, served.node_token)) as connection:
        while time.monotonic() < end:
            lines = [{"step": first + i, **values} for i in range(lines_a_batch)]
            body = {**attempt, "rank": rank, "first_line": first, "lines": lines}
            answer = json.loads(connection.post("/v1/node/metrics", json.dumps(body).encode(), 200))
            first += lines_a_batch
            assert answer["next_line"] == first
            stored += lines_a_batch * len(KEYS)
    return stored


@cache
def example_job() -> dict[str, object]:
    return {**yaml.safe_load(EXAMPLE.read_text()), "name": "bench"}


def _enrolment(database: Database, name: str) -> str:
    """Return the secret with which a node enrols."""
    with database.write() as session:
        _, secret = issue_link(
            session,
            kind=LinkKind.ENROL,
            now=utc_now(),
            lifetime=timedelta(hours=1),
            node_name=name,
        )
    return secret


@contextmanager
def connection_to(served: ServedApi) -> Iterator[http.client.HTTPConnection]:
    connection = http.client.HTTPConnection(served.url_host, served.port, timeout=60)
    try:
        yield connection
    finally:
        connection.close()


def ask(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    token: str,
    body: Mapping[str, object] | None,
    expected: int,
) -> dict[str, object]:
    headers = {"Content-Type": "application/json", "Idempotency-Key": uuid.uuid4().hex}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    connection.request(method, path, None if body is None else json.dumps(body), headers)
    answer = connection.getresponse()
    content = answer.read()
    assert answer.status == expected, f"{method} {path}: {answer.status} {content[:500]!r}"
    return dict(json.loads(content))
