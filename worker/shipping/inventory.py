"""Inventory of this machine: GPUs through NVML, else CPU cores as slots."""

import platform
import socket
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version

import pynvml

from core.wire.messages import Gpu, Inventory
from strategies.plan.compilers import why_no_compiler
from worker.boot import cores
from worker.ranks.memory import machine
from worker.scripts.sandbox import SandboxSupport

GIB = 1 << 30


def take_inventory(slots: int | None, sandbox: SandboxSupport) -> Inventory:
    """Return the machine's inventory now; `slots` overrides the number of CPU slots."""
    gpus = list_gpus()
    return Inventory(
        hostname=socket.gethostname(),
        cores=cores(),
        memory_gib=round(machine().total / GIB, 2),
        gpus=gpus,
        slots=len(gpus) or slots or cores(),
        python=platform.python_version(),
        torch=torch_version(),
        sandbox="" if sandbox.level is None else str(sandbox.level),
        no_sandbox=sandbox.reason,
        no_gang_sandbox=sandbox.gang_reason,
        no_compiler=why_no_compiler("cuda" if gpus else "cpu"),
    )


def list_gpus() -> list[Gpu]:
    """Return the GPUs that NVML sees; none without its driver."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        return [_gpu(index) for index in range(pynvml.nvmlDeviceGetCount())]
    finally:
        pynvml.nvmlShutdown()


def gpu_device_numbers(indices: Iterable[int]) -> tuple[int, ...]:
    """Return N of each /dev/nvidiaN; in a container they differ from NVML's own indices."""
    pynvml.nvmlInit()
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in indices]
        return tuple(pynvml.nvmlDeviceGetMinorNumber(handle) for handle in handles)
    finally:
        pynvml.nvmlShutdown()


def _gpu(index: int) -> Gpu:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    name = pynvml.nvmlDeviceGetName(handle)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    return Gpu(
        index=index,
        name=name.decode() if isinstance(name, bytes) else str(name),
        memory_gib=round(memory.total / GIB, 2),
    )


def torch_version() -> str:
    """Return the version of the installed torch without importing it; empty if there is none."""
    try:
        return version("torch")
    except PackageNotFoundError:
        return ""
