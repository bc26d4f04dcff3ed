"""Spool: the lines and bytes that ranks have written, shipped in numbered batches.

The run directory itself is the spool. A batch says where it begins; the API stores each line and
byte once and answers with the position up to which it has everything, and the next batch begins
there: data sent twice is stored once, lost data is sent again. shipped.json only saves time after a
restart.
"""

import codecs
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog
from pydantic import BaseModel, ConfigDict

from core.wire.messages import LogBatch, MetricsBatch
from strategies.plan.run_directory import METRICS, RANK_METRICS_NAME
from worker.node.api_client import ApiClient, RequestRefused, Unreachable
from worker.node.attempts import LOG_BYTES, Attempt, Key, NodeFolder, read_model
from worker.ranks.log_cap import gap_of, note_of
from worker.scripts.masking import Masks
from worker.scripts.script_run import masks_of

FIRST_LINE_EVERY_S = 0.05  # a person may be waiting for the first step
STARTING_S = 30.0
SHIP_EVERY_S = 1.0  # while somebody watches: each time costs the ranks 8 ms of a core
HURRIES_S = 3.0  # after a nudge: one API process hears from another that somebody watches
ANSWERS = 10.0  # pauses last as long as so many answers: a full API is asked less often
LOOK_EVERY_S = 0.5  # after a look that found nothing
IDLE_EVERY_S = 2.0
SAVE_EVERY_S = 5.0
MAX_LINES = 2000
MAX_METRICS_BYTES = 1 << 19
MAX_LOG_BYTES = 1 << 17  # a byte may become six in JSON, and the API's limit is a million
LONGEST_PAUSE_S = 15.0
ROUNDS = 20  # of one attempt in a row, so that the others get their turn
RANK_FOLDER = "rank-"
LAUNCHER = -1  # on the first node; -2 on the second
STREAMS = ("stdout", "stderr")
UNMASKED = Masks()

log = structlog.get_logger()


class SpoolPosition(BaseModel):
    """Position up to which the API has the lines of one file of metrics."""

    line: int = 0
    at: int = 0
    """Byte at which that line begins."""


class ShippedPositions(BaseModel):
    """Content of shipped.json: the positions up to which the API has everything."""

    model_config = ConfigDict(extra="ignore")

    metrics: dict[int, SpoolPosition] = {}
    """Position by rank."""
    logs: dict[str, int] = {}
    """Bytes by `<rank>.<stream>`."""
    complete: bool = False
    """True if everything of an attempt that has exited is shipped."""


@dataclass
class Backlog:
    """Data of one attempt that is left to ship."""

    attempt: Attempt
    shipped: ShippedPositions
    saved_at: float = field(default_factory=time.monotonic)
    refused_until: float = 0.0
    refusals: int = 0
    known_masks: Masks | None = None
    known_log_cap: int | None = None
    rests_until: float = 0.0
    hurries_until: float = 0.0

    @property
    def key(self) -> Key:
        return self.attempt.key

    def masks(self) -> Masks:
        """Return the secrets to mask in a script's output; read once, before there is any."""
        if self.known_masks is None:
            if not self.attempt.start_file.exists():
                return UNMASKED
            self.known_masks = masks_of(self.attempt)
        return self.known_masks

    def log_cap(self) -> int:
        """Return the bytes of one log that are kept; read once, the shim uses the same limit."""
        if self.known_log_cap is None:
            start = self.attempt.start()
            if start is None:
                return LOG_BYTES
            self.known_log_cap = start.log_bytes
        return self.known_log_cap

    def ship(self, client: ApiClient) -> int:
        """Send what is there; return the number of messages that were sent."""
        exited = self.attempt.exit.exists()  # before the files are read: they are final then
        try:
            sent = self._ship_metrics(client)
            sent += self._ship_logs(client, exited=exited)
        except RequestRefused as refusal:
            self._note_refusal(refusal, exited=exited)
            return 0
        self.refusals = 0
        if exited and not sent:
            self.shipped.complete = True
        if self.shipped.complete or time.monotonic() - self.saved_at > SAVE_EVERY_S:
            self.save()
        return sent

    @property
    def is_eager(self) -> bool:
        """True while a person may be waiting for the first step."""
        return not self.shipped.metrics and is_starting(self.attempt)

    def is_resting(self) -> bool:
        """Return True while the API wants no news of an attempt that goes on."""
        now = time.monotonic()
        if now >= self.rests_until or now < self.hurries_until:
            return False
        return not self.is_eager and not self.attempt.exit.exists()

    def hurry(self) -> None:
        """End the pause, because somebody may watch from now on."""
        self.rests_until, self.hurries_until = 0.0, time.monotonic() + HURRIES_S

    def save(self) -> None:
        """Write shipped.json; not synced to disk, because losing it costs only time."""
        aside = self.attempt.shipped_file.with_name(".shipped.json.new")
        aside.write_text(self.shipped.model_dump_json())
        aside.replace(self.attempt.shipped_file)
        self.saved_at = time.monotonic()

    def _note_refusal(self, refusal: RequestRefused, *, exited: bool) -> None:
        if refusal.is_final:
            # Nobody wants the rest of an attempt that is not the job's current one.
            log.info("spool_not_wanted", attempt=self.attempt.path.name, detail=refusal.detail)
            if exited:
                self.shipped.complete = True
                self.save()
        else:
            log.error(
                "spool_refused",
                attempt=self.attempt.path.name,
                status=refusal.status,
                detail=refusal.detail,
            )
        self.refusals += 1
        self.refused_until = time.monotonic() + min(2.0**self.refusals, LONGEST_PAUSE_S)

    def _ship_metrics(self, client: ApiClient) -> int:
        sent = 0
        for rank, path in metrics_files(self.attempt):
            place = self.shipped.metrics.setdefault(rank, SpoolPosition())
            sent += self._ship_lines(client, rank, path, place)
        return sent

    def _ship_lines(self, client: ApiClient, rank: int, path: Path, place: SpoolPosition) -> int:
        sent = 0
        for batch in read_lines(path, place.at):
            if batch.lines:
                answer = client.send_metrics(
                    MetricsBatch(
                        job_id=self.key.job_id,
                        epoch=self.key.epoch,
                        rank=rank,
                        first_line=place.line,
                        lines=batch.lines,
                    )
                )
                self.rests_until = time.monotonic() + answer.pause_s
                sent += 1
                if answer.position != place.line + len(batch.lines):
                    self._seek(rank, path, answer.position)
                    return sent
            place.line += len(batch.lines)
            place.at = batch.end
        return sent

    def _seek(self, rank: int, path: Path, line: int) -> None:
        """Continue at `line`, because the API has more, or less, than shipped.json says."""
        log.info("spool_repositioned", attempt=self.attempt.path.name, rank=rank, line=line)
        place = self.shipped.metrics[rank] = SpoolPosition()
        for batch in read_lines(path, 0, max_lines=1):
            if place.line + len(batch.lines) > line:
                return
            place.line += len(batch.lines)
            place.at = batch.end

    def _ship_logs(self, client: ApiClient, *, exited: bool) -> int:
        sent = 0
        for rank, folder in log_folders(self.attempt):
            for stream in STREAMS:
                name = f"{rank}.{stream}"
                at = self.shipped.logs.get(name, 0)
                piece = self._next_piece(folder / f"{stream}.log", at, exited=exited)
                if piece is None:
                    continue
                size, content = piece
                answer = client.send_logs(
                    LogBatch(
                        job_id=self.key.job_id,
                        epoch=self.key.epoch,
                        rank=rank,
                        stream=stream,
                        first_byte=at,
                        size=size,
                        content=content,
                    )
                )
                self.rests_until = time.monotonic() + answer.pause_s
                self.shipped.logs[name] = answer.position
                sent += 1
        return sent

    def _next_piece(self, path: Path, at: int, *, exited: bool) -> tuple[int, str] | None:
        """Return (bytes, text) of a log from byte `at` on; for its gap, a note."""
        cap = self.log_cap()
        gap = gap_of(path, cap, is_final=exited)
        if gap is None:
            piece = read_piece(path, at, last=exited, masks=self.masks())
            # If the log has become too long meanwhile, the bytes read may already have been freed.
            return piece if gap_of(path, cap, is_final=exited) is None else None
        if at < gap.start:
            return read_piece(path, at, until=gap.start, last=exited, masks=self.masks())
        if gap.end is None:
            return None
        if at < gap.end:
            return gap.end - at, note_of(gap.end - at, cap)
        return read_piece(path, at, last=exited, masks=self.masks())


@dataclass(frozen=True)
class Lines:
    """Consecutive valid lines, and the byte after the last one that was read."""

    lines: list[dict[str, Any]]
    end: int


def is_starting(attempt: Attempt) -> bool:
    """Return True if its ranks were requested less than STARTING_S ago."""
    try:
        return time.time() - attempt.start_file.stat().st_mtime < STARTING_S
    except FileNotFoundError:
        return False


def read_lines(path: Path, start: int, *, max_lines: int = MAX_LINES) -> Iterator[Lines]:
    """Yield the whole lines of a metrics file from byte `start` on, in bounded batches.

    A line without its end waits. One that is not a JSON object of plain values is skipped and has
    no number, now and whenever the file is read again.
    """
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        file.seek(start)
        lines: list[dict[str, Any]] = []
        end, size = start, 0
        for line in file:
            if not line.endswith(b"\n"):
                break
            end += len(line)
            parsed = parse_line(line)
            if parsed is None:
                continue
            lines.append(parsed)
            size += len(line)
            if len(lines) >= max_lines or size >= MAX_METRICS_BYTES:
                yield Lines(lines, end)
                lines, size = [], 0
        if end > start:
            yield Lines(lines, end)


def parse_line(line: bytes) -> dict[str, Any] | None:
    """Return the values of a line of metrics.jsonl by name; None if it is invalid."""
    try:
        values = json.loads(line)
    except ValueError:
        return None
    if not isinstance(values, dict) or not isinstance(values.get("step"), int):
        return None
    if any(not isinstance(value, float | int | str | None) for value in values.values()):
        return None
    return values


def read_piece(
    path: Path, start: int, *, last: bool, until: int | None = None, masks: Masks = UNMASKED
) -> tuple[int, str] | None:
    """Return (bytes, text) of the next piece of a log from byte `start` on; None if there is none.

    An incomplete character at the end waits, unless this is the `last` piece, and so does a
    possible beginning of a secret. Bytes from `until` on are not read.
    """
    longest = MAX_LOG_BYTES if until is None else min(MAX_LOG_BYTES, until - start)
    try:
        with path.open("rb") as file:
            file.seek(start)
            found = file.read(longest)
    except FileNotFoundError:
        return None
    last = start + len(found) == until or (last and len(found) < MAX_LOG_BYTES)
    if not last:
        found = found[: len(found) - masks.begun_at_end(found)]
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    text = decoder.decode(found)
    waiting = len(decoder.getstate()[0])
    if waiting and last:
        text += decoder.decode(b"", final=True)
        waiting = 0
    size = len(found) - waiting
    if size == 0:
        return None
    # PostgreSQL's text cannot hold NUL.
    return size, masks.apply(text).replace("\0", "\N{REPLACEMENT CHARACTER}")


def metrics_files(attempt: Attempt) -> list[tuple[int, Path]]:
    """Return (rank, file) of the metrics of each rank of this node that has written any."""
    try:
        names = os.listdir(attempt.path)
    except FileNotFoundError:
        return []
    others = [(int(found[1]), name) for name in names if (found := RANK_METRICS_NAME.match(name))]
    first = [(0, METRICS)] if METRICS in names else []
    return [(rank, attempt.path / name) for rank, name in [*first, *sorted(others)]]


def log_folders(attempt: Attempt) -> list[tuple[int, Path]]:
    """Return (rank, folder) of each rank's logs, and of the launcher's as a rank below 0."""
    start = attempt.start()
    position = 0 if start is None else start.position
    found = [(LAUNCHER - position, attempt.launcher_logs)]
    try:
        names = os.listdir(attempt.path / "logs")
    except FileNotFoundError:
        return []
    for name in names:
        number = name.removeprefix(RANK_FOLDER)
        if name.startswith(RANK_FOLDER) and number.isdigit():
            found.append((int(number), attempt.rank_logs(int(number))))
    return sorted(found)


@dataclass
class Spool:
    """Shipper of every attempt of this node until everything is sent.

    Runs in a thread of its own.
    """

    folder: NodeFolder
    client: ApiClient
    nudge: threading.Event
    stop: threading.Event
    shipped: Callable[[], None]
    """Function called when everything of an attempt is shipped."""
    backlogs: dict[Key, Backlog] = field(default_factory=dict)

    def run(self) -> None:
        """Ship until `stop` is set; then once more, so that little is left for the next worker."""
        failures = 0
        while True:
            stopping = self.stop.is_set()
            try:
                pause_s = self.ship_all()
                failures = 0
            except Unreachable as error:
                failures += 1
                pause_s = min(LOOK_EVERY_S * 2.0**failures, LONGEST_PAUSE_S)
                if failures == 1:
                    log.info("spool_waits", error=str(error)[:300])
            if stopping:
                break
            if self.nudge.wait(pause_s):
                self.nudge.clear()
                for backlog in self.backlogs.values():
                    backlog.hurry()
        for backlog in self.backlogs.values():
            try:
                backlog.save()
            except OSError as error:
                log.warning("disk_error", error=str(error))
        self.client.close()

    def ship_all(self) -> float:
        """Ship every attempt once; return the seconds until the next time."""
        attempts = {attempt.key: attempt for attempt in self.folder.all_attempts()}
        for key in self.backlogs.keys() - attempts.keys():
            del self.backlogs[key]
        pause_s, begun, sent = IDLE_EVERY_S, time.monotonic(), 0
        for key, attempt in attempts.items():
            backlog = self.backlogs.get(key)
            if backlog is None:
                known = read_model(attempt.shipped_file, ShippedPositions)
                backlog = self.backlogs[key] = Backlog(attempt, known or ShippedPositions())
            if backlog.shipped.complete:
                continue
            if time.monotonic() < backlog.refused_until:
                pause_s = min(pause_s, LOOK_EVERY_S)
                continue
            if backlog.is_resting() and not self.stop.is_set():
                continue
            again_s = LOOK_EVERY_S
            try:
                for _ in range(ROUNDS):
                    num_messages = backlog.ship(self.client)
                    if not num_messages:
                        break
                    sent += num_messages
                    again_s = SHIP_EVERY_S
                if backlog.shipped.complete:
                    self.shipped()
                    continue
            except OSError as error:  # from the disk: this attempt waits, the others go on
                log.warning("disk_error", attempt=attempt.path.name, error=str(error))
            pause_s = min(pause_s, FIRST_LINE_EVERY_S if backlog.is_eager else again_s)
        answer_s = (time.monotonic() - begun) / sent if sent else 0.0
        return max(pause_s, min(ANSWERS * answer_s, LONGEST_PAUSE_S))
