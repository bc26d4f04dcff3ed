"""Speeds of this machine's first GPU, measured: `python -m strategies.train.trust.gpu_speeds`.

Prints one JSON object with the fields of `strategies.plan.hardware.GpuSpeeds`. A build of torch for
CPUs measures the CPU. The link is measured if there are two GPUs.
"""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict

import torch

from strategies.plan.hardware import GpuSpeeds

SIZES = {"cuda": 8192, "cpu": 256}  # rows and columns: on a GPU enough to fill every multiprocessor
COPIED = {"cuda": 1 << 28, "cpu": 1 << 22}  # bytes, beyond any cache
MEASURED_S = {"cuda": 0.5, "cpu": 0.02}  # per measurement
TENSOR_CORES, WITH_TF32 = (
    (7, 0),
    (8, 0),
)  # capabilities that have them: float16, and TF32 and bfloat16


def measure(device: torch.device) -> GpuSpeeds:
    """Return the dense peaks in TFLOP/s, the bandwidth of a copy and of the link in GB/s."""
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else WITH_TF32
    on_gpu = device.type == "cuda"
    halves = capability >= WITH_TF32
    return GpuSpeeds(
        float32=product_tflops(device, torch.float32),
        tf32=product_tflops(device, torch.float32, tf32=True) if on_gpu and halves else None,
        float16=product_tflops(device, torch.float16)
        if on_gpu and capability >= TENSOR_CORES
        else None,
        bfloat16=product_tflops(device, torch.bfloat16) if halves else None,
        float8=None,
        link_gb_per_s=link_gb_per_s() if on_gpu and torch.cuda.device_count() > 1 else None,
        source=f"measured on this node with torch {torch.__version__}",
        memory_gb_per_s=memory_gb_per_s(device),
    )


def product_tflops(device: torch.device, dtype: torch.dtype, *, tf32: bool = False) -> float:
    """Return the speed of a square matrix product, summed in float32."""
    size = SIZES[device.type]
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    out = torch.empty_like(left)
    seconds = duration_s(device, lambda: torch.mm(left, right, out=out))
    return 2 * size**3 / seconds / 1e12


def memory_gb_per_s(device: torch.device) -> float:
    """Return the bandwidth of a copy in the device's memory, reads and writes together."""
    source = torch.empty(COPIED[device.type], dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    seconds = duration_s(device, lambda: target.copy_(source))
    return 2 * source.numel() / seconds / 1e9


def link_gb_per_s() -> float:
    """Return the bandwidth of a copy from the first GPU to the second."""
    first, second = torch.device("cuda", 0), torch.device("cuda", 1)
    source = torch.empty(COPIED["cuda"], dtype=torch.uint8, device=first)
    target = torch.empty_like(source, device=second)

    def copy() -> None:
        target.copy_(source)
        torch.cuda.synchronize(second)

    return source.numel() / duration_s(first, copy) / 1e9


def duration_s(device: torch.device, work: Callable[[], object]) -> float:
    """Return the mean duration of `work` after a first call, which loads its kernel."""
    work()
    wait(device)
    count, began = 0, time.perf_counter()
    while count < 3 or time.perf_counter() - began < MEASURED_S[device.type]:
        work()
        count += 1
        if count % 3 == 0:
            wait(device)  # so that the clock and the device do not drift apart
    wait(device)
    return (time.perf_counter() - began) / count


def wait(device: torch.device) -> None:
    """Wait until the device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    found = measure(torch.device("cpu" if torch.version.cuda is None else "cuda"))
    sys.stdout.write(json.dumps(asdict(found)))
