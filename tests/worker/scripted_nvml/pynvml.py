"""A double of pynvml: GPUs and faults from the file TRAINYARD_TEST_NVML, read at every call.

Constants, errors and structures are those of the real module. The file is JSON: `error` (of
nvmlInit and every call) and `gpus`, in the bus's order, each with `uuid`, `name`, `gib`, `pci`,
`minor` and, as wanted, `error`, `used_gib`, `processes` [[pid, gib]], `graphics` [[pid, gib]],
`links` (PCI addresses of the other ends of its NVLinks), `link_errors` (for each of them the four
counters of its data layer), `replays` (of PCIe), `remap_pending`, `remap_failed`,
`retired_pending`, `ecc`, `throttled` (mask), `clock`, `mig` (a list of {uuid, name, gib, ids}).
"""

import importlib.machinery
import importlib.util
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

_here = str(Path(__file__).parent)
_spec = importlib.machinery.PathFinder.find_spec(
    "pynvml", [folder for folder in sys.path if folder != _here]
)
_real = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_real)
globals().update({name: value for name, value in vars(_real).items() if not name.startswith("__")})
_GIB = 1 << 30


def _script():
    try:
        script = json.loads(Path(os.environ["TRAINYARD_TEST_NVML"]).read_bytes())
    except FileNotFoundError:
        raise _real.NVMLError(_real.NVML_ERROR_LIBRARY_NOT_FOUND) from None
    _fail(script)
    return script["gpus"]


def _fail(thing):
    if thing.get("error"):
        raise _real.NVMLError(getattr(_real, f"NVML_ERROR_{thing['error']}"))


def _gpu(handle):
    """The script's entry for a handle: a PCI address, or (PCI address, number of the instance)."""
    place, number = handle if isinstance(handle, tuple) else (handle, None)
    for gpu in _script():
        if gpu["pci"] == place:
            _fail(gpu)
            return gpu if number is None else gpu["mig"][number]
    raise _real.NVMLError(_real.NVML_ERROR_GPU_IS_LOST)


def _no(*_):
    raise _real.NVMLError(_real.NVML_ERROR_NOT_SUPPORTED)


def _uses(handle, kind):
    return [
        SimpleNamespace(pid=pid, usedGpuMemory=None if gib is None else int(gib * _GIB))
        for pid, gib in _gpu(handle).get(kind, [])
    ]


def nvmlInit():
    _script()


def nvmlShutdown():
    pass


def nvmlSystemGetDriverVersion():
    return "580.95.05"


def nvmlDeviceGetCount():
    return len(_script())


def nvmlDeviceGetHandleByIndex(index):
    gpu = _script()[index]
    _fail(gpu)
    return gpu["pci"]


def nvmlDeviceGetUUID(handle):
    return _gpu(handle)["uuid"]


def nvmlDeviceGetName(handle):
    return _gpu(handle)["name"]


def nvmlDeviceGetCudaComputeCapability(handle):
    return tuple(_gpu(handle).get("capability", (8, 0)))


def nvmlDeviceGetPciInfo(handle):
    return SimpleNamespace(busId=_gpu(handle)["pci"])


def nvmlDeviceGetMinorNumber(handle):
    return _gpu(handle)["minor"]


def nvmlDeviceGetMemoryInfo(handle, version=None):
    gpu = _gpu(handle)
    held = sum(gib or 0 for kind in ("processes", "graphics") for _, gib in gpu.get(kind, []))
    used = gpu.get("used_gib", 0.4 + held)
    return SimpleNamespace(total=int(gpu["gib"] * _GIB), used=int(used * _GIB))


def nvmlDeviceGetComputeRunningProcesses(handle):
    return _uses(handle, "processes")


def nvmlDeviceGetGraphicsRunningProcesses(handle):
    return _uses(handle, "graphics")


def nvmlDeviceGetRemappedRows(handle):
    gpu = _gpu(handle)
    return 0, 0, int(gpu.get("remap_pending", 0)), int(gpu.get("remap_failed", 0))


def nvmlDeviceGetRetiredPagesPendingStatus(handle):
    return int(_gpu(handle).get("retired_pending", 0))


def nvmlDeviceGetTotalEccErrors(handle, kind, counter):
    assert (kind, counter) == (_real.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, _real.NVML_VOLATILE_ECC)
    return _gpu(handle).get("ecc", 0)


def nvmlDeviceGetMigMode(handle):
    split = int("mig" in _gpu(handle))
    return split, split


def nvmlDeviceGetMaxMigDeviceCount(handle):
    return 7


def nvmlDeviceGetMigDeviceHandleByIndex(handle, number):
    if number >= len(_gpu(handle)["mig"]):
        raise _real.NVMLError(_real.NVML_ERROR_NOT_FOUND)
    return handle, number


def nvmlDeviceGetGpuInstanceId(handle):
    return _gpu(handle)["ids"][0]


def nvmlDeviceGetComputeInstanceId(handle):
    return _gpu(handle)["ids"][1]


def nvmlDeviceGetUtilizationRates(handle):
    if isinstance(handle, tuple):  # as the driver does for an instance of MIG
        _no()
    return SimpleNamespace(gpu=_gpu(handle).get("busy", 0))


def nvmlDeviceGetClockInfo(handle, kind):
    return _gpu(handle).get("clock", 1410)


def nvmlDeviceGetMaxClockInfo(handle, kind):
    return 1410


def nvmlDeviceGetCurrentClocksThrottleReasons(handle):
    return _gpu(handle).get("throttled", 1)  # idle


def nvmlDeviceGetTemperature(handle, sensor):
    return _gpu(handle).get("celsius", 41)


def nvmlDeviceGetPowerUsage(handle):
    return 65_400


def nvmlDeviceGetEnforcedPowerLimit(handle):
    return 400_000


def nvmlDeviceGetCurrPcieLinkGeneration(handle):
    return 4


def nvmlDeviceGetCurrPcieLinkWidth(handle):
    return _gpu(handle).get("lanes", 16)


def nvmlDeviceGetMaxPcieLinkWidth(handle):
    return 16


def nvmlDeviceGetPcieReplayCounter(handle):
    return _gpu(handle).get("replays", 0)


def nvmlDeviceGetNvLinkErrorCounter(handle, link, counter):
    if "link_errors" not in _gpu(handle):
        _no()
    return _gpu(handle)["link_errors"][link][counter]


def nvmlDeviceGetNvLinkState(handle, link):
    return int(link < len(_gpu(handle).get("links", [])))


def nvmlDeviceGetNvLinkRemotePciInfo(handle, link):
    return SimpleNamespace(busId=_gpu(handle)["links"][link].encode())
