"""Build of the installed torch, asked in a child process, and the judgement on it."""

import subprocess
from collections.abc import Sequence

import pynvml
from pydantic import BaseModel, ConfigDict, ValidationError

from strategies.plan.torch_builds import BuildVerdict, Capability, judge_build
from worker.gpus.torch_process import PATIENCE_S, ask, last_words

ASKED = "strategies.train.trust.torch_build"


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

    def judge(self, driver: str, capabilities: Sequence[Capability]) -> BuildVerdict:
        """Return whether it can use GPUs of these capabilities with this driver."""
        return judge_build(cuda=self.cuda, hip=self.hip, driver=driver, capabilities=capabilities)


def installed_build() -> TorchBuild | str:
    """Return the build of the installed torch, or the reason why it cannot be asked."""
    try:
        done = ask(ASKED)
    except subprocess.TimeoutExpired:
        return f"torch could not be imported within {PATIENCE_S:.0f} s"
    try:
        return TorchBuild.model_validate_json(done.stdout)
    except ValidationError:
        return f"torch cannot be imported: {last_words(done)}"


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
