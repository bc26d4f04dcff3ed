"""An API that a node can talk to: a threaded HTTP server that keeps what it hears in memory.

It speaks `core.wire.messages`, stores lines and bytes once as the real one does, and can be down.
"""

import hashlib
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeVar

from core.wire.messages import (
    BEAT_AFTER,
    ORDERS_MARK,
    SHIP_AFTER,
    ArtifactReport,
    AttemptRef,
    CheckpointReport,
    Enrolment,
    ExitRecord,
    FileRef,
    Heartbeat,
    InputFiles,
    LogAck,
    LogBatch,
    MetricsAck,
    MetricsBatch,
    MissingFiles,
    MissingQuery,
    NewIdentity,
    ObservedAttempt,
    Order,
    Orders,
    PackagesAhead,
    Secrets,
    SharedLook,
    SharedLookAck,
    SnapshotAck,
    SnapshotReport,
)
from core.wire.workspace_tree import read_tree
from worker.node.attempts import Key

TOKEN = "node-secret-token-of-the-tests"
ENROL_TOKEN = "single-use-enrolment-token"
Value = TypeVar("Value")


class FakeApi:
    """Start it, give it orders, wait for what the node says."""

    def __init__(self) -> None:
        self.orders: dict[Key, Order] = {}
        self.ordered_at: dict[Key, float] = {}
        self.forget: list[AttemptRef] = []
        self.ahead: list[InputFiles] = []
        self.packages: list[PackagesAhead] = []
        self.heartbeats: list[Heartbeat] = []
        self.lines: dict[Key, list[dict[str, Any]]] = {}
        self.rank_lines: dict[int, dict[Key, list[dict[str, Any]]]] = {}
        self.arrived: dict[Key, float] = {}
        self.logs: dict[tuple[Key, int, str], str] = {}
        self.log_bytes: dict[tuple[Key, int, str], int] = {}
        self.files: dict[str, bytes] = {}
        self.puts: list[str] = []
        self.secrets: dict[str, str] = {}
        self.checkpoints: dict[tuple[Key, int], list[FileRef]] = {}
        self.artifacts: dict[Key, list[FileRef]] = {}
        self.snapshots: dict[Key, list[SnapshotReport]] = {}
        self.shared_looks: list[SharedLook] = []
        self.workspace_full = ""
        self.beat_after = ""
        self.ship_after = ""
        self.marks = False
        self.unchanged = 0
        """Heartbeats that were answered with 204."""
        self.enrolments: list[Enrolment] = []
        self.down = False
        self.lose_answers = False
        self.answers_after_s = 0.0
        self.stale: set[Key] = set()
        self.damage: set[str] = set()
        self.changed = threading.Condition()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,))
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def wait_for(self, ask: Callable[[], Value | None], *, within_s: float = 60.0) -> Value:
        """The first answer of `ask` that is neither None nor False."""
        deadline = time.monotonic() + within_s
        with self.changed:
            while True:
                answer = ask()
                if answer is not None and answer is not False:
                    return answer
                left = deadline - time.monotonic()
                assert left > 0, f"waited {within_s} s in vain; last: {self.last()}"
                self.changed.wait(min(left, 0.1))

    def mark(self) -> str:
        """The mark of the orders; empty if marks are not given, or an attempt has exited."""
        last = self.last()
        if not self.marks or last is None or any(one.exit for one in last.attempts):
            return ""
        return hashlib.sha256(repr([self.orders, self.forget, self.ahead]).encode()).hexdigest()

    def last(self) -> Heartbeat | None:
        return self.heartbeats[-1] if self.heartbeats else None

    def observed(self, key: Key) -> ObservedAttempt | None:
        """What the node last said of an attempt."""
        last = self.last()
        if last is None:
            return None
        return next((o for o in last.attempts if (o.job_id, o.epoch) == key), None)

    def exit_of(self, key: Key) -> ExitRecord | None:
        found = self.observed(key)
        return None if found is None else found.exit

    def wait_for_exit(self, key: Key, *, within_s: float = 60.0) -> ExitRecord:
        return self.wait_for(lambda: self.exit_of(key), within_s=within_s)

    def steps(self, key: Key) -> list[int]:
        """The steps of all lines with a loss, in the order in which they are stored."""
        return [line["step"] for line in self.lines.get(key, []) if "loss" in line]

    def wait_for_step(self, key: Key, step: int, *, within_s: float = 60.0) -> None:
        self.wait_for(lambda: max(self.steps(key), default=0) >= step, within_s=within_s)

    def order(self, order: Order) -> Key:
        key = Key(order.job_id, order.epoch)
        self.orders[key] = order
        self.ordered_at[key] = time.monotonic()
        return key

    def orders_now(self) -> list[Order]:
        """With the seconds that remain."""
        orders = []
        for key, order in self.orders.items():
            past_s = time.monotonic() - self.ordered_at[key]
            deadlines = order.deadlines.model_copy(
                update={
                    name: getattr(order.deadlines, name) - past_s
                    for name in ("checkpoint_in_s", "stop_in_s", "kill_in_s")
                }
            )
            orders.append(order.model_copy(update={"deadlines": deadlines}))
        return orders

    def conclude(self, key: Key) -> None:
        """As the real one after an exit whose files are safe."""
        self.orders.pop(key, None)
        self.forget.append(AttemptRef(job_id=key.job_id, epoch=key.epoch))

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        """Status and body."""
        with self.changed:
            answer = self._answer(method, path, body)
            self.changed.notify_all()
            return answer

    def _answer(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        if path == "/v1/node/enrol":
            enrolment = Enrolment.model_validate_json(body)
            if enrolment.token != ENROL_TOKEN or self.enrolments:
                return 401, b'{"code": "unauthenticated", "detail": "unknown token"}'
            self.enrolments.append(enrolment)
            enrolled = NewIdentity(node_id="node_1", name="n1", node_token=TOKEN)
            return 200, enrolled.model_dump_json().encode()
        if path == "/v1/node/heartbeat":
            self.heartbeats.append(Heartbeat.model_validate_json(body))
            orders = Orders(
                attempts=self.orders_now(),
                forget=self.forget,
                fetch_ahead=self.ahead,
                build_ahead=self.packages,
            )
            return 200, orders.model_dump_json().encode()
        if path.startswith("/v1/node/secrets/"):
            return 200, Secrets(values=self.secrets).model_dump_json().encode()
        if path == "/v1/node/metrics":
            return self._metrics(MetricsBatch.model_validate_json(body))
        if path == "/v1/node/logs":
            return self._logs(LogBatch.model_validate_json(body))
        if path == "/v1/node/checkpoints":
            report = CheckpointReport.model_validate_json(body)
            assert all(file.sha256 in self.files for file in report.files)
            self.checkpoints[Key(report.job_id, report.epoch), report.step] = report.files
            return 200, b"{}"
        if path == "/v1/node/artifacts":
            artifact = ArtifactReport.model_validate_json(body)
            assert artifact.file.sha256 in self.files
            self.artifacts.setdefault(Key(artifact.job_id, artifact.epoch), []).append(
                artifact.file
            )
            return 200, b"{}"
        if path == "/v1/node/workspaces/missing":
            query = MissingQuery.model_validate_json(body)
            missing = [sha256 for sha256 in query.files if sha256 not in self.files]
            return 200, MissingFiles(files=missing).model_dump_json().encode()
        if path == "/v1/node/workspaces/shared":
            look = SharedLook.model_validate_json(body)
            self.shared_looks.append(look)
            return 200, SharedLookAck().model_dump_json().encode()
        if path == "/v1/node/workspaces/snapshots":
            return self._snapshot(SnapshotReport.model_validate_json(body))
        return self._file(method, path.rpartition("/")[2], body)

    def _snapshot(self, report: SnapshotReport) -> tuple[int, bytes]:
        key = Key(report.job_id, report.epoch)
        if key in self.stale:
            return 409, b'{"code": "stale_epoch", "detail": "another program writes to it"}'
        if report.tree is not None:
            tree = read_tree(self.files[report.tree.sha256])
            assert all(blob.sha256 in self.files for blob in tree.blobs)
        self.snapshots.setdefault(key, []).append(report)
        kept = report.tree is not None
        return 200, SnapshotAck(kept=kept, message=self.workspace_full).model_dump_json().encode()

    def _metrics(self, batch: MetricsBatch) -> tuple[int, bytes]:
        key = Key(batch.job_id, batch.epoch)
        if key in self.stale:
            return 409, b'{"code": "stale_epoch", "detail": "stale"}'
        kept = self.lines if batch.rank == 0 else self.rank_lines.setdefault(batch.rank, {})
        stored = kept.setdefault(key, [])
        if batch.first_line <= len(stored):
            stored += batch.lines[len(stored) - batch.first_line :]
            self.arrived.setdefault(key, time.time())
        return 200, MetricsAck(next_line=len(stored)).model_dump_json().encode()

    def _logs(self, batch: LogBatch) -> tuple[int, bytes]:
        name = (Key(batch.job_id, batch.epoch), batch.rank, batch.stream)
        if name[0] in self.stale:
            return 409, b'{"code": "stale_epoch", "detail": "stale"}'
        at = self.log_bytes.get(name, 0)
        if batch.first_byte == at:
            self.logs[name] = self.logs.get(name, "") + batch.content
            self.log_bytes[name] = at = at + batch.size
        return 200, LogAck(next_byte=at).model_dump_json().encode()

    def _file(self, method: str, sha256: str, body: bytes) -> tuple[int, bytes]:
        if method == "PUT":
            assert hashlib.sha256(body).hexdigest() == sha256
            self.puts.append(sha256)
            self.files[sha256] = body
            return 201, b""
        if sha256 not in self.files:
            return 404, b'{"code": "not_found", "detail": "no such file"}'
        content = self.files[sha256]
        return 200, content[::-1] if sha256 in self.damage else content

    def add_file(self, path: str, content: bytes) -> FileRef:
        sha256 = hashlib.sha256(content).hexdigest()
        self.files[sha256] = content
        return FileRef(path=path, sha256=sha256, size=len(content))

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        api = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                if api.down:
                    self.close_connection = True
                    return
                body = self._body()
                token = self.headers.get("Authorization", "")
                if self.path != "/v1/node/enrol" and token != f"Bearer {TOKEN}":
                    status, content = 401, b'{"code": "unauthenticated", "detail": "who?"}'
                else:
                    status, content = api.answer(self.command, self.path, body)
                mark = api.mark() if self.path == "/v1/node/heartbeat" else ""
                if mark and self.headers.get(ORDERS_MARK) == mark:
                    status, content = 204, b""
                    api.unchanged += 1
                time.sleep(api.answers_after_s)
                if api.down or (api.lose_answers and self.path != "/v1/node/heartbeat"):
                    self.close_connection = True
                    return
                self.send_response(status)
                if status != 204:
                    self.send_header("Content-Length", str(len(content)))
                if mark:
                    self.send_header(ORDERS_MARK, mark)
                if api.beat_after and self.path == "/v1/node/heartbeat":
                    self.send_header(BEAT_AFTER, api.beat_after)
                if api.ship_after and self.path in ("/v1/node/metrics", "/v1/node/logs"):
                    self.send_header(SHIP_AFTER, api.ship_after)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(content)

            def _body(self) -> bytes:
                return self.rfile.read(int(self.headers.get("Content-Length", "0")))

            do_GET = do_POST = do_PUT = do_HEAD = handle_any

            def log_message(self, format: str, *args: object) -> None:
                """Quiet."""

        return Handler
