"""Inventory of this machine: its GPUs, else CPU cores as slots."""

import platform
import socket
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

from core.wire.messages import Gpu, Inventory
from strategies.plan.compilers import why_no_compiler
from worker.gpus.nvml import Nvml
from worker.gpus.torch_build import driver_and_capabilities
from worker.node.boot import cores
from worker.node.memory import machine
from worker.node.sharing import SharingHost, judge_sharing
from worker.scripts.sandbox import SandboxSupport

GIB = 1 << 30
MIG = "MIG-"  # begins the UUID of a MIG instance


def take_inventory(
    gpus: Sequence[Gpu],
    slots: int | None,
    sandbox: SandboxSupport,
    sharing: SharingHost | None = None,
    *,
    shared_workspaces: bool = False,
    job_memory_bytes: int | None = None,
    egress: Sequence[str] | None = None,
) -> Inventory:
    """Return the machine's inventory now; without GPUs it has `slots` CPU slots, else its cores."""
    num_slots = len(gpus) or slots or cores()
    support = None
    if sharing is not None:
        support = judge_sharing(
            sharing,
            slots=num_slots,
            no_sandbox=sandbox.reason if sandbox.level is None else "",
            has_instances=any(gpu.uuid.startswith(MIG) for gpu in gpus),
        )
    return Inventory(
        hostname=socket.gethostname(),
        cores=cores(),
        memory_gib=round(machine().total / GIB, 2),
        gpus=list(gpus),
        slots=num_slots,
        python=platform.python_version(),
        torch=torch_version(),
        sandbox="" if sandbox.level is None else str(sandbox.level),
        no_sandbox=sandbox.reason,
        no_gang_sandbox=sandbox.gang_reason,
        driver=driver_and_capabilities()[0] if gpus else "",
        no_compiler=why_no_compiler("cuda" if gpus else "cpu"),
        sharing=None if support is None else support.sharing,
        shared_workspaces=shared_workspaces,
        job_memory_gib=None if job_memory_bytes is None else round(job_memory_bytes / GIB, 2),
        no_sharing="" if support is None else support.reason[:2000],
        egress="" if egress is None else ", ".join(egress) or "none",
    )


def list_gpus() -> list[Gpu]:
    """Return the GPUs and MIG instances that answer NVML now, in its order."""
    nvml = Nvml()
    try:
        found = [one for one in nvml.read().devices if one.name]
    finally:
        nvml.close()
    return [
        Gpu(
            index=index,
            name=one.name,
            memory_gib=one.memory_gib,
            uuid=one.uuid,
            pci_address=one.pci_address,
        )
        for index, one in enumerate(found)
    ]


def torch_version() -> str:
    """Return the version of the installed torch without importing it; empty if there is none."""
    try:
        return version("torch")
    except PackageNotFoundError:
        return ""
