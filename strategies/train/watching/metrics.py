"""Metrics as JSON lines: one object per line, each with a step and a time.

Names and units: docs/training.md.
"""

import json
import time
from pathlib import Path
from types import TracebackType
from typing import Self

Value = float | int | str | None


class MetricsLog:
    """Metrics file to which lines are appended and flushed; writes nothing if there is no path."""

    def __init__(self, path: Path | None) -> None:
        self.file = None if path is None else path.open("a", encoding="utf-8")

    def write(self, step: int, **values: Value) -> None:
        """Append a line. A value of None (not measurable) is left out."""
        if self.file is None:
            return
        line = {"step": step, "time": time.time()}
        line.update({key: value for key, value in values.items() if value is not None})  # type: ignore[misc]
        self.file.write(json.dumps(line) + "\n")
        self.file.flush()

    def close(self) -> None:
        """Close the file; nothing is written afterwards."""
        if self.file is not None:
            self.file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
