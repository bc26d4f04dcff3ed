"""What this machine has: GPUs through NVML, else CPU cores as slots."""

import platform
import socket
from importlib.metadata import PackageNotFoundError, version

import psutil
import pynvml

from core.messages import Gpu, Inventory
from worker.boot import cores

GIB = 1 << 30


def take_inventory(slots: int | None) -> Inventory:
    """The machine as it is now; `slots` overrides the number of CPU slots."""
    gpus = list_gpus()
    return Inventory(
        hostname=socket.gethostname(),
        cores=cores(),
        memory_gib=round(psutil.virtual_memory().total / GIB, 2),
        gpus=gpus,
        slots=len(gpus) or slots or cores(),
        python=platform.python_version(),
        torch=torch_version(),
    )


def list_gpus() -> list[Gpu]:
    """The GPUs that NVML sees; none without its driver."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        return [_gpu(index) for index in range(pynvml.nvmlDeviceGetCount())]
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
    """Of the installed torch, without importing it; empty where there is none."""
    try:
        return version("torch")
    except PackageNotFoundError:
        return ""
