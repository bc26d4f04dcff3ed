"""`python -m benchmarks.uploads --gigabytes 20 --breaks 5`: a large upload, broken again and again.

A platform is started, and a text is sent to it through a proxy that breaks the connection at random
places. The sender is killed at half of it and started anew. The text must arrive whole.
"""

import argparse
import hashlib
import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from tests.flaky import flaky
from tests.running import Running, running_platform
from trainyard import Trainyard

LINE, LINES_AT_ONCE = 64, 1 << 14
MIB = 1 << 20


def main() -> None:
    """Measure and print."""
    arguments = argparse.ArgumentParser(description=main.__doc__)
    arguments.add_argument("--gigabytes", type=float, default=20.0)
    arguments.add_argument("--breaks", type=int, default=5)
    asked = arguments.parse_args()
    with tempfile.TemporaryDirectory() as name, running_platform(forked=False) as running:
        file = Path(name) / "large.txt"
        sha256 = write(file, int(asked.gigabytes * 1e9))
        sys.stdout.write(measured(running, file, sha256, asked.breaks) + "\n")


def measured(running: Running, file: Path, sha256: str, breaks: int) -> str:
    """Send the file; return a sentence with what was found. Fails if it does not arrive whole."""
    size, sent, places = file.stat().st_size, list[int](), break_places(file, breaks)
    api, peaks = Peak(running.process("api")), Peak(psutil.Process())
    with flaky(running.port, lambda: next(places, None)) as proxy, api, peaks:
        began = time.perf_counter()
        try:
            with Trainyard(proxy.url, running.token) as client:
                client.datasets.upload(file, "large", progress=lambda at, _: die(at, size, sent))
        except KeyboardInterrupt:
            with Trainyard(proxy.url, running.token) as client:
                resumed = list[int]()
                client.datasets.upload(file, "large", progress=lambda at, _: resumed.append(at))
        seconds = time.perf_counter() - began
    stored = running.data.path / "store" / sha256[:2] / sha256
    assert stored.stat().st_size == size, "the store does not have the file"
    with stored.open("rb") as kept:
        assert hashlib.file_digest(kept, "sha256").hexdigest() == sha256, "the bytes differ"
    return (
        f"{size / 1e9:.1f} GB, broken {proxy.breaks} times and the sender killed once, are whole "
        f"after {seconds:.0f} s ({size / seconds / 1e6:.0f} MB/s); sent twice: "
        f"{(sent[-1] - resumed[0]) / 1e6:.0f} MB after the kill; memory added at the most: API "
        f"{api.added_mib:.0f} MiB, sender {peaks.added_mib:.0f} MiB"
    )


def die(at: int, size: int, sent: list[int]) -> None:
    """Note what was sent; end the sender at half of the file."""
    sent.append(at)
    if at > size // 2:
        raise KeyboardInterrupt


def break_places(file: Path, breaks: int) -> Iterator[int]:
    """Yield how many bytes each of the first connections carries: random parts of the file."""
    chosen = random.Random(1)
    for _ in range(breaks):
        yield chosen.randint(1, file.stat().st_size // (breaks + 2))


class Peak:
    """Most memory of a process while it is watched, beyond what it had at first."""

    def __init__(self, process: psutil.Process) -> None:
        self.process, self.first, self.most = process, 0, 0
        self.over = threading.Event()

    def __enter__(self) -> None:
        self.first = self.process.memory_info().rss
        threading.Thread(target=self._watch, daemon=True).start()

    def __exit__(self, *_: object) -> None:
        self.over.set()

    def _watch(self) -> None:
        while not self.over.wait(0.1):
            self.most = max(self.most, self.process.memory_info().rss)

    @property
    def added_mib(self) -> float:
        """MiB above the first reading."""
        return (self.most - self.first) / MIB


def write(file: Path, size: int) -> str:
    """Write lines of random digits, at least one; return the SHA-256."""
    chosen, found = random.Random(0), hashlib.sha256()
    with file.open("wb") as out:
        while out.tell() < size:
            digits = chosen.randbytes(LINE * LINES_AT_ONCE // 2).hex().encode()
            piece = (
                b"\n".join(digits[at : at + LINE - 1] for at in range(0, len(digits), LINE))[
                    : max(1, size - out.tell() - 1)
                ]
                + b"\n"
            )
            out.write(piece)
            found.update(piece)
    return found.hexdigest()


if __name__ == "__main__":
    main()
