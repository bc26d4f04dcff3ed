"""Trace of a few steps, on request."""

from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

PROFILED_STEPS = 3


class StepProfiler:
    """Recorder of the next steps; writes a Chrome trace (open it in perfetto.dev)."""

    def __init__(self, artifacts: Path, *, rank: int, device: torch.device) -> None:
        self.artifacts, self.rank, self.device = artifacts, rank, device
        self.running: profile | None = None
        self.first_step = 0

    def start(self, step: int) -> None:
        """Record from the step after `step` on. A recording already in progress continues."""
        if self.running is not None:
            return
        activities = [ProfilerActivity.CPU]
        if self.device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
        self.running, self.first_step = profile(activities=activities), step + 1
        self.running.start()

    def after_step(self, step: int, *, last: bool = False) -> Path | None:
        """Return the trace's path once it is complete: after PROFILED_STEPS steps, or the run's
        last."""
        if self.running is None or not (last or step >= self.first_step + PROFILED_STEPS - 1):
            return None
        self.running.stop()
        path = self.artifacts / f"profile-step-{self.first_step:06d}-rank-{self.rank}.json"
        self.running.export_chrome_trace(str(path))
        self.running = None
        return path
