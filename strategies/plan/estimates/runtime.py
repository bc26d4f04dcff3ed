"""Memory of a rank before its model: Python and torch, and on a GPU the context of CUDA, the
workspaces of cuBLAS and the buffers of NCCL. Pure, torch-free.
"""

from strategies.plan.gpus import speeds_of
from strategies.plan.hardware import Hardware
from strategies.plan.rules.problem import ResolvedSpec

MIB_PER_GIB = 1024
PYTHON_GIB = 0.35  # resident memory of a rank under torchrun on a CPU, 338 MB (measured)
CONTEXT_GIB = 0.5  # CUDA's context, with the kernels that it loads as they are used
# torch's default workspace of a cuBLAS handle in MiB: 2 x 4 and 8 x 1/64; on Hopper 8 x 4. The
# thread of the backward pass has a handle of its own.
WORKSPACE_MIB, HOPPER_WORKSPACE_MIB, HANDLES = 8.125, 32.0, 2
# NCCL's buffers of a channel, to one neighbour: 4 MiB (NCCL_BUFFSIZE), 4.7 of LL128 and 0.5 of LL.
CHANNEL_MIB = 9.2
NVLINK_CHANNELS, PCIE_CHANNELS = 24, 4
NVLINK_GB_PER_S = 80.0  # the slowest NVLink of the data sheets; PCI Express stays below


def process_gib(resolved: ResolvedSpec) -> tuple[float, str]:
    """Return the memory of a rank before its model in GiB, and its description.

    What was measured on a node of the class takes the place of the estimates.
    """
    hardware, groups = resolved.hardware, communicators(resolved)
    source = "Python, torch and its libraries"
    if hardware.device == "cuda":
        source = f"context of CUDA, cuBLAS, NCCL's buffers of {groups} communicators"
    measured = hardware.measured
    if measured is not None and measured.process_gib is not None:
        each = measured.communicator_gib or 0.0
        return measured.process_gib + groups * each, f"{source}; {measured.source}"
    if hardware.device == "cpu":
        return PYTHON_GIB, source
    cublas_mib = HANDLES * workspace_mib(hardware)
    return CONTEXT_GIB + (cublas_mib + groups * communicator_mib(hardware)) / MIB_PER_GIB, source


def communicators(resolved: ResolvedSpec) -> int:
    """Return the groups of ranks that a rank talks in: all ranks, and each axis of several."""
    axes = sum(degree > 1 for degree in resolved.layout.degrees)
    return axes + 1 if axes else 0


def workspace_mib(hardware: Hardware) -> float:
    """Return the size of one workspace of cuBLAS; GPUs with float8 units since Hopper have more.

    Ada has such units too, and gets more than it takes.
    """
    gpu = speeds_of(hardware)
    return HOPPER_WORKSPACE_MIB if gpu is not None and gpu.float8 else WORKSPACE_MIB


def communicator_mib(hardware: Hardware) -> float:
    """Return the size of NCCL's buffers for one group of ranks."""
    gpu = speeds_of(hardware)
    link = None if gpu is None else gpu.link_gb_per_s
    on_pcie = link is not None and link < NVLINK_GB_PER_S
    return CHANNEL_MIB * (PCIE_CHANNELS if on_pcie else NVLINK_CHANNELS)
