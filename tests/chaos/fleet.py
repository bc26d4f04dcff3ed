"""A whole platform as processes, to be broken: 2 APIs, 2 schedulers, 2 nodes, broker, database.

As root each node lives in a network namespace of its own and keeps its files on a small tmpfs, so
that its network can be taken away and its disk can be full; otherwise those faults are left out or
done by the proxy in front of it.
"""

import contextlib
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
import psutil

from core.database.database import Database
from core.database.schema import upgrade
from standalone import valkey
from standalone.children import Child
from tests.chaos.link import Link, Links
from tests.postgresql import Server
from tests.running import own_port, wait_for
from worker.node.process_tree import attempts_of_processes

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
NODES = ("a", "b")
NODE_DISK_MIB, DATABASE_DISK_MIB = 48, 384
START_S = 120.0
# Shorter than in production, so that a round takes seconds: 15, 30 and 3 there.
TEMPO = {"TRAINYARD_LEADER_TTL_S": "4", "TRAINYARD_UNREACHABLE_AFTER_S": "5"}
POLL_S = "0.5"


@dataclass
class NodeHouse:
    """What belongs to one node."""

    name: str
    folder: Path
    child: Child
    api: Link
    broker: Link
    namespace: str | None
    outer: str
    """The end of its cable that is on our side."""
    boots: int = 1

    def plug(self, *, is_in: bool) -> None:
        """Its network cable."""
        state = "up" if is_in else "down"
        subprocess.run(["ip", "link", "set", self.outer, state], check=True)


@dataclass
class Fleet:
    """The processes and the ways to reach and to break them."""

    folder: Path
    kind: str
    """`postgresql` or `sqlite`"""
    is_root: bool
    """Nodes have networks and disks of their own."""
    slots: int = 2
    """CPU slots of each node."""
    children: dict[str, Child] = field(default_factory=dict)
    nodes: dict[str, NodeHouse] = field(default_factory=dict)
    held_down: set[str] = field(default_factory=set)
    """Not started again until a fault is over."""
    api_urls: dict[str, str] = field(default_factory=dict)
    token: str = ""
    server: Server | None = None

    def start(self) -> None:
        """Everything, until both nodes are ready."""
        for name in ("clocks", "logs", "store", "ledger", "pg"):
            (self.folder / name).mkdir()
        if self.is_root:
            _mount(self.folder / "store", NODE_DISK_MIB)
        self.links = Links()
        self.database = Database(self._start_database())
        upgrade(self.database)
        self._add_broker()
        for number in (1, 2):
            self._add_api(f"api-{number}")
            self._add(
                f"scheduler-{number}",
                "scheduler",
                {"TRAINYARD_DATABASE_URL": self._url, "TRAINYARD_REDIS_URL": self.redis_url},
            )
        for name in ("broker", "api-1"):
            self.children[name].start()
        wait_for(lambda: self.answers("api-1"), what="the first API", within_s=START_S)
        self.token = self._first_administrator()
        for number, name in enumerate(NODES):
            self._add_node(name, number)
        for child in self.children.values():
            if not child.is_running():
                child.start()
        wait_for(self.nodes_ready, what="both nodes", within_s=START_S)
        wait_for(lambda: self.answers("api-2"), what="the second API", within_s=START_S)

    def keep_running(self) -> None:
        """What a supervisor does: start again what has ended, unless a fault holds it down."""
        for name, child in self.children.items():
            if name not in self.held_down and not child.is_running():
                child.start()

    def kill(self, name: str) -> None:
        """kill -9, and it stays down until `release`."""
        self.held_down.add(name)
        process = self.children[name].process
        assert process is not None
        process.kill()
        process.wait()

    def release(self, name: str) -> None:
        """The supervisor may start it again."""
        self.held_down.discard(name)
        self.keep_running()

    def signal(self, name: str, number: signal.Signals) -> None:
        """To one process, if it is there."""
        process = self.children[name].process
        if process is not None and process.poll() is None:
            process.send_signal(number)

    def set_clock(self, name: str, ahead_s: float) -> None:
        """Move the wall clock of one process."""
        descriptor = os.open(self.folder / "clocks" / name, os.O_WRONLY)
        os.pwrite(descriptor, f"{ahead_s:+020.3f}".encode(), 0)
        os.close(descriptor)

    def answers(self, name: str) -> bool:
        """Whether an API says that it can work."""
        with contextlib.suppress(httpx2.TransportError):
            return httpx2.get(f"{self.api_urls[name]}/readyz", timeout=2).status_code == 200
        return False

    def ask(self, method: str, path: str, **options: object) -> httpx2.Response | None:
        """The answer of the first API that gives one; None where none does now."""
        headers = {"Authorization": f"Bearer {self.token}"}
        headers.update(options.pop("headers", {}))  # type: ignore[call-overload]
        for url in self.api_urls.values():
            with contextlib.suppress(httpx2.TransportError):
                answer = httpx2.request(
                    method,
                    url + path,
                    headers=headers,
                    timeout=2.0,
                    **options,  # type: ignore[arg-type]
                )
                if answer.status_code < 500:
                    return answer
        return None

    def nodes_ready(self) -> bool:
        """Whether both are heard and take jobs."""
        answer = self.ask("GET", "/v1/nodes")
        if answer is None or answer.status_code != 200:
            return False
        states = [node["state"] == "ready" and node["reachable"] for node in answer.json()["data"]]
        return states == [True] * len(NODES)

    def attempt_processes(self, node: str) -> list[tuple[int, str]]:
        """Pid and attempt of everything that works for an attempt on a node."""
        return list(attempts_of_processes(self.nodes[node].folder / "attempts"))

    def keep_logs(self) -> Path:
        """Where the logs go on lying when everything else is removed."""
        kept = Path(tempfile.mkdtemp(prefix="ty-chaos-logs-", dir="/tmp"))
        shutil.copytree(self.folder / "logs", kept / "logs")
        shutil.copytree(self.folder / "ledger", kept / "ledger")
        return kept

    def close(self) -> None:
        """Nothing is left."""
        for child in reversed(self.children.values()):
            if child.process is not None and child.process.poll() is None:
                child.process.kill()
                child.process.wait()
        for name, node in self.nodes.items():
            while pids := self.attempt_processes(name):
                for pid, _ in pids:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        psutil.Process(pid).kill()
                time.sleep(0.05)
            if node.namespace is not None:
                subprocess.run(["ip", "link", "del", node.outer], check=False)
                subprocess.run(["ip", "netns", "del", node.namespace], check=False)
        self.links.close()
        self.database.close()
        if self.server is not None and self.server.process is not None:
            self.server.process.poll() is not None or self.server.stop()
        if self.is_root:
            disks = [self.folder / "store", self.folder / "pg" / "data"]
            for path in [*disks, *(node.folder for node in self.nodes.values())]:
                subprocess.run(["umount", "-l", str(path)], check=False)

    @property
    def _url(self) -> str:
        return self.database.url.render_as_string(hide_password=False)

    def _start_database(self) -> str:
        if self.kind == "sqlite":
            return f"sqlite:///{self.folder / 'trainyard.db'}"
        self.server = Server(self.folder / "pg", options=["-c", "max_wal_size=96MB"])
        if self.is_root:
            data = self.folder / "pg" / "data"
            data.mkdir()
            _mount(data, DATABASE_DISK_MIB)
        self.server.create()
        self.server.start()
        return self.server.url

    def _add_broker(self) -> None:
        self.redis_url = valkey.url(self.folder)
        log = self.folder / "logs" / "broker.log"
        self.children["broker"] = Child("broker", valkey.command(self.folder), {}, log)

    def _add(self, name: str, module: str, environment: dict[str, str], *prefix: str) -> Child:
        clock = self.folder / "clocks" / name
        clock.write_text(f"{0:+020.3f}")
        child = Child(
            name,
            [*prefix, sys.executable, str(HERE / "run_process.py"), module, str(clock)],
            {
                "PYTHONPATH": f"{ROOT}:{ROOT / 'client'}:{HERE}:{ROOT / 'tests' / 'worker'}",
                **TEMPO,
                **environment,
            },
            self.folder / "logs" / f"{name}.log",
        )
        self.children[name] = child
        return child

    def _add_api(self, name: str) -> None:
        port = own_port()
        self.api_urls[name] = f"http://127.0.0.1:{port}"
        self._add(
            name,
            "api",
            {
                "TRAINYARD_DATABASE_URL": self._url,
                "TRAINYARD_REDIS_URL": self.redis_url,
                "TRAINYARD_STORE": str(self.folder / "store" / "files"),
                "TRAINYARD_PORT": str(port),
                "TRAINYARD_SUBMISSIONS_PER_MINUTE": "100000",
            },
        )

    def _first_administrator(self) -> str:
        link = (self.folder / "store" / "first-start-link").read_text()
        secret = re.search(r"secret=([A-Za-z0-9_-]+)", link)
        assert secret is not None, link
        body = {"secret": secret[1], "name": "ada", "password": "correct horse battery"}
        self.token = httpx2.post(
            f"{self.api_urls['api-1']}/v1/first-start", json=body, timeout=30
        ).json()["secret"]
        # A session would end by a clock that is a day ahead; a token of a year does not.
        wanted = {"name": "chaos", "scopes": ["all"], "expires_in_days": 365}
        made = self.ask("POST", "/v1/tokens", json=wanted)
        assert made is not None, "no API"
        return str(made.json()["secret"])

    def _add_node(self, name: str, number: int) -> None:
        folder = self.folder / f"node-{name}"
        folder.mkdir()
        (folder / "behaviour.json").write_text("{}")
        host, namespace, outer, prefix = "127.0.0.1", None, "", []
        if self.is_root:
            _mount(folder, NODE_DISK_MIB)
            mark = secrets.token_hex(3)
            namespace, outer = f"ty{mark}", f"ty{mark}o"
            host = _network(namespace, outer, number)
            # Not `ip netns exec`, which hides the cgroups by which owners are kept apart.
            prefix = ["nsenter", f"--net=/run/netns/{namespace}"]
        apis = [("127.0.0.1", int(url.rpartition(":")[2])) for url in self.api_urls.values()]
        api = self.links.open(host, apis if number == 0 else apis[::-1])
        broker = self.links.open(host, [str(self.folder / valkey.SOCKET)])
        answer = self.ask("POST", "/v1/admin/enrolments", json={"name": f"node-{name}"})
        assert answer is not None, "no API"
        child = self._add(
            f"node-{name}",
            "worker",
            {
                "TRAINYARD_API_URL": f"http://{host}:{api.port}",
                "TRAINYARD_REDIS_URL": f"redis://{host}:{broker.port}/0",
                "TRAINYARD_DATA": str(folder),
                "TRAINYARD_POLL_S": POLL_S,
                "TRAINYARD_SLOTS": str(self.slots),
                "TRAINYARD_ENROL_TOKEN": answer.json()["token"],
                "TRAINYARD_BOOT_ID": f"{name}-1",
            },
            *prefix,
        )
        self.nodes[name] = NodeHouse(name, folder, child, api, broker, namespace, outer)


@contextmanager
def running_fleet(
    kind: str, *, is_root: bool = os.geteuid() == 0, slots: int = 2
) -> Iterator[Fleet]:
    """A fleet with two ready nodes; everything it started is gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="ty-ch-", dir="/tmp"))  # short: it holds sockets
    folder.chmod(0o755)
    fleet = Fleet(folder, kind, is_root, slots)
    try:
        fleet.start()
        yield fleet
    except BaseException:
        sys.stderr.write(f"The logs are kept in {fleet.keep_logs()}\n")
        raise
    finally:
        fleet.close()
        shutil.rmtree(folder, ignore_errors=True)


def reboot(fleet: Fleet, name: str) -> Callable[[], None]:
    """Power off: every process of the node ends at once. Returns what powers it on again."""
    fleet.kill(f"node-{name}")
    node = fleet.nodes[name]
    while pids := fleet.attempt_processes(name):
        for pid, _ in pids:
            with contextlib.suppress(psutil.NoSuchProcess):
                psutil.Process(pid).kill()
        time.sleep(0.02)
    node.boots += 1
    environment = {**node.child.environment, "TRAINYARD_BOOT_ID": f"{name}-{node.boots}"}
    node.child.environment = environment
    return lambda: fleet.release(f"node-{name}")


def _mount(folder: Path, size_mib: int) -> None:
    command = ["mount", "-t", "tmpfs", "-o", f"size={size_mib}m,mode=0700", "none", str(folder)]
    subprocess.run(command, check=True)


def _network(namespace: str, outer: str, number: int) -> str:
    """A namespace with one cable to us; our address on it."""
    inner, net = f"{outer[:-1]}i", f"10.{200 + os.getpid() % 50}.{number}"
    for command in (
        f"ip netns add {namespace}",
        f"ip link add {outer} type veth peer name {inner}",
        f"ip link set {inner} netns {namespace}",
        f"ip addr add {net}.1/30 dev {outer}",
        f"ip link set {outer} up",
        f"ip -n {namespace} addr add {net}.2/30 dev {inner}",
        f"ip -n {namespace} link set {inner} up",
        f"ip -n {namespace} link set lo up",
    ):
        subprocess.run(command.split(), check=True)
    return f"{net}.1"
