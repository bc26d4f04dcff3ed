"""GPUs and MIG instances as NVML reports them at one moment.

A device that does not answer hides no other one: each error belongs to its own device, or to the
driver as a whole.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pynvml

from core.states import GpuHealth

GIB = 1 << 30
NONE_HERE = (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
GONE = (
    pynvml.NVML_ERROR_GPU_IS_LOST,
    pynvml.NVML_ERROR_RESET_REQUIRED,
    pynvml.NVML_ERROR_TIMEOUT,
    pynvml.NVML_ERROR_UNKNOWN,
)
MISMATCH = pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH
Value = TypeVar("Value")


@dataclass(frozen=True)
class Use:
    """Memory that one process uses on a device."""

    pid: int
    gib: float | None
    """Memory in GiB; None if the driver does not report it."""


@dataclass(frozen=True)
class Fault:
    """Reason why a device is not fit for jobs."""

    health: GpuHealth
    reason: str


@dataclass(frozen=True)
class Device:
    """One GPU or MIG instance, as far as it answers."""

    uuid: str
    name: str = ""
    memory_gib: float = 0.0
    pci_address: str = ""
    minor: int | None = None
    """N of /dev/nvidiaN, which differs from NVML's own index in a container."""
    instance: tuple[int, int] | None = None
    """Ids of the GPU instance and compute instance of a MIG instance; None for a whole GPU."""
    used_gib: float = 0.0
    graphics_gib: float = 0.0
    """Part of `used_gib` that belongs to graphics processes, such as a display's."""
    uses: tuple[Use, ...] = ()
    """Compute processes on it."""
    peers: frozenset[str] = frozenset()
    """PCI addresses of the devices at the other ends of its active NVLinks."""
    fault: Fault | None = None
    handle: Any = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class Reading:
    """All devices that answer, and the error of the driver if none can."""

    devices: tuple[Device, ...] = ()
    num_silent: int = 0
    """Number of GPUs that the driver counts, but that do not tell even their UUID."""
    error: str = ""
    """Reason why the driver does not answer, and what to do about it; empty if it does, or if the
    machine has no driver at all."""


class Nvml:
    """Connection to the driver, opened again after it has failed."""

    def __init__(self) -> None:
        self._is_open = False

    def read(self) -> Reading:
        """Return the devices as they are now."""
        try:
            if not self._is_open:
                pynvml.nvmlInit()
                self._is_open = True
            return self._read()
        except pynvml.NVMLError as error:
            self.close()
            if error.value in NONE_HERE:
                return Reading()
            return Reading(error=driver_sentence(error))

    def _read(self) -> Reading:
        devices: list[Device] = []
        num_silent = 0
        for index in range(pynvml.nvmlDeviceGetCount()):
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                devices += _devices_of(handle)
            except pynvml.NVMLError as error:
                if error.value == pynvml.NVML_ERROR_UNINITIALIZED:
                    raise
                num_silent += 1
        return Reading(tuple(devices), num_silent)

    def close(self) -> None:
        """Release the driver, so that it can be reloaded."""
        if self._is_open:
            self._is_open = False
            _or(None, pynvml.nvmlShutdown)


def driver_sentence(error: pynvml.NVMLError) -> str:
    """Return the reason why the driver does not answer, and what to do about it."""
    if error.value == MISMATCH:
        return (
            "The NVIDIA driver was updated, but the kernel still runs the old one (driver/library "
            "version mismatch). Reboot the node, or reload the nvidia kernel modules and restart "
            "the worker."
        )
    return (
        f"The NVIDIA driver does not answer ({error}). Look at `nvidia-smi` and `dmesg` on the "
        "node; if they show no cause, reboot it."
    )


def _devices_of(handle: Any) -> Iterator[Device]:
    """Yield a GPU, or its MIG instances if it is split. Raises NVMLError if it has no UUID."""
    uuid = _text(pynvml.nvmlDeviceGetUUID(handle))
    try:
        gpu = _device(handle, uuid)
        is_split = _or((0, 0), pynvml.nvmlDeviceGetMigMode, handle)[0]
    except pynvml.NVMLError as error:
        yield Device(uuid, fault=Fault(GpuHealth.LOST, lost_sentence(error)))
        return
    if not is_split:
        yield gpu
        return
    instances = list(_instances_of(handle, gpu))
    yield from instances
    if not instances:
        reason = (
            "The GPU is in MIG mode and has no instance. Create instances (`nvidia-smi mig -cgi "
            "... -C`) or turn MIG off (`nvidia-smi -mig 0`), then restart the worker."
        )
        yield Device(
            uuid, gpu.name, gpu.memory_gib, gpu.pci_address, fault=Fault(GpuHealth.SPLIT, reason)
        )


def _instances_of(handle: Any, gpu: Device) -> Iterator[Device]:
    for number in range(_or(0, pynvml.nvmlDeviceGetMaxMigDeviceCount, handle)):
        part = _or(None, pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, number)
        if part is None:
            continue
        memory = pynvml.nvmlDeviceGetMemoryInfo(part)
        ids = (
            pynvml.nvmlDeviceGetGpuInstanceId(part),
            pynvml.nvmlDeviceGetComputeInstanceId(part),
        )
        name = _text(_or("", pynvml.nvmlDeviceGetName, part))
        gib = memory.total / GIB
        yield Device(
            uuid=_text(pynvml.nvmlDeviceGetUUID(part)),
            name=name if "MIG" in name else f"{gpu.name} MIG {gib:.0f}gb",
            memory_gib=round(gib, 2),
            pci_address=gpu.pci_address,
            minor=gpu.minor,
            instance=ids,
            used_gib=memory.used / GIB,
            uses=_uses(part, pynvml.nvmlDeviceGetComputeRunningProcesses),
            fault=gpu.fault,
            handle=part,
        )


def _device(handle: Any, uuid: str) -> Device:
    """Return a whole GPU. Raises NVMLError if it does not answer."""
    memory = _memory(handle)
    graphics = _uses(handle, pynvml.nvmlDeviceGetGraphicsRunningProcesses)
    compute = _uses(handle, pynvml.nvmlDeviceGetComputeRunningProcesses)
    computing = {use.pid for use in compute}
    return Device(
        uuid=uuid,
        name=_text(pynvml.nvmlDeviceGetName(handle)),
        memory_gib=round(memory.total / GIB, 2),
        pci_address=_text(pynvml.nvmlDeviceGetPciInfo(handle).busId),
        minor=_or(None, pynvml.nvmlDeviceGetMinorNumber, handle),
        used_gib=memory.used / GIB,
        graphics_gib=sum(use.gib or 0.0 for use in graphics if use.pid not in computing),
        uses=compute,
        peers=frozenset(_peers(handle)),
        fault=_memory_fault(handle),
        handle=handle,
    )


def _peers(handle: Any) -> Iterator[str]:
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        if _or(0, pynvml.nvmlDeviceGetNvLinkState, handle, link):
            remote = _or(None, pynvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link)
            if remote is not None:
                yield _text(remote.busId)


def _memory(handle: Any) -> Any:
    """Return total and used bytes; the driver's own reserve does not count as used."""
    newer = _or(None, pynvml.nvmlDeviceGetMemoryInfo, handle, pynvml.nvmlMemory_v2)
    return pynvml.nvmlDeviceGetMemoryInfo(handle) if newer is None else newer


def _uses(handle: Any, ask: Callable[[Any], Any]) -> tuple[Use, ...]:
    none: list[Any] = []
    return tuple(
        Use(each.pid, None if each.usedGpuMemory is None else each.usedGpuMemory / GIB)
        for each in _or(none, ask, handle)
    )


def _memory_fault(handle: Any) -> Fault | None:
    """Return the fault of a GPU's memory: remapped rows (since Ampere), retired pages (before), or
    errors since the driver was loaded."""
    _, _, is_pending, has_failed = _or((0, 0, 0, 0), pynvml.nvmlDeviceGetRemappedRows, handle)
    if has_failed:
        return Fault(
            GpuHealth.MEMORY,
            "A broken row of its memory could not be replaced by a spare one. Have the GPU "
            "exchanged.",
        )
    if is_pending:
        return Fault(
            GpuHealth.REPAIR_PENDING,
            "A broken row of its memory is replaced when the GPU is reset. Drain the node and "
            "reset the GPU (`nvidia-smi --gpu-reset`) or reboot.",
        )
    if _or(0, pynvml.nvmlDeviceGetRetiredPagesPendingStatus, handle):
        return Fault(
            GpuHealth.REPAIR_PENDING,
            "Broken pages of its memory are retired when the driver is reloaded. Drain the node "
            "and reboot it.",
        )
    errors = _or(
        0,
        pynvml.nvmlDeviceGetTotalEccErrors,
        handle,
        pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
        pynvml.NVML_VOLATILE_ECC,
    )
    if errors:
        return Fault(
            GpuHealth.MEMORY,
            f"Its memory has had {errors} uncorrectable {'error' if errors == 1 else 'errors'} "
            "since the driver was loaded. Drain the node and reset the GPU or reboot; if they "
            "come back, have the GPU exchanged.",
        )
    return None


def lost_sentence(error: pynvml.NVMLError) -> str:
    """Return the reason why a GPU is lost, and what to do about it."""
    return (
        f"The GPU does not answer the driver ({error}). Look for `Xid` in `dmesg` on the node; "
        "reboot the node when its other jobs have ended."
    )


def _or(default: Value, ask: Callable[..., Value], *arguments: Any) -> Value:
    """Return the answer, or `default` if the device or driver can't tell. Raises NVMLError if the
    device is gone."""
    try:
        return ask(*arguments)
    except pynvml.NVMLError as error:
        if error.value in GONE:
            raise
        return default


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
