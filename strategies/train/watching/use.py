"""Utilisation of a rank's GPU, or of its CPU threads, sampled once a second."""

import time

import torch

EVERY_S = 1.0  # NVML's own figure is of the last second at most


class Use:
    """Utilisation of the device that one rank computes on."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.gpu = find_gpu(device)
        self.looked_at, self.cpu_s = time.perf_counter(), time.process_time()

    def look(self) -> dict[str, float]:
        """Return the utilisation in percent, at most once a second; otherwise an empty dict.

        `gpu_pct`: share of the time in which anything ran on the GPU, including a collective that
        only waits (NVML's `utilization.gpu`). Without a GPU `cpu_pct`: share of the time of all
        this rank's threads since the last sample.
        """
        now = time.perf_counter()
        past_s = now - self.looked_at
        if past_s < EVERY_S:
            return {}
        cpu_s = time.process_time()
        used_s, self.looked_at, self.cpu_s = cpu_s - self.cpu_s, now, cpu_s
        if self.device.type == "cpu":
            return {"cpu_pct": 100 * used_s / past_s / torch.get_num_threads()}
        return {} if self.gpu is None else {"gpu_pct": float(torch.cuda.utilization(self.gpu))}


def find_gpu(device: torch.device) -> torch.device | None:
    """Return the GPU if NVML reports its utilisation, which it does not for a part of one (MIG).

    None also if NVML's library is not installed.
    """
    if device.type != "cuda":
        return None
    try:
        import pynvml
    except ModuleNotFoundError:
        return None
    try:
        torch.cuda.utilization(device)
    except (RuntimeError, pynvml.NVMLError):
        return None
    return device
