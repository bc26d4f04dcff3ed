"""Utilisation of this machine."""

from pathlib import Path

import psutil
import pynvml

from core.wire.messages import Telemetry
from worker.shipping.inventory import GIB


class TelemetrySource:
    """Measurement since the previous call. Close it to release NVML."""

    def __init__(self, data: Path) -> None:
        self.data = data
        psutil.cpu_percent()  # the first call has nothing to compare with
        try:
            pynvml.nvmlInit()
            self.gpus = [
                pynvml.nvmlDeviceGetHandleByIndex(index)
                for index in range(pynvml.nvmlDeviceGetCount())
            ]
            self.has_nvml = True
        except pynvml.NVMLError:
            self.gpus, self.has_nvml = [], False

    def measure(self) -> Telemetry:
        """Return the use of CPU, memory, disk and GPUs. A GPU that does not answer counts as 0."""
        use, used_gib = [], []
        for gpu in self.gpus:
            try:
                use.append(float(pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu))
                used_gib.append(pynvml.nvmlDeviceGetMemoryInfo(gpu).used / GIB)
            except pynvml.NVMLError:
                use, used_gib = [*use[: len(used_gib)], 0.0], [*used_gib, 0.0]
        return Telemetry(
            cpu_pct=psutil.cpu_percent(),
            memory_used_gib=psutil.virtual_memory().used / GIB,
            disk_free_gib=psutil.disk_usage(str(self.data)).free / GIB,
            gpu_pct=use,
            gpu_memory_used_gib=used_gib,
        )

    def close(self) -> None:
        """Release NVML."""
        if self.has_nvml:
            pynvml.nvmlShutdown()
