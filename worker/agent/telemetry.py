"""Utilisation of this machine."""

from pathlib import Path

import psutil

from core.wire.messages import Telemetry
from worker.gpus.node_gpus import NodeGpus
from worker.gpus.nvml import GIB
from worker.gpus.readings import memory_gib, reading_of, use_pct
from worker.preparing.fetching import FetchRate


class TelemetrySource:
    """Measurement since the previous call."""

    def __init__(self, data: Path, gpus: NodeGpus, fetch_rate: FetchRate) -> None:
        self.data, self.gpus, self.fetch_rate = data, gpus, fetch_rate
        psutil.cpu_percent()  # the first call has nothing to compare with

    def measure(self) -> Telemetry:
        """Return the use of CPU, memory, disk and GPUs."""
        devices = [self.gpus.devices.get(gpu.uuid) for gpu in self.gpus.known]
        return Telemetry(
            cpu_pct=psutil.cpu_percent(),
            memory_used_gib=psutil.virtual_memory().used / GIB,
            disk_free_gib=psutil.disk_usage(str(self.data)).free / GIB,
            gpu_pct=[use_pct(one) for one in devices],
            gpu_memory_used_gib=[memory_gib(one) for one in devices],
            gpus=[
                reading_of(slot, one)
                for slot, one in enumerate(devices)
                if one is not None and one.handle is not None
            ],
            fetch_bytes_per_s=self.fetch_rate.bytes_per_s,
        )
