"""How busy a rank keeps its GPU, or the CPU threads it was given, looked at once a second."""

import time

import torch

EVERY_S = 1.0  # NVML's own figure is of the last second at most


class Use:
    """One rank's use of what it computes on."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.gpu = find_gpu(device)
        self.looked_at, self.cpu_s = time.perf_counter(), time.process_time()

    def look(self) -> dict[str, float]:
        """Per cent, once a second, else nothing. `gpu_pct`: of the time in which anything ran on
        the GPU, also a collective that only waits (NVML's `utilization.gpu`). Without a GPU
        `cpu_pct`: of the time of all this rank's threads, since the last look.
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
    """The GPU, if NVML tells its use: not without its library, nor of a part of one (MIG)."""
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
