"""Build of the installed torch, asked in a child process, and the judgement on it."""

import os
import subprocess
import sys
from collections.abc import Sequence

import pynvml
from pydantic import BaseModel, ConfigDict, ValidationError

from strategies.plan.torch_builds import Capability, Verdict, judge_build

ASKED = "strategies.train.trust.torch_build"
PATIENCE_S = 180.0  # a cold disk takes a minute to import torch


class TorchBuild(BaseModel):
    """Versions that torch was built for, and the GPUs that it sees."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: str
    cuda: str | None = None
    hip: str | None = None
    nccl: str = ""
    num_gpus: int = 0
    error: str = ""
    """First line of CUDA's error, empty if it has loaded."""

    def judge(self, driver: str, capabilities: Sequence[Capability]) -> Verdict:
        """Return whether it can use GPUs of these capabilities with this driver."""
        return judge_build(cuda=self.cuda, hip=self.hip, driver=driver, capabilities=capabilities)


def installed_build() -> TorchBuild | str:
    """Return the build of the installed torch, or the reason why it cannot be asked."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", ASKED],
            env={**os.environ, "PYTHONSAFEPATH": "1"},
            capture_output=True,
            timeout=PATIENCE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"torch could not be imported within {PATIENCE_S:.0f} s"
    try:
        return TorchBuild.model_validate_json(done.stdout)
    except ValidationError:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        return f"torch cannot be imported: {''.join(last)[:300]}"


def driver_and_capabilities() -> tuple[str, list[Capability]]:
    """Return the version of NVIDIA's driver, empty without one, and each GPU's capability.

    A GPU that does not answer is left out.
    """
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return "", []
    try:
        driver = pynvml.nvmlSystemGetDriverVersion()
        capabilities = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
            except pynvml.NVMLError:
                continue
            capabilities.append((major, minor))
        return driver.decode() if isinstance(driver, bytes) else str(driver), capabilities
    finally:
        pynvml.nvmlShutdown()
