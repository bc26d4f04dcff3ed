"""Processes and memory on a GPU that belong to no running attempt."""

from collections.abc import Collection

import psutil

from core.states import GpuHealth
from worker.gpus.nvml import Device, Fault, Use

IDLE_GIB = 1.0  # most that an idle GPU may hold by itself: driver, ECC, a persistent context
SLACK_GIB = 0.5  # measured idle memory moves by less
COMES_BY_ITSELF = "No job gets this GPU until then; it is offered again by itself."


def is_ours(pid: int, roots: Collection[int]) -> bool | None:
    """Return True if the process is one of `roots` or descends from one; None if it is not seen."""
    if pid in roots:
        return True
    try:
        return any(above.pid in roots for above in psutil.Process(pid).parents())
    except psutil.Error:
        return None


def fault_of_use(
    device: Device, roots: Collection[int], *, has_attempt: bool, idle_gib: float
) -> Fault | None:
    """Return the fault of a GPU that somebody else uses; None if nobody does.

    `roots` are processes of this worker and its attempts, `has_attempt` is True if an attempt has
    the GPU, `idle_gib` is the lowest memory use that was seen. A process of another pid namespace
    is taken for the attempt's.
    """
    ours = [(use, is_ours(use.pid, roots)) for use in device.uses]
    foreign = [
        use for use, is_own in ours if is_own is False or (is_own is None and not has_attempt)
    ]
    if foreign:
        return Fault(GpuHealth.OCCUPIED, foreign_sentence(foreign))
    held = device.used_gib - device.graphics_gib
    if has_attempt or device.uses or held <= min(idle_gib, IDLE_GIB) + SLACK_GIB:
        return None
    return Fault(
        GpuHealth.OCCUPIED,
        f"{held:.0f} GiB of its memory are in use, and no process is seen that holds them. End the "
        f"process (it may be a zombie or in another container) or reboot. {COMES_BY_ITSELF}",
    )


def foreign_sentence(foreign: Collection[Use]) -> str:
    """Return the sentence that names the processes: pid, program, user and GiB."""
    named = ", ".join(_name(use) for use in sorted(foreign, key=lambda use: use.pid)[:3])
    more = f" and {len(foreign) - 3} more" if len(foreign) > 3 else ""
    if len(foreign) == 1:
        return (
            f"Process {named} uses it and belongs to no running job. Wait until it ends, or end "
            f"it. {COMES_BY_ITSELF}"
        )
    return (
        f"Processes {named}{more} use it and belong to no running job. Wait until they end, or end "
        f"them. {COMES_BY_ITSELF}"
    )


def _name(use: Use) -> str:
    facts = []
    try:
        process = psutil.Process(use.pid)
        facts += [process.name(), f"user {process.username()}"]
    except psutil.Error:
        facts.append("not visible here")
    if use.gib is not None:
        facts.append(f"{use.gib:.0f} GiB")
    return f"{use.pid} ({', '.join(facts)})"
