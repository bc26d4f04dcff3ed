"""Programs on a node reach the hosts of their list through its proxy, and nothing else."""

import hashlib
import json
import os
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from core.states import Outcome
from core.wire.messages import ExitRecord, HostUse, Network, Order
from tests.worker.fake_api import FakeApi
from tests.worker.nodes import Node
from tests.worker.script_orders import output_of, script_order
from tests.worker.scripts.test_script_parts import wheel
from tests.worker.tls_servers import Authority, TlsServer, own_address, send
from trainyard import hub_program
from trainyard.cli.files.models import WEIGHT_PATTERNS
from trainyard.resources.models import OTHERS
from worker.node.attempts import Key
from worker.scripts.sandbox import Level

NAMES = ("models.example", "other.example", "index.example")
FETCH = """
import os, socket, ssl, sys, urllib.request
context = ssl.create_default_context(cafile="authority.pem")
for address in sys.argv[1:]:
    try:
        print("read", urllib.request.urlopen(address, context=context, timeout=20).read().decode())
    except OSError as error:
        print("refused", error)
try:
    socket.getaddrinfo("models.example", 443)
except OSError as error:
    print("no name server:", error.errno)
print(os.environ["NO_PROXY"], os.environ["https_proxy"], flush=True)
"""
COMMIT = "c0ffee" + "0" * 34  # what the hub's branch is at
MODEL = {
    "config.json": b"{}",
    "model.safetensors": b"weights" * 1000,
    "tokenizer.json": b"{}",
    "pytorch_model.bin": b"a pickle",
    "onnx/model.onnx": b"of another kind",
}
WAITS = """
import os, socket, ssl, time
def tunnel(host):
    _, address = os.environ["HTTPS_PROXY"].split("//")
    name, port = address.split(":")
    s = socket.create_connection((name, int(port)), timeout=20)
    s.sendall(f"CONNECT {host} HTTP/1.1\\r\\n\\r\\n".encode())
    return s, s.recv(4096).decode().splitlines()[0]
host = os.environ["HOST"]
s, said = tunnel(host)
print("first:", said, flush=True)
print("ended:", s.recv(1), flush=True)  # until somebody ends it
print("second:", tunnel(host)[1], flush=True)
"""


@dataclass(frozen=True)
class Site:
    """A node whose site has two servers of its own."""

    api: FakeApi
    node: Node
    server: TlsServer
    files: dict[str, str]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, level: Level) -> Iterator[Site]:
    """Its node looks names up as nodes do, in a file of hosts that only it has."""
    if os.geteuid() != 0:
        pytest.skip("only root can give a worker a file of hosts of its own")
    folder = tmp_path_factory.mktemp("egress")
    authority = Authority(folder)
    hosts = folder / "hosts"
    hosts.write_text(f"127.0.0.1 localhost\n{own_address()} {' '.join(NAMES)}\n")
    server = TlsServer(authority, NAMES, answer)
    api = FakeApi()
    node = Node(folder / "node", api)
    wheel(folder / "wheels", "tinynet", "1.2", "SIZE = 3\n")
    [built] = (folder / "wheels").iterdir()
    server.files[f"/files/{built.name}"] = built.read_bytes()
    for name, place in (("tinynet", f"/files/{built.name}"), ("stray", "https://other.example/s")):
        link = f'<a href="{place}">{place.rpartition("/")[2]}</a>'
        server.files[f"/simple/{name}/"] = link.encode()
    mounted = f"mount --make-rprivate / && mount --bind {hosts} /etc/hosts"
    node.start(
        warm=False,
        within=["unshare", "--mount", "sh", "-c", f'{mounted} && exec "$@"', "sh"],
        TRAINYARD_SANDBOX=str(level),
        PIP_INDEX_URL=f"https://index.example:{server.port}/simple",
        PIP_CERT=str(authority.file),
        PIP_RETRIES="0",
    )
    files = {"train.py": FETCH, "authority.pem": authority.file.read_text()}
    try:
        yield Site(api, node, server, files)
    finally:
        node.close()
        api.close()
        server.close()


def answer(request: BaseHTTPRequestHandler, files: Mapping[str, bytes]) -> None:
    if request.path.startswith("/moved/"):
        request.send_response(302)
        request.send_header("Location", f"https://{request.path.removeprefix('/moved/')}")
        request.send_header("Content-Length", "0")
        request.end_headers()
    elif request.path in files and "/resolve/" in request.path:
        body = files[request.path]
        marks = {"ETag": f'"{hashlib.sha256(body).hexdigest()}"', "X-Repo-Commit": COMMIT}
        send(request, body, kind="application/octet-stream", headers=marks)
    elif request.path in files:
        kind = "text/html" if request.path.startswith("/simple/") else "application/zip"
        send(request, files[request.path], kind=kind)
    else:
        send(request, b"the weights")


def used(site: Site, job: str = "job_script") -> dict[str, HostUse]:
    """The use of each host, as the API was told."""
    observed = site.api.wait_for(
        lambda: (
            one
            if (one := site.api.observed(Key(job, 1))) is not None and one.exit is not None
            else None
        )
    )
    return {use.host: use for use in observed.hosts}


def order(site: Site, reach: list[str], *, source: Any = None, **other: Any) -> Order:
    return script_order(
        site.api,
        source or site.files,
        network=Network(reach=reach, granted=reach),
        **other,
    )


def run(site: Site, reach: list[str], **other: Any) -> tuple[ExitRecord, str]:
    one = order(site, reach, **other)
    site.api.order(one)
    record = site.api.wait_for_exit(Key(one.job_id, 1))
    return record, output_of(site.api, one.job_id)


def test_a_program_reaches_the_host_of_its_list_and_no_other(site: Site) -> None:
    port = site.server.port
    record, said = run(
        site,
        [f"private:models.example:{port}"],
        arguments=[
            f"https://models.example:{port}/weights",
            f"https://other.example:{port}/weights",
            f"https://models.example:{port}/moved/other.example:{port}/",
            f"https://{own_address()}:{port}/",
            "http://models.example/",
        ],
    )
    assert record.outcome is Outcome.SUCCEEDED, (record, said)
    lines = said.splitlines()
    assert lines[0] == "read the weights"
    assert f"other.example:{port} is not among the hosts that this job may reach" in lines[1]
    assert f"private:models.example:{port}" in lines[1]
    assert "other.example" in lines[2]
    assert "403" in lines[3]
    assert "405" in lines[4]
    assert lines[5].startswith("no name server")
    assert lines[6].startswith("localhost,127.0.0.1,::1 http://127.0.0.1:")
    assert site.server.paths == ["/weights", f"/moved/other.example:{port}/"]
    uses = used(site)
    reached = uses[f"models.example:{port}"]
    assert (reached.connections, reached.refused) == (2, 0)
    assert reached.received_bytes > 500
    assert reached.sent_bytes > 200
    assert uses[f"other.example:{port}"].refused == 2
    assert uses["(not a name)"].refused == 2
    assert len(uses) == 3
    assert "It may reach by name: private:models.example" in launcher_log(site)


def launcher_log(site: Site, job: str = "job_script") -> str:
    return (site.node.attempt(Key(job, 1)).launcher_logs / "stderr.log").read_text()


def test_a_model_of_a_hub_is_fetched_at_its_exact_commit(site: Site) -> None:
    files = [{"rfilename": path, "size": len(body)} for path, body in MODEL.items()]
    told = json.dumps({"id": "lab/tiny", "sha": COMMIT, "siblings": files})
    site.server.files["/api/models/lab/tiny/revision/v1?blobs=true"] = told.encode()
    for path, body in MODEL.items():
        site.server.files[f"/lab/tiny/resolve/{COMMIT}/{path}"] = body
    before = len(site.server.paths)
    host = f"models.example:{site.server.port}"
    record, said = run(
        site,
        [f"private:{host}"],
        source={
            "train.py": Path(hub_program.__file__).read_text(),
            "authority.pem": site.files["authority.pem"],
        },
        job="job_fetches",
        arguments=["model", "lab/tiny", "v1", *OTHERS, *WEIGHT_PATTERNS],
        environment={"HF_ENDPOINT": f"https://{host}", "SSL_CERT_FILE": "authority.pem"},
    )
    assert record.outcome is Outcome.SUCCEEDED, (record, said)
    assert f"lab/tiny at v1 is commit {COMMIT}." in said
    folder = site.node.attempt(Key("job_fetches", 1)).artifacts
    left = {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    wanted = ["config.json", "model.safetensors", "tokenizer.json"]
    assert json.loads(left.pop("hub.json")) == {
        "kind": "model",
        "repository": "lab/tiny",
        "commit": COMMIT,
        "files": wanted,
    }
    assert left == {name: MODEL[name] for name in wanted}
    assert not any(path.endswith((".bin", ".onnx")) for path in site.server.paths[before:])
    assert used(site, "job_fetches")[host].received_bytes > 7000


def test_a_program_that_asked_for_no_network_has_none(site: Site) -> None:
    source = "import os, sys; print([n for n in os.environ if 'proxy' in n.lower()])"
    network = Network(reach=None, granted=["pypi"])
    site.api.order(script_order(site.api, source, "job_without", network=network))
    assert site.api.wait_for_exit(Key("job_without", 1)).outcome is Outcome.SUCCEEDED
    assert output_of(site.api, "job_without") == "[]\n"


def test_a_host_that_is_granted_no_more_is_lost_at_once(site: Site) -> None:
    host, job = f"models.example:{site.server.port}", "job_waits"
    with_host = order(site, [f"private:{host}"], source=WAITS, job=job, environment={"HOST": host})
    site.api.order(with_host)
    site.api.wait_for(lambda: "first: HTTP/1.1 200" in output_of(site.api, job))
    without = Network(reach=[], granted=["pypi.org"])
    site.api.order(with_host.model_copy(update={"network": without}))
    record = site.api.wait_for_exit(Key(job, 1))
    assert record.outcome is Outcome.SUCCEEDED
    assert "ended: b''" in output_of(site.api, job)
    assert f"second: HTTP/1.1 403 {host} is not among" in output_of(site.api, job)


def with_packages(site: Site, job: str, *granted: str, package: str = "tinynet==1.2") -> ExitRecord:
    """The end of a job that requires a package, and asks for no network."""
    files = {
        "train.py": "import tinynet; print(tinynet.SIZE)",
        "requirements.txt": f"{package}\n",
    }
    network = Network(reach=None, granted=list(granted))
    site.api.order(
        script_order(site.api, files, job, requirements="requirements.txt", network=network)
    )
    return site.api.wait_for_exit(Key(job, 1))


@pytest.mark.slow
def test_packages_come_through_the_proxy_where_the_index_is_listed(site: Site) -> None:
    index = f"index.example:{site.server.port}"
    refused = with_packages(site, "job_public", index)  # its address is not of the internet
    assert refused.outcome is Outcome.START_FAILED
    assert f"lists a host of the site's own network as private:{index}" in refused.reason
    record = with_packages(site, "job_packages", f"private:{index}")
    assert record.outcome is Outcome.SUCCEEDED, record
    assert output_of(site.api, "job_packages") == "3\n"
    use = used(site, "job_packages")[index]
    assert use.connections >= 1
    assert use.received_bytes > 500
    assert "/simple/tinynet/" in site.server.paths
    assert used(site, "job_public")[index].refused >= 1


@pytest.mark.slow
def test_packages_come_as_before_where_the_index_is_not_listed(site: Site) -> None:
    record = with_packages(site, "job_as_before", "pypi.org", package="tinynet>=1.2")
    assert record.outcome is Outcome.SUCCEEDED, record
    assert used(site, "job_as_before") == {}


def test_the_proxy_is_small_has_a_user_of_its_own_and_ends_with_its_program(site: Site) -> None:
    key = Key("job_sleeps", 1)
    source = "print('here', flush=True); import time; time.sleep(60)"
    site.api.order(order(site, ["pypi.org"], source=source, job=key.job_id))
    site.api.wait_for(lambda: "here" in output_of(site.api, key.job_id))
    [pid] = site.api.wait_for(
        lambda: [pid for pid in site.node.processes(key) if is_proxy(pid)] or None
    )
    status = status_of(pid)
    script_uid = (site.node.attempt(key).rank_logs(0) / "stdout.log").stat().st_uid
    assert int(status["Uid"][0]) != script_uid
    assert int(status["CapEff"][0], 16) == 0
    assert status["NoNewPrivs"] == ["1"]
    assert own_kib(pid) < 20 << 10
    assert "torch" not in Path(f"/proc/{pid}/maps").read_text()
    os.kill(site.node.shim_pid(key), signal.SIGKILL)
    site.api.wait_for(lambda: not Path(f"/proc/{pid}").exists() or "Z" in status_of(pid)["State"])


def status_of(pid: int) -> dict[str, list[str]]:
    """What /proc says about a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.split() for name, _, value in (line.partition(":\t") for line in lines)}


def is_proxy(pid: int) -> bool:
    return Path(f"/proc/{pid}/comm").read_text() == "egress-proxy\n"


def own_kib(pid: int) -> int:
    """Memory that a process shares with no other one."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))
