"""Builds of torch: the drivers and GPUs that each can use, and where to install it from. Pure.

Sources: NVIDIA, "CUDA Compatibility", minor version compatibility (a driver of 525 or newer runs
CUDA 12.x, of 580 or newer 13.x); PyTorch, RELEASE.md, "CUDA support matrix" of release 2.13.
"""

from collections.abc import Sequence
from dataclasses import dataclass

TORCH = "2.13.0"
INDEX = "https://download.pytorch.org/whl"
OLDEST_DRIVER = {11: 450, 12: 525, 13: 580}  # by CUDA's major version
Capability = tuple[int, int]


@dataclass(frozen=True)
class CudaBuild:
    """Published build of torch for CUDA; GPUs of all capabilities between the two run it."""

    cuda: str
    oldest: Capability
    newest: Capability

    @property
    def tag(self) -> str:
        return f"cu{self.cuda.replace('.', '')}"

    def runs(self, driver: int, capabilities: Sequence[Capability]) -> bool:
        """Return True if it runs on this driver and on all these GPUs."""
        return driver >= oldest_driver(self.cuda) and all(map(self.has_kernels, capabilities))

    def has_kernels(self, capability: Capability) -> bool:
        """Return True if it was built for GPUs of this compute capability."""
        return self.oldest <= capability <= self.newest


# The first that fits is advised.
CUDA_BUILDS = (
    CudaBuild("13.0", oldest=(7, 5), newest=(12, 9)),
    CudaBuild("12.6", oldest=(5, 0), newest=(9, 9)),
)
EXPERIMENTAL = CudaBuild("13.2", oldest=(7, 5), newest=(12, 9))


@dataclass(frozen=True)
class BuildVerdict:
    """Result of a comparison: `why` is empty if torch can use the GPUs of the node."""

    why: str = ""
    todo: str = ""


def judge_build(
    *, cuda: str | None, hip: str | None, driver: str, capabilities: Sequence[Capability]
) -> BuildVerdict:
    """Return whether a build of torch can use these GPUs, and what to install if it cannot.

    `cuda` and `hip` are the versions that torch was built for, `driver` is NVIDIA's, such as
    "550.54.15", empty without one. Without a driver every build will do: the CPU is used.
    """
    if hip is not None:
        return BuildVerdict(
            f"torch is built for ROCm {hip}, which Trainyard does not support",
            f"Install another build: {command('cpu')}",
        )
    if not driver:
        return BuildVerdict()
    major = int(driver.split(".", maxsplit=1)[0])
    todo = advice(major, capabilities)
    if cuda is None:
        return BuildVerdict("torch is built for CPUs only", todo)
    if major < oldest_driver(cuda):
        return BuildVerdict(
            f"torch is built for CUDA {cuda}, which needs driver {oldest_driver(cuda)} or newer; "
            f"this is {driver}",
            todo,
        )
    known = next((build for build in (*CUDA_BUILDS, EXPERIMENTAL) if build.cuda == cuda), None)
    missing = sorted({one for one in capabilities if known and not known.has_kernels(one)})
    if missing:
        named = ", ".join(f"{major}.{minor}" for major, minor in missing)
        return BuildVerdict(
            f"torch for CUDA {cuda} has no kernels for GPUs of compute capability {named}", todo
        )
    return BuildVerdict()


def advice(driver: int, capabilities: Sequence[Capability]) -> str:
    """Return what to do so that torch can use these GPUs with this driver or a newer one."""
    for build in CUDA_BUILDS:
        if build.runs(driver, capabilities):
            return f"Install the build for CUDA {build.cuda}: {command(build.tag)}"
    for build in reversed(CUDA_BUILDS):  # the build that asks for the smallest update
        if all(map(build.has_kernels, capabilities)):
            needed = oldest_driver(build.cuda)
            return (
                f"Update the driver to {needed} or newer, then install the build for CUDA "
                f"{build.cuda}: {command(build.tag)}"
            )
    return (
        "No build has kernels for all GPUs of this node: give those of one kind to the worker "
        "(CUDA_VISIBLE_DEVICES)."
    )


def command(tag: str) -> str:
    """Return the command that installs a build, in place of another one if there is one."""
    return f"pip install torch=={TORCH}+{tag} --index-url {INDEX}/{tag}"


def oldest_driver(cuda: str) -> int:
    """Return the major version of the oldest driver that runs a version of CUDA."""
    major = int(cuda.split(".", maxsplit=1)[0])
    return OLDEST_DRIVER.get(major, OLDEST_DRIVER[max(OLDEST_DRIVER)])
