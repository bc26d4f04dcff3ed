"""Node's side of the node protocol: HTTP to an API that may be slow, or away."""

import os
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO, TypeVar

import httpx2
from pydantic import BaseModel, ValidationError

from core.base import tracing
from core.wire.messages import (
    BEAT_AFTER,
    ORDERS_MARK,
    SHIP_AFTER,
    ArtifactReport,
    CheckpointReport,
    Enrolment,
    FileRef,
    Heartbeat,
    LogAck,
    LogBatch,
    MetricsAck,
    MetricsBatch,
    MissingFiles,
    MissingQuery,
    NewIdentity,
    Orders,
    Secrets,
    SharedLook,
    SharedLookAck,
    SnapshotAck,
    SnapshotReport,
)
from strategies.plan.durable_files import fsync_directory, sha256_of
from strategies.plan.trust.proof import Proof

TIMEOUT = httpx2.Timeout(15.0, connect=3.0)
FILE_TIMEOUT = httpx2.Timeout(120.0, connect=3.0)
CHUNK_BYTES = 1 << 20
NO_CONTENT = 204
NO_HEADERS: Mapping[str, str] = MappingProxyType({})
TEMPORARY = (408, 425, 429)
LONGEST_PAUSE_S = 60.0  # a pause that the API asks for; a proxy may have garbled its header

Answer = TypeVar("Answer", bound=BaseModel)


class Unreachable(Exception):
    """Missing answer, or one that says: later. The same request may be sent again."""


class RequestRefused(Exception):
    """Refusal by the API, which has understood the request."""

    def __init__(self, status: int, code: str, detail: str) -> None:
        super().__init__(f"{status} {code}: {detail}")
        self.status, self.code, self.detail = status, code, detail

    @property
    def is_final(self) -> bool:
        """True if it concerns an attempt that the API does not know, or no longer wants."""
        return self.status in (404, 409, 410)


class DamagedFile(Exception):
    """File that arrived with other bytes than its hash says."""


@dataclass(frozen=True)
class HeartbeatAnswer:
    """Answer of the API to a heartbeat."""

    orders: Orders | None
    """All orders; None: those that the mark in the heartbeat names."""
    mark: str
    """Text that names these orders in the next heartbeat; empty if the API gives none."""
    pause_s: float
    """Seconds until the API wants the next heartbeat."""


@dataclass(frozen=True)
class ShipAnswer:
    """Answer of the API to metrics or logs."""

    position: int
    """Position up to which the API has everything."""
    pause_s: float
    """Seconds until the API wants the next ones; 0: as soon as there are some."""


class ApiClient:
    """Client of the node protocol; one per thread. Raises Unreachable and RequestRefused."""

    def __init__(self, api_url: str, token: str = "") -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.http = httpx2.Client(
            base_url=api_url, headers=headers, timeout=TIMEOUT, verify=trusted()
        )

    def close(self) -> None:
        """Close the connections."""
        self.http.close()

    def enrol(self, enrolment: Enrolment) -> NewIdentity:
        return self._post("/v1/node/enrol", enrolment, NewIdentity)

    def heartbeat(self, heartbeat: Heartbeat, mark: str = "") -> HeartbeatAnswer:
        """Report what the node observes. `mark` is that of the orders that it has, if any."""
        path = "/v1/node/heartbeat"
        answer = self._send("POST", path, heartbeat, {ORDERS_MARK: mark} if mark else {})
        is_same = mark and answer.status_code == NO_CONTENT
        return HeartbeatAnswer(
            orders=None if is_same else _read(path, answer, Orders),
            mark=answer.headers.get(ORDERS_MARK, ""),
            pause_s=_pause_s(answer, BEAT_AFTER),
        )

    def get_secrets(self, job_id: str, epoch: int) -> Secrets:
        """Return the secrets of a script in a live attempt of this node."""
        answer = self._request("GET", f"/v1/node/secrets/{job_id}/{epoch}")
        try:
            return Secrets.model_validate_json(answer.content)
        except ValidationError as error:
            raise Unreachable("the API's answer is not a valid set of secrets") from error

    def send_metrics(self, batch: MetricsBatch) -> ShipAnswer:
        """Send lines of metrics.jsonl; positions are lines."""
        path = "/v1/node/metrics"
        answer = self._send("POST", path, batch)
        return ShipAnswer(_read(path, answer, MetricsAck).next_line, _pause_s(answer, SHIP_AFTER))

    def send_logs(self, batch: LogBatch) -> ShipAnswer:
        """Send a piece of a log; positions are bytes."""
        path = "/v1/node/logs"
        answer = self._send("POST", path, batch)
        return ShipAnswer(_read(path, answer, LogAck).next_byte, _pause_s(answer, SHIP_AFTER))

    def report_checkpoint(self, report: CheckpointReport) -> None:
        self._send("POST", "/v1/node/checkpoints", report)

    def report_artifact(self, report: ArtifactReport) -> None:
        self._send("POST", "/v1/node/artifacts", report)

    def send_proof(self, proof: Proof) -> None:
        self._send("POST", "/v1/node/proofs", proof)

    def has_file(self, sha256: str) -> bool:
        """Return True if the store has the bytes with this hash."""
        try:
            self._request("HEAD", f"/v1/node/files/{sha256}")
        except RequestRefused as refusal:
            if refusal.status == 404:
                return False
            raise
        return True

    def put_file(self, path: Path, sha256: str) -> None:
        """Stream a file into the store. Raises OSError if it cannot be read (any more)."""
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            self._request(
                "PUT",
                f"/v1/node/files/{sha256}",
                content=_chunks(file),
                headers={"Content-Length": str(size), "Content-Type": "application/octet-stream"},
                timeout=FILE_TIMEOUT,
            )

    def ask_missing(self, query: MissingQuery) -> MissingFiles:
        """Return which of the files the store lacks."""
        return self._post("/v1/node/workspaces/missing", query, MissingFiles)

    def report_snapshot(self, report: SnapshotReport) -> SnapshotAck:
        """Have a snapshot of a workspace kept, whose files are in the store."""
        return self._post("/v1/node/workspaces/snapshots", report, SnapshotAck)

    def report_shared_look(self, look: SharedLook) -> SharedLookAck:
        """Tell what a workspace in the site's shared folder holds."""
        return self._post("/v1/node/workspaces/shared", look, SharedLookAck)

    def get_file(self, file: FileRef, target: Path) -> None:
        """Fetch a file to `target`, which appears only once its hash is right.

        Raises DamagedFile, and OSError of the disk, besides the usual.
        """
        aside = target.with_name(f".{target.name}.part")
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            url = f"/v1/node/files/{file.sha256}"
            with (
                aside.open("wb") as part,
                self.http.stream("GET", url, timeout=FILE_TIMEOUT) as answer,
            ):
                if answer.status_code != 200:
                    answer.read()
                _require_success(answer)
                for chunk in answer.iter_bytes(CHUNK_BYTES):
                    part.write(chunk)
                part.flush()
                os.fsync(part.fileno())
        except httpx2.TransportError as error:
            raise Unreachable(_describe(error)) from error
        found = sha256_of(aside)
        if found != file.sha256:
            aside.unlink()
            raise DamagedFile(f"{file.path} arrived with SHA-256 {found} instead of {file.sha256}")
        os.replace(aside, target)
        fsync_directory(target.parent)

    def _post(self, path: str, message: BaseModel, kind: type[Answer]) -> Answer:
        return _read(path, self._send("POST", path, message), kind)

    def _send(
        self, method: str, path: str, message: BaseModel, headers: Mapping[str, str] = NO_HEADERS
    ) -> httpx2.Response:
        return self._request(
            method,
            path,
            content=message.model_dump_json().encode(),
            headers={"Content-Type": "application/json", **headers},
        )

    def _request(self, method: str, path: str, **options: object) -> httpx2.Response:
        above = tracing.here()
        headers: dict[str, str] = {} if above is None else {tracing.HEADER: above}
        headers.update(options.pop("headers", {}))  # type: ignore[call-overload]
        try:
            answer = self.http.request(method, path, headers=headers, **options)  # type: ignore[arg-type]
        except (httpx2.TransportError, httpx2.InvalidURL) as error:
            raise Unreachable(_describe(error)) from error
        _require_success(answer)
        return answer


@cache
def trusted() -> ssl.SSLContext:
    """Return the trusted certificates, read once per process: reading them takes 40 ms."""
    return httpx2.create_ssl_context()


def _read(path: str, answer: httpx2.Response, kind: type[Answer]) -> Answer:
    try:
        return kind.model_validate_json(answer.content)
    except ValidationError as error:
        raise Unreachable(f"{path}: answer is not a valid {kind.__name__}: {error}") from error


def _pause_s(answer: httpx2.Response, header: str) -> float:
    """Return the seconds in a header, LONGEST_PAUSE_S at most; 0 if it is missing or no time."""
    try:
        told = float(answer.headers.get(header, "0"))
    except ValueError:
        return 0.0
    return min(told, LONGEST_PAUSE_S) if told > 0 else 0.0


def _require_success(answer: httpx2.Response) -> None:
    """Raise Unreachable for a temporary failure, RequestRefused for a permanent one."""
    status = answer.status_code
    if 200 <= status < 300:
        return
    code, detail = "", answer.text[:500]
    try:
        problem = answer.json()
        code, detail = str(problem.get("code", "")), str(problem.get("detail", detail))
    except (ValueError, AttributeError):
        pass
    if status >= 500 or status in TEMPORARY or status < 400:
        raise Unreachable(f"{status} {code}: {detail}")
    raise RequestRefused(status, code, detail)


def _chunks(file: BinaryIO) -> Iterator[bytes]:
    while chunk := file.read(CHUNK_BYTES):
        yield chunk


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
