"""Hub of a sandbox: serves its inputs on loopback by the protocol of the Hugging Face hub.

`from_pretrained("owner/name")` and `load_dataset("owner/name")` ask a hub for the list of a
repository's files and for the files. This one knows the inputs of the job and answers 404 for
everything else, so that a missing name is told at once. It runs inside, as the script's user, with
the standard library only (`python -I -S local_hub.py INDEX DESCRIPTOR`): INDEX is a file with the
repositories, DESCRIPTOR a listening socket.

    {"models/owner/name": {"folder": "/job/inputs/owner/name", "revision": 40 hex digits,
                           "files": {path: {"size": bytes, "sha256": 64 hex digits}}}}
"""

import json
import re
import socket
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

RESOLVE = re.compile(r"/(datasets/)?(.+)/resolve/([^/]+)/(.+)")
API = re.compile(r"/api/(models|datasets)/(.+?)(?:/(revision|tree|paths-info)/([^/]+)(?:/(.*))?)?")
RANGE = re.compile(r"bytes=(\d+)-(\d*)")
CHUNK_BYTES = 1 << 20
MAX_BODY_BYTES = 1 << 20

Repository = dict[str, Any]


class LocalHub(ThreadingHTTPServer):
    """Server of the repositories of an index, on a socket that listens already."""

    daemon_threads = True

    def __init__(self, listening: socket.socket, index: dict[str, Repository]) -> None:
        super().__init__(listening.getsockname(), HubAnswer, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        self.index = index


class HubAnswer(BaseHTTPRequestHandler):
    """Answer to one request."""

    server: LocalHub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        if found := RESOLVE.fullmatch(path):
            self._file(*found.groups())
        elif found := API.fullmatch(path):
            self._about(*found.groups())
        else:
            self._absent("EntryNotFound", f"{path} is not an address of this hub")

    do_HEAD = do_GET

    def do_POST(self) -> None:
        length = min(int(self.headers.get("Content-Length") or 0), MAX_BODY_BYTES)
        self.asked = self.rfile.read(length)
        self.do_GET()

    def _file(self, datasets: str | None, name: str, revision: str, path: str) -> None:
        repository = self._repository("datasets" if datasets else "models", name, revision)
        if repository is None:
            return
        file = repository["files"].get(path)
        if file is None:
            self._absent("EntryNotFound", f"{name} has no file {path}", repository)
            return
        size, first, last = file["size"], 0, file["size"] - 1
        part = RANGE.fullmatch(self.headers.get("Range") or "")
        if part is not None:
            first, last = int(part[1]), min(last, int(part[2] or last))
        if first > last and part is not None:
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{size}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(200 if part is None else 206)
        if part is not None:
            self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
        self.send_header("Content-Type", "application/octet-stream")
        self.send_header("Content-Length", str(last - first + 1))
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("ETag", f'"{file["sha256"]}"')
        self.send_header("X-Repo-Commit", repository["revision"])
        self.end_headers()
        if self.command == "HEAD":
            return
        with open(f"{repository['folder']}/{path}", "rb") as content:
            content.seek(first)
            left = last - first + 1
            while left > 0 and (chunk := content.read(min(CHUNK_BYTES, left))):
                self.wfile.write(chunk)
                left -= len(chunk)

    def _about(
        self, kind: str, name: str, what: str | None, revision: str | None, path: str | None
    ) -> None:
        repository = self._repository(kind, name, revision)
        if repository is None:
            return
        below = f"{path}/" if path else ""
        files = {name: file for name, file in repository["files"].items() if name.startswith(below)}
        if what == "tree":
            self._json([_entry(name, file) for name, file in files.items()])
        elif what == "paths-info":
            named = _asked_paths(getattr(self, "asked", b""))
            self._json([_entry(name, file) for name, file in files.items() if name in named])
        else:
            self._json(
                {
                    "id": name,
                    "sha": repository["revision"],
                    "private": False,
                    "gated": False,
                    "disabled": False,
                    "downloads": 0,
                    "likes": 0,
                    "tags": [],
                    "siblings": [
                        {"rfilename": name, "size": file["size"]} for name, file in files.items()
                    ],
                }
            )

    def _repository(self, kind: str, name: str, revision: str | None) -> Repository | None:
        """Return a repository; answer 404 if there is none of this name or revision."""
        repository = self.server.index.get(f"{kind}/{name}")
        if repository is None:
            self._absent("RepoNotFound", f"{name} is not among this job's inputs ({kind})")
        elif revision not in (None, "main", repository["revision"]):
            self._absent("RevisionNotFound", f"{name} has no revision {revision} here")
        else:
            return repository
        return None

    def _json(self, content: object) -> None:
        body = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _absent(self, code: str, message: str, repository: Repository | None = None) -> None:
        body = json.dumps({"error": message}).encode()
        self.send_response(404)
        self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", message.encode("ascii", "replace").decode())
        if repository is not None:
            self.send_header("X-Repo-Commit", repository["revision"])
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: the output is the script's own."""


def _entry(path: str, file: dict[str, Any]) -> dict[str, object]:
    return {"type": "file", "path": path, "size": file["size"], "oid": file["sha256"][:40]}


def _asked_paths(body: bytes) -> list[str]:
    """Return the paths of a request for information, which is JSON or a form."""
    try:
        paths = json.loads(body).get("paths", [])
    except (ValueError, AttributeError):
        return [unquote(part[6:]) for part in body.decode().split("&") if part[:6] == "paths="]
    return [paths] if isinstance(paths, str) else list(paths)


def main(index: str, descriptor: int) -> None:
    """Serve for ever."""
    with open(index, encoding="utf-8") as file:
        repositories = json.load(file)
    LocalHub(socket.socket(fileno=descriptor), repositories).serve_forever()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
