"""Metrics of a script, from its log and from TensorBoard's files, written to metrics.jsonl.

The script owns its files and may write anything: lines that are not numbers of a step are skipped,
and the size of metrics.jsonl is limited.
"""

import json
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from strategies.plan.run_directory import METRICS
from worker.node.plain_files import open_plain, plain_files
from worker.scripts.event_files import HEADER, read_records, record_size
from worker.scripts.script_run import ScriptFolders

KEY = re.compile(r"[^A-Za-z0-9_./-]")
LONGEST_KEY = 80  # the API's limit
MAX_KEYS = 200  # per job
MAX_STEP = 1 << 53
PIECE = 1 << 18  # bytes read at a time
LONGEST_LINE = 1 << 14
MAX_BYTES = 1 << 30  # size of metrics.jsonl
FIND_EVERY_S = 2.0
MAX_EVENT_FILES = 50


@dataclass
class EventFile:
    """Read position in an event file."""

    at: int = 0
    is_broken: bool = False


@dataclass
class ScriptMetrics:
    """Collector that reads a script's files now and then, and appends new numbers."""

    folders: ScriptFolders
    at: int = 0
    event_files: dict[tuple[Path, str], EventFile] = field(default_factory=dict)
    """Event files by the script's folder, and the name below it."""
    keys: set[str] = field(default_factory=set)
    written: int = 0
    found_at: float = 0.0
    first_loss: float | None = None
    last_loss: float | None = None

    def collect(self, *, last: bool = False) -> None:
        """Append new numbers; with `last`, all that are left."""
        lines = self._logged()
        now = time.monotonic()
        if last or now - self.found_at > FIND_EVERY_S:
            self.found_at = now
            self._find_event_files()
        lines += self._recorded()
        self._append(lines)
        if last and lines:
            self.collect(last=True)

    def _logged(self) -> list[dict[str, float]]:
        content = _read(self.folders.run, METRICS, self.at)
        whole, end, rest = content.rpartition(b"\n")
        if not end:
            if len(rest) > LONGEST_LINE:
                self.at += len(rest)  # no line of ours is that long
            return []
        self.at += len(whole) + 1
        found = (self._line(raw) for raw in whole.split(b"\n"))
        return [line for line in found if line is not None]

    def _line(self, raw: bytes) -> dict[str, float] | None:
        if len(raw) > LONGEST_LINE:
            return None
        try:
            values = json.loads(raw)
        except ValueError:
            return None
        if not isinstance(values, dict):
            return None
        step = values.pop("step", None)
        if isinstance(step, bool) or not isinstance(step, int):
            return None
        return self._clean(step, values)

    def _clean(self, step: int, values: Mapping[str, object]) -> dict[str, float] | None:
        if not 0 <= step < MAX_STEP:
            return None
        line: dict[str, float] = {"step": step}
        for name, value in values.items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                continue
            key = KEY.sub("_", name).lstrip("_./-0123456789")[:LONGEST_KEY] or "value"
            if key == "step" or (key not in self.keys and len(self.keys) >= MAX_KEYS):
                continue
            try:
                line[key] = float(value)
            except OverflowError:
                continue
            self.keys.add(key)
        return line if len(line) > 1 else None

    def _find_event_files(self) -> None:
        for folder in (self.folders.output, self.folders.code, self.folders.scratch):
            for entry in plain_files(folder):
                file = (folder, entry.name)
                if "tfevents" in entry.name and file not in self.event_files:
                    if len(self.event_files) >= MAX_EVENT_FILES:
                        return
                    self.event_files[file] = EventFile()

    def _recorded(self) -> list[dict[str, float]]:
        lines: list[dict[str, float]] = []
        for (folder, name), state in self.event_files.items():
            content = b"" if state.is_broken else _read(folder, name, state.at)
            if not content:
                continue
            records = read_records(content)
            state.at += records.end
            state.is_broken = records.is_broken
            if records.end == 0 and len(content) == PIECE:
                state.at += record_size(content[:HEADER])  # an image or a graph
            by_step: dict[int, dict[str, object]] = {}
            for scalar in records.scalars:
                by_step.setdefault(scalar.step, {})[scalar.tag] = scalar.value
            cleaned = (self._clean(step, values) for step, values in by_step.items())
            lines += [line for line in cleaned if line is not None]
        return lines

    def _append(self, lines: list[dict[str, float]]) -> None:
        if not lines or self.written > MAX_BYTES:
            return
        text = "".join(json.dumps(line) + "\n" for line in lines)
        with self.folders.attempt.metrics.open("a") as file:
            file.write(text)
        self.written += len(text)
        for line in lines:
            if "loss" in line:
                self.last_loss = line["loss"]
                self.first_loss = self.last_loss if self.first_loss is None else self.first_loss


def _read(root: Path, name: str, start: int) -> bytes:
    """Return the next piece from byte `start` on; empty if there is no such plain file."""
    try:
        descriptor = open_plain(root, name)
    except OSError:
        return b""
    with os.fdopen(descriptor, "rb") as file:
        file.seek(start)
        return file.read(PIECE)
