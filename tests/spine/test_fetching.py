"""Models and datasets of a hub, from the command to what is registered, by a hub of the site that
only the node knows."""

import gzip
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from tests.running import Running, running_platform
from tests.strategies.support.hf_models import make_model
from tests.worker.tls_servers import Authority, TlsServer, own_address, send
from trainyard import Trainyard
from worker.scripts.sandbox import Level, why_not

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

COMMIT = "c0ffee" + "0" * 34
HUB = "hub.example"
SYSTEM = Path("/etc/ssl/certs/ca-certificates.crt")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """The site's own certificate authority."""
    if os.geteuid() != 0 or not SYSTEM.exists() or why_not(Level.BUBBLEWRAP):
        pytest.skip("only root can give a platform a view of its own, with a sandbox")
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def hub(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsServer]:
    """A hub with the model lab/tiny and the dataset lab/rows."""
    server = TlsServer(authority, [HUB], answer)
    folder = make_model("llama", tmp_path_factory.mktemp("model"))
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    repositories = {
        "models/lab/tiny": {**files, "pytorch_model.bin": b"a pickle"},
        "datasets/lab/rows": {"data/a.jsonl.gz": gzip.compress(b'{"text": "one"}\n' * 9)},
    }
    for path, held in repositories.items():
        told = [{"rfilename": name, "size": len(body)} for name, body in held.items()]
        info = json.dumps({"id": path.partition("/")[2], "sha": COMMIT, "siblings": told})
        server.files[f"/api/{path}/revision/main?blobs=true"] = info.encode()
        for name, body in held.items():
            place = path.removeprefix("models/")
            server.files[f"/{place}/resolve/{COMMIT}/{name}"] = body
    yield server
    server.close()


def answer(request: BaseHTTPRequestHandler, files: Mapping[str, bytes]) -> None:
    body = files.get(request.path)
    if body is None:
        request.send_error(404)
        return
    marks = {"ETag": f'"{hashlib.sha256(body).hexdigest()}"', "X-Repo-Commit": COMMIT}
    kind = "application/json" if request.path.startswith("/api/") else "application/octet-stream"
    send(request, body, kind=kind, headers=marks)


@pytest.fixture(scope="module")
def site(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A platform whose machine knows the hub's name and trusts its authority."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "hosts").write_text(f"127.0.0.1 localhost\n{own_address()} {HUB}\n")
    (folder / "trusted").write_bytes(SYSTEM.read_bytes() + authority.file.read_bytes())
    mounts = " && ".join(
        [
            "mount --make-rprivate /",
            f"mount --bind {folder / 'hosts'} /etc/hosts",
            f"mount --bind {folder / 'trusted'} {SYSTEM.resolve()}",
        ]
    )
    within = ["unshare", "--mount", "sh", "-c", f'{mounts} && exec "$@"', "sh"]
    with running_platform(within=within) as platform:
        yield platform


def command(site: Running, home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    known = {"TRAINYARD_URL": site.url, "TRAINYARD_TOKEN": site.token, "HOME": str(home)}
    return subprocess.run(
        [sys.executable, "-c", "from trainyard.cli import main; main()", *words],
        env={**os.environ, **known},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_what_a_mirror_has_is_fetched_and_registered_once_it_is_listed(
    site: Running, hub: TlsServer, tmp_path: Path
) -> None:
    mirror = ("--hub", f"https://{HUB}:{hub.port}")
    refused = command(site, tmp_path, "models", "fetch", "lab/tiny", *mirror)
    assert refused.returncode != 0
    assert f"{HUB}:{hub.port} may not be reached" in refused.stderr
    with Trainyard(site.url, site.token) as client:
        [node] = client.nodes.list()
        listed = f"private:{HUB}:{hub.port}"
        said = command(
            site, tmp_path, "admin", "network", "set", "--class", node.node_class, listed
        )
        assert said.returncode == 0, said.stderr

        done = command(site, tmp_path, "models", "fetch", "lab/tiny", *mirror)
        assert done.returncode == 0, done.stdout + done.stderr
        model = client.models.get("tiny")
        assert model.architecture == "LlamaForCausalLM"
        assert model.origin is not None
        assert model.origin.hub == f"lab/tiny@{COMMIT}"
        assert f"fetched from lab/tiny@{COMMIT} by {model.origin.job}" in done.stdout
        assert not any(path.endswith(".bin") for path in hub.paths)

        done = command(site, tmp_path, "datasets", "fetch", "lab/rows", *mirror)
        assert done.returncode == 0, done.stdout + done.stderr
        rows = client.datasets.get("rows")
        assert (rows.format, rows.lines) == ("jsonl", 9)
        assert [file.path for file in rows.files] == ["data.jsonl.gz"]
        assert client.datasets.rows("rows", count=1).rows[0].num_tokens == 3
