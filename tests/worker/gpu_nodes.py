"""A node with GPUs for the tests: the real worker on a scripted NVML."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.worker.fake_api import FakeApi
from tests.worker.nodes import HERE, Node

A100, GIB = "NVIDIA A100-SXM4-40GB", 39.6
DOUBLE = HERE / "scripted_nvml"


def uuid_of(number: int) -> str:
    return f"GPU-{number:08d}-1111-2222-3333-444444444444"


def a100(number: int, **faults: Any) -> dict[str, Any]:
    """GPU `number` of a node, on the bus in the order of the numbers."""
    return {
        "uuid": uuid_of(number),
        "name": A100,
        "gib": GIB,
        "pci": f"00000000:{0x10 + number:02X}:00.0",
        "minor": number,
        **faults,
    }


def write_script(path: Path, *gpus: dict[str, Any], error: str = "") -> None:
    """Let the scripted NVML show these GPUs from now on."""
    aside = path.with_suffix(".new")
    aside.write_text(json.dumps({"error": error, "gpus": gpus}))
    aside.replace(path)


@contextmanager
def foreign_process() -> Iterator[subprocess.Popen[bytes]]:
    """A process that is none of the worker's."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait()


class GpuNode(Node):
    """The worker on as many GPUs as `script` says, whatever the machine has."""

    folders = (DOUBLE, HERE)

    def __init__(self, path: Path, api: FakeApi, **options: Any) -> None:
        super().__init__(path, api, **options)
        self.file = path.parent / f"{path.name}-nvml.json"
        self.script(*(a100(number) for number in range(4)))

    def script(self, *gpus: dict[str, Any], error: str = "") -> None:
        """What NVML shows from now on."""
        write_script(self.file, *gpus, error=error)

    def start(self, *, torch: dict[str, Any] | None = None, **options: Any) -> None:
        super().start(
            TRAINYARD_TEST_NVML=str(self.file),
            TRAINYARD_TEST_TORCH=json.dumps(torch or {}),
            **options,
        )

    def health(self) -> list[str]:
        """The health of each slot's GPU, as the last heartbeat told it."""
        last = self.api.last()
        return [] if last is None else [str(gpu.health) for gpu in last.inventory.gpus]

    def wait_for_health(self, *health: str) -> list[str]:
        """The reasons, once the GPUs have this health."""
        self.api.wait_for(lambda: self.health() == list(health))
        return self.reasons()

    def reasons(self) -> list[str]:
        """The reason of each slot's health."""
        last = self.api.last()
        return [] if last is None else [gpu.reason for gpu in last.inventory.gpus]
