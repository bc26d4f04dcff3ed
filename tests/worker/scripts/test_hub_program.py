"""What the program of `models fetch` and `datasets fetch` takes from a hub, and what it refuses."""

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.worker.tls_servers import send
from trainyard import hub_program
from trainyard.cli.files.models import WEIGHT_PATTERNS
from trainyard.resources.models import OTHERS

pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")

COMMIT = "c0ffee" + "0" * 34
MODEL = (*OTHERS, *WEIGHT_PATTERNS)


@dataclass
class Hub:
    """A hub on loopback that has one repository, `lab/it`, as a model and as a dataset."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    token: str | None = None
    sent: list[str] = field(default_factory=list)
    """Files whose content was asked for."""


@pytest.fixture
def hub() -> Iterator[Hub]:
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            told, _, path = self.path.partition(f"/resolve/{COMMIT}/")
            if hub.token and self.headers.get("Authorization") != f"Bearer {hub.token}":
                self.refuse(401)
            elif path in hub.files:
                marks = {"ETag": f'"{len(path)}"', "X-Repo-Commit": COMMIT}
                send(self, hub.files[path], headers=marks)
                if self.command == "GET":
                    hub.sent.append(path)
            elif "/lab/it/revision/v1" in told:
                files = [{"rfilename": name, "size": len(body)} for name, body in hub.files.items()]
                told = json.dumps({"id": "lab/it", "sha": COMMIT, "siblings": files})
                send(self, told.encode(), kind="application/json")
            else:
                self.refuse(404)

        do_HEAD = do_GET

        def refuse(self, status: int) -> None:
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    yield hub
    server.shutdown()
    server.server_close()


def fetch(
    hub: Hub, output: Path, kind: str, *patterns: str, revision: str = "v1", **env: str
) -> str:
    """Run the program in a process of its own; return the sentence that it ended with."""
    passed = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
    passed |= {"HF_ENDPOINT": hub.url, "TRAINYARD_OUTPUT": str(output), "HOME": str(output), **env}
    command = [sys.executable, hub_program.__file__, kind, "lab/it", revision, *patterns]
    with tempfile.TemporaryDirectory() as scratch:
        passed["TMPDIR"] = scratch
        done = subprocess.run(command, env=passed, capture_output=True, text=True, timeout=60)
        assert not os.listdir(scratch), "it leaves nothing behind"
    assert (done.returncode == 0) == (not done.stderr.strip()), done.stderr
    return done.stderr.strip()


def left(output: Path) -> set[str]:
    return {str(p.relative_to(output)) for p in output.rglob("*") if p.is_file()}


def test_a_gated_dataset_is_fetched_with_a_token_by_its_pattern(hub: Hub, tmp_path: Path) -> None:
    hub.files = {
        "README.md": b"#",
        "data/a.parquet": b"one",
        "data/b.parquet": b"two",
        "c.txt": b"",
    }
    hub.token = "hf_secret"
    refused = fetch(hub, tmp_path, "dataset", "data/*")
    assert "the hub answers 401" in refused
    assert "--secret HF_TOKEN" in refused
    assert "Traceback" not in refused
    assert fetch(hub, tmp_path, "dataset", "data/*", HF_TOKEN="hf_secret") == ""
    assert left(tmp_path) == {"data/a.parquet", "data/b.parquet", "hub.json"}
    assert json.loads((tmp_path / "hub.json").read_bytes())["commit"] == COMMIT
    assert sorted(hub.sent) == ["data/a.parquet", "data/b.parquet"]


@pytest.mark.parametrize(
    ("kind", "patterns", "files", "said"),
    [
        ("model", MODEL, ("config.json", "pytorch_model.bin"), "Pickles (*.bin, *.pt) are not"),
        ("model", MODEL, ("model.safetensors",), "it needs config.json and"),
        ("dataset", ("*",), ("a.jsonl", "b.txt"), "several formats, jsonl, text: a.jsonl, b.txt"),
        ("dataset", ("*",), ("a.csv", "b.pkl"), "It has a.csv, b.pkl"),
        ("dataset", ("train/*",), ("test/a.jsonl",), "that matches train/*"),
    ],
)
def test_what_cannot_be_kept_is_refused_before_the_download(
    hub: Hub,
    tmp_path: Path,
    kind: str,
    patterns: tuple[str, ...],
    files: tuple[str, ...],
    said: str,
) -> None:
    hub.files = dict.fromkeys(files, b"content")
    refused = fetch(hub, tmp_path, kind, *patterns)
    assert said in refused
    assert "Traceback" not in refused
    assert (hub.sent, left(tmp_path)) == ([], set())


def test_a_revision_that_is_not_there_is_told(hub: Hub, tmp_path: Path) -> None:
    refused = fetch(hub, tmp_path, "model", *MODEL, revision="v9")
    assert "lab/it at v9: the hub answers 404" in refused
