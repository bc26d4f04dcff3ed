"""`python -m benchmarks.inputs [PAIRS]`: what eight mounted inputs add to the start of a sandbox.

Their bytes are on the node already; starts with and without them take turns. Goal: at most 50 ms.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from worker.scripts.sandbox import Box, find_level
from worker.scripts.sandbox_users import user_for_a_while

INPUTS, PAIRS = 8, 40
Shown = list[tuple[Path, str, bool]]


def main(pairs: int = PAIRS) -> None:
    """Measure and print a line."""
    with tempfile.TemporaryDirectory() as name, user_for_a_while() as uid:
        folder = Path(name)
        folder.chmod(0o755)
        shown = [_input(folder / f"files-{number}") for number in range(INPUTS)]
        start_s(folder, shown, uid)  # the first start finds nothing warm
        with_and_without = [
            (start_s(folder, shown, uid), start_s(folder, [], uid)) for _ in range(pairs)
        ]
    cost_ms = 1000 * statistics.median(mounted - bare for mounted, bare in with_and_without)
    start_ms = 1000 * statistics.median(bare for _, bare in with_and_without)
    sys.stdout.write(
        f"{INPUTS} inputs add {cost_ms:.1f} ms to a sandbox's start of {start_ms:.0f} ms (goal 50; "
        f"median of {pairs} pairs, load {os.getloadavg()[0]:.1f})\n"
    )


def start_s(folder: Path, shown: Shown, uid: int | None) -> float:
    """Return the seconds from the start of a sandbox to the end of a program that does nothing."""
    level = find_level()
    if level.level is None:
        sys.exit(level.reason)
    box = Box(
        folder=folder / "box",
        command=["/bin/true"],
        environment={"PATH": "/usr/bin:/bin"},
        working_folder="/",
        binds=shown,
        uid=uid,
    )
    command, told = box.launch(level.level)
    began = time.perf_counter()
    subprocess.run(command, input=told, check=True, env={}, cwd="/")
    return time.perf_counter() - began


def _input(entry: Path) -> tuple[Path, str, bool]:
    entry.mkdir()
    (entry / "weights").write_bytes(bytes(1 << 20))
    return entry, f"/job/inputs/lab/{entry.name}", False


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
