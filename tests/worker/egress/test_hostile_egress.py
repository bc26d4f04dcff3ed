"""A program that may reach one host and wants to reach others, in a real sandbox, by a real proxy.

Its names are a test's; the judgement of their addresses is the product's own.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from core.process.settings import read_hosts
from core.wire.messages import HostUse
from tests.worker.tls_servers import Authority, TlsServer, own_address, send
from worker.egress.launch import EGRESS_PORT, ProxyProcess, proxy_variables, start_proxy
from worker.scripts.sandbox import Box, Egress, Level
from worker.scripts.sandbox_users import user_for_a_while

pytestmark = pytest.mark.xdist_group("port 443")  # one server at a time has it

HERE = Path(__file__).parents[1]
NAMES = ("site.example", "site443.example", "other.example")


@dataclass(frozen=True)
class Outcome:
    """What a program printed, and what its proxy counted."""

    found: dict[str, Any]
    uses: dict[str, HostUse]


def run_inside(
    folder: Path,
    level: Level,
    program: Path,
    arguments: Sequence[str],
    *,
    reach: Sequence[str],
    names: dict[str, list[str]],
    patience_s: float = 0.7,
) -> Outcome:
    """Run a program in a sandbox of its own with a proxy of its own."""
    with ExitStack() as stack:
        outside, inside = (stack.enter_context(one) for one in socket.socketpair())
        proxy_uid = stack.enter_context(user_for_a_while())
        uid = stack.enter_context(user_for_a_while())
        proxy = start_proxy(
            outside,
            uid=proxy_uid,
            environment={"NAMES": json.dumps(names), "PATIENCE": str(patience_s)},
            module="tests.worker.resolving_proxy",
        )
        try:
            proxy.follow(reach, None)
            said = _run(folder, level, [str(program), *arguments], inside, uid)
        finally:
            proxy.finish()
            proxy.wait()
    return Outcome(said, {use.host: use for use in proxy.hosts})


def _run(
    folder: Path, level: Level, words: list[str], inside: socket.socket, uid: int | None
) -> dict[str, Any]:
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    box = Box(
        folder=folder,
        command=[sys.executable, "-I", "/job/program.py", *words[1:]],
        environment={"PATH": "/usr/bin:/bin", **proxy_variables(f"http://127.0.0.1:{EGRESS_PORT}")},
        working_folder="/",
        binds=[(Path(words[0]), "/job/program.py", False)],
        limits={"RLIMIT_NOFILE": 4096},
        uid=uid,
        egress=Egress(EGRESS_PORT, inside.fileno()),
    )
    command, told = box.launch(level)
    done = subprocess.run(
        command,
        input=told,
        capture_output=True,
        timeout=90,
        env={},
        cwd="/",
        pass_fds=[inside.fileno()],
    )
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@dataclass(frozen=True)
class Tried:
    """What came of everything that the hostile program tried."""

    outcome: Outcome
    port: int

    def __getitem__(self, name: str) -> Any:
        return self.outcome.found[name]


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Not below pytest's own folder, which a user without rights must not enter."""
    with tempfile.TemporaryDirectory(prefix="trainyard-egress-") as made:
        os.chmod(made, 0o755)
        yield Path(made)


@pytest.fixture(scope="module")
def servers(folder: Path) -> Iterator[tuple[TlsServer, TlsServer]]:
    """One at any port, one at 443."""
    authority = Authority(folder)
    try:
        https = TlsServer(authority, NAMES, lambda asked, _: send(asked, b"ok"), port=443)
    except OSError as error:
        pytest.skip(f"port 443 cannot be listened at: {error}")
    server = TlsServer(authority, NAMES, lambda asked, _: send(asked, b"ok"))
    yield server, https
    server.close()
    https.close()


@pytest.fixture(scope="module")
def tried(level: Level, folder: Path, servers: tuple[TlsServer, TlsServer]) -> Tried:
    own, port = own_address(), servers[0].port
    outcome = run_inside(
        folder / str(level),
        level,
        HERE / "hostile_egress.py",
        [own, str(port), "443"],
        reach=[
            f"private:site.example:{port}",
            "private:site443.example",
            *(f"{name}.example:{port}" for name in ("loop", "meta", "mapped", "intranet", "nat64")),
            f"private:looped.example:{port}",
            f"private:mixed.example:{port}",
            f"absent.example:{port}",
        ],
        names={
            "site.example": [own],
            "site443.example": [own],
            "other.example": [own],
            "loop.example": ["127.0.0.1", "::1"],
            "looped.example": ["127.0.0.1", "0.0.0.0"],
            "meta.example": ["169.254.169.254"],
            "mapped.example": ["::ffff:127.0.0.1"],
            "nat64.example": ["64:ff9b::7f00:1"],
            "intranet.example": [own],
            "mixed.example": ["127.0.0.1", "169.254.169.254", own],
        },
    )
    return Tried(outcome, port)


def test_the_listed_host_is_reached_in_each_spelling_of_its_name(tried: Tried) -> None:
    port = tried.port
    for target in (f"site.example:{port}", f"SITE.EXAMPLE:{port}", f"site.example.:{port}"):
        assert tried[f"CONNECT {target}"] == "HTTP/1.1 200 Connection established", target
    assert tried["in pieces"] == "HTTP/1.1 200 Connection established"
    assert tried["TLS"].startswith("TLSv1.")
    # The one address of several that is the site's, and not the machine's own.
    assert tried[f"CONNECT mixed.example:{port}"] == "HTTP/1.1 200 Connection established"


def test_no_other_name_port_or_address_is_reached(tried: Tried) -> None:
    reached = {f"site.example:{tried.port}", f"site.example.:{tried.port}"}
    reached |= {f"SITE.EXAMPLE:{tried.port}", f"mixed.example:{tried.port}"}
    targets = [name for name in tried.outcome.found if name.startswith("CONNECT ")]
    assert len(targets) > 35
    for name in targets:
        if name.removeprefix("CONNECT ") in reached:
            continue
        wanted = "502" if "absent" in name else "403"
        assert tried[name].startswith(f"HTTP/1.1 {wanted} "), (name, tried[name])
    assert "among the hosts that this job may reach" in tried["CONNECT localhost:29472"]
    for name in ("loop", "meta", "mapped", "intranet", "nat64", "looped"):
        said = tried[f"CONNECT {name}.example:{tried.port}"]
        assert "has no address on the internet" in said, said
    assert f"{tried.port}" not in tried[f"CONNECT {own_address()}:{tried.port}"]


def test_requests_that_are_not_one_connect_are_refused(tried: Tried) -> None:
    for name, status in {
        "two requests": 400,
        "early data": 400,
        "absolute form": 405,
        "own form": 405,
        "post": 405,
        "HTTP/2": 400,
        "carriage return": 403,
        "tab": 400,
        "two targets": 400,
        "null": 403,
        "long": 431,
    }.items():
        assert tried[name].startswith(f"HTTP/1.1 {status} "), (name, tried[name])
    for name in ("never finished", "line feeds alone"):
        assert tried[name] == "", (name, tried[name])


def test_there_is_no_way_around_the_proxy(tried: Tried) -> None:
    names = ("tcp", "tcp, the API", "udp", "udp, internet", "IPv6", "metadata", "raw", "packet")
    for name in (*names, "name server", "listen at its port"):
        assert "rror" in str(tried[name]), (name, tried[name])
    assert tried["interfaces"] == ["lo"]


def test_port_443_carries_tls_for_the_name_of_the_connect_alone(
    tried: Tried, servers: tuple[TlsServer, TlsServer]
) -> None:
    for name in ("TLS for another", "TLS for nobody"):
        assert "rror" in tried[name], tried[name]
    assert tried["not TLS"] == ""
    use = tried.outcome.uses["site443.example:443"]
    assert (use.connections, use.refused) == (4, 3)
    assert "TLS" in use.why


def test_very_many_connections_hold_up_themselves_alone(tried: Tried) -> None:
    assert tried["at once"] == ["HTTP/1.1 200 Connection established"]
    assert tried["many"]["said"] == "HTTP/1.1 200 Connection established"
    assert tried["many"]["after_s"] < 20  # 128 at a time, each silent for less than a second


def test_what_it_tried_is_counted_within_bounds(tried: Tried) -> None:
    uses = tried.outcome.uses
    assert uses[f"site.example:{tried.port}"].connections > 200
    assert uses[f"other.example:{tried.port}"].refused == 1
    assert uses["(not a name)"].refused > 15
    assert len(uses) <= 96


MANY_NAMES = """
import json, os, socket
port = int(os.environ["HTTPS_PROXY"].rpartition(":")[2])
for number in range(300):
    with socket.create_connection(("127.0.0.1", port), 20) as client:
        client.sendall(b"CONNECT a%d.%s:443 HTTP/1.1\\r\\n\\r\\n" % (number, b"x" * 60))
        client.recv(4096)
print(json.dumps({}))
"""


def test_a_program_that_tries_many_names_fills_no_log(folder: Path, level: Level) -> None:
    program = folder / "many.py"
    program.write_text(MANY_NAMES)
    uses = run_inside(folder / f"many-{level}", level, program, [], reach=["pypi"], names={}).uses
    assert len(uses) == 33
    assert uses["other hosts"].refused == 300 - 32
    assert sum(use.refused for use in uses.values()) == 300


def test_a_neighbours_proxy_is_out_of_reach_and_not_held_up(
    folder: Path, level: Level, servers: tuple[TlsServer, TlsServer]
) -> None:
    """Two sandboxes at the same time: each has its own proxy at the same port."""
    port, own = servers[0].port, own_address()
    program = folder / "fetch.py"
    program.write_text(
        "import json, os, socket\n"
        "port = int(os.environ['HTTPS_PROXY'].rpartition(':')[2])\n"
        "with socket.create_connection(('127.0.0.1', port), 20) as client:\n"
        f"    client.sendall(b'CONNECT site.example:{port} HTTP/1.1\\r\\n\\r\\n')\n"
        "    print(json.dumps({'said': client.recv(4096).decode().split('\\r\\n')[0]}))\n"
    )
    outside, inside = socket.socketpair()
    with outside, inside, socket.create_server(("127.0.0.1", 0)) as flooded:
        neighbour: ProxyProcess = start_proxy(
            outside,
            uid=None,
            environment={"NAMES": "{}", "PATIENCE": "20"},
            module="tests.worker.resolving_proxy",
        )
        neighbour.follow([f"private:site.example:{port}"], None)
        socket.send_fds(inside, [b"l"], [flooded.fileno()])
        silent = [socket.create_connection(flooded.getsockname(), 5) for _ in range(120)]
        began = time.monotonic()
        names = {"site.example": [own]}
        for reach, status in (([f"private:site.example:{port}"], 200), (["pypi"], 403)):
            found = run_inside(
                folder / f"beside-{level}", level, program, [], reach=reach, names=names
            ).found
            assert found["said"].startswith(f"HTTP/1.1 {status} "), found
        assert time.monotonic() - began < 15
        for one in silent:
            one.close()
    neighbour.finish()
    neighbour.wait()


AS_A_USER = """
import json, os, socket, subprocess, sys
from pathlib import Path
from worker.egress import proxy
from worker.scripts.sandbox import Box, Egress, Level

ASKS = '''
import shutil
import socket
with socket.create_connection(("127.0.0.1", 29472), 20) as client:
    client.sendall(b"CONNECT other.example:443 HTTP/1.1\\\\r\\\\n\\\\r\\\\n")
    print(client.recv(4096).decode().splitlines()[0])
'''
outside, inside = socket.socketpair()
control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
if os.fork() == 0:
    control.close()
    inside.close()
    proxy.main(theirs.detach(), outside.detach(), None)
theirs.close()
outside.close()
control.send(json.dumps({"reach": ["pypi.org"], "ceiling": None, "key": None}).encode())
box = Box(
    folder=Path(sys.argv[1]), command=[sys.executable, "-I", "-c", ASKS], environment={},
    working_folder="/", binds=[], egress=Egress(29472, inside.fileno()),
)
command, told = box.launch(Level(sys.argv[2]))
done = subprocess.run(
    command, input=told, capture_output=True, env={}, cwd="/", pass_fds=[inside.fileno()]
)
print(done.stdout.decode(), done.stderr.decode(), os.getuid())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else for a test")
def test_a_worker_without_rights_has_a_proxy_too(folder: Path, level: Level) -> None:
    python = shutil.which("python3", path="/usr/bin:/usr/local/bin")
    if python is None:
        pytest.skip("no Python that another user can start")
    told = subprocess.run([python, "-c", "import asyncio; asyncio.timeout"], capture_output=True)
    if told.returncode != 0:
        pytest.skip(f"{python} is older than Python 3.11")
    tree, place = folder / f"tree-{level}", folder / f"of-a-user-{level}"
    for name in (
        "core/__init__.py", "core/spec/__init__.py", "core/spec/hosts.py", "worker/__init__.py",
        "worker/egress/__init__.py", "worker/egress/addresses.py", "worker/egress/proxy.py",
        "worker/egress/server_name.py", "worker/scripts/__init__.py", "worker/scripts/sandbox.py",
        "worker/scripts/sandbox_init.py", "worker/scripts/sandbox_users.py",
        "worker/scripts/gang_network.py",
    ):  # fmt: skip
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(HERE.parents[1] / name, tree / name)
    place.mkdir()
    os.chown(place, 65534, 65534)
    done = subprocess.run(
        [
            *("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"),
            *(python, "-c", AS_A_USER, str(place), str(level)),
        ],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        cwd="/",
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    if "not permitted" in done.stdout:
        pytest.skip(f"this machine does not let users: {done.stdout}")
    assert "HTTP/1.1 403 other.example:443 is not among the hosts" in done.stdout, done.stdout
    assert done.stdout.strip().endswith("65534")


def test_a_node_lowers_what_is_granted(folder: Path) -> None:
    """Its ceiling counts for every host, and for what may be in the site's own network."""
    port, own = 4_443, own_address()
    names = {f"{name}.example": [own] for name in ("both", "unmarked", "granted")}
    reach = [f"private:{name}:{port}" for name in names]
    ceiling = [f"private:both.example:{port}", f"unmarked.example:{port}", "elsewhere.example"]
    with socket.create_server((own, port)), socket.create_server(("127.0.0.1", 0)) as listening:
        outside, inside = socket.socketpair()
        with outside, inside:
            proxy = start_proxy(
                outside,
                uid=None,
                environment={"NAMES": json.dumps(names), "PATIENCE": "5"},
                module="tests.worker.resolving_proxy",
            )
            proxy.follow(reach, ceiling)
            socket.send_fds(inside, [b"l"], [listening.fileno()])
            said = {}
            for name in names:
                with socket.create_connection(listening.getsockname(), 20) as client:
                    client.sendall(f"CONNECT {name}:{port} HTTP/1.1\r\n\r\n".encode())
                    said[name] = client.recv(4096).decode().splitlines()[0]
            with socket.create_connection(listening.getsockname(), 20) as client:
                client.sendall(f"CONNECT both.example:{port} HTTP/1.1\r\n\r\n".encode())
                assert b" 200 " in client.recv(4096)
                proxy.follow([f"both.example:{port}"], None)  # still listed, but not as private
                client.settimeout(20)
                assert client.recv(1) == b""
            proxy.finish()
            proxy.wait()
    assert said["both.example"] == "HTTP/1.1 200 Connection established"
    assert "has no address on the internet" in said["unmarked.example"]
    assert "this node allows at most private:both.example" in said["granted.example"]
    use = {use.host: use for use in proxy.hosts}
    assert (use[f"both.example:{port}"].connections, len(use)) == (2, 3)


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("", ()),
        ("none", ()),
        ("pypi, *.hf.co,private:a.example:80", (
            "pypi.org", "files.pythonhosted.org", "*.hf.co", "private:a.example:80",
        )),
    ],
)  # fmt: skip
def test_a_nodes_setting_is_a_list_of_hosts(text: str, hosts: tuple[str, ...]) -> None:
    assert read_hosts(text) == hosts
    with pytest.raises(ValueError, match="address"):
        read_hosts("pypi, 10.0.0.1")
