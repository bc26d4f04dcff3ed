"""Readings of one GPU for telemetry: clock, throttling, temperature, power, PCIe, NVLink."""

from collections.abc import Callable
from typing import Any

import pynvml

from core.wire.messages import GpuReading
from worker.gpus.nvml import Device

# Bits of nvmlDeviceGetCurrentClocksEventReasons that slow a busy GPU down.
# Source: NVML API reference, nvmlClocksEventReasons.
THROTTLES = {
    pynvml.nvmlClocksEventReasonApplicationsClocksSetting: "application clocks setting",
    pynvml.nvmlClocksEventReasonSwPowerCap: "power cap",
    pynvml.nvmlClocksThrottleReasonHwSlowdown: "hardware slowdown",
    pynvml.nvmlClocksEventReasonSyncBoost: "sync boost",
    pynvml.nvmlClocksEventReasonSwThermalSlowdown: "thermal slowdown",
    pynvml.nvmlClocksThrottleReasonHwThermalSlowdown: "hardware thermal slowdown",
    pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown: "power brake",
}
SPECIFIC = {"hardware thermal slowdown", "power brake"}  # imply "hardware slowdown"
NVLINK_COUNTERS = (
    pynvml.NVML_NVLINK_ERROR_DL_REPLAY,
    pynvml.NVML_NVLINK_ERROR_DL_RECOVERY,
    pynvml.NVML_NVLINK_ERROR_DL_CRC_FLIT,
    pynvml.NVML_NVLINK_ERROR_DL_CRC_DATA,
)


def use_pct(device: Device | None) -> float | None:
    """Return the share of time in which a kernel ran, in percent.

    None if it is not known: NVML does not report it for an instance of MIG.
    """
    if device is None or device.handle is None:
        return None
    found = _ask(pynvml.nvmlDeviceGetUtilizationRates, device.handle)
    return None if found is None else float(found.gpu)


def memory_gib(device: Device | None) -> float | None:
    """Return the GiB in use; None if the GPU does not answer."""
    return None if device is None or device.handle is None else device.used_gib


def reading_of(slot: int, device: Device) -> GpuReading:
    """Return the state of a GPU now; what it does not report is None."""
    gpu = device.handle
    milliwatts = _ask(pynvml.nvmlDeviceGetPowerUsage, gpu)
    limit = _ask(pynvml.nvmlDeviceGetEnforcedPowerLimit, gpu)
    return GpuReading(
        index=slot,
        clock_mhz=_ask(pynvml.nvmlDeviceGetClockInfo, gpu, pynvml.NVML_CLOCK_SM),
        max_clock_mhz=_ask(pynvml.nvmlDeviceGetMaxClockInfo, gpu, pynvml.NVML_CLOCK_SM),
        throttled=throttles(_ask(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, gpu) or 0),
        temperature_c=_ask(pynvml.nvmlDeviceGetTemperature, gpu, pynvml.NVML_TEMPERATURE_GPU),
        power_w=None if milliwatts is None else round(milliwatts / 1000, 1),
        power_limit_w=None if limit is None else round(limit / 1000, 1),
        pcie_generation=_ask(pynvml.nvmlDeviceGetCurrPcieLinkGeneration, gpu),
        pcie_width=_ask(pynvml.nvmlDeviceGetCurrPcieLinkWidth, gpu),
        max_pcie_width=_ask(pynvml.nvmlDeviceGetMaxPcieLinkWidth, gpu),
        pcie_replays=_ask(pynvml.nvmlDeviceGetPcieReplayCounter, gpu),
        nvlink_errors=_nvlink_errors(gpu),
    )


def throttles(reasons: int) -> list[str]:
    """Return the names of the throttle reasons in a mask. That the GPU is idle is none."""
    named = [name for bit, name in THROTTLES.items() if reasons & bit]
    if SPECIFIC & set(named):
        return [name for name in named if name != "hardware slowdown"]
    return named


def _nvlink_errors(gpu: Any) -> int | None:
    """Return the sum of the error counters of all NVLinks; None if it has none or counts none."""
    counts = [
        count
        for link in range(pynvml.NVML_NVLINK_MAX_LINKS)
        if _ask(pynvml.nvmlDeviceGetNvLinkState, gpu, link)
        for counter in NVLINK_COUNTERS
        if (count := _ask(pynvml.nvmlDeviceGetNvLinkErrorCounter, gpu, link, counter)) is not None
    ]
    return sum(counts) if counts else None


def _ask(ask: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return ask(*arguments)
    except pynvml.NVMLError:
        return None
