"""`trainyard doctor --node`: torch, GPUs, driver, compilers, and what they need of the machine."""

import resource
from collections.abc import Iterator, Sequence
from pathlib import Path

from strategies.plan.compilers import why_no_compiler
from strategies.plan.torch_builds import Capability
from trainyard.doctor import Examiner, Finding
from worker.gpus.amd import NOT_USED, count_amd_gpus
from worker.gpus.nvml import Nvml, Reading
from worker.gpus.torch_build import TorchBuild, driver_and_capabilities, installed_build

finding = Examiner("node")

DEV = Path("/dev")
GIB = 1 << 30
INSTALL = "In Trainyard's repository: pip install -c constraints.txt ./client '.[train]'"
LOAD_UVM = "As root, at every boot: nvidia-modprobe -u -c 0 (or enable nvidia-persistenced)"
UNLIMITED = resource.RLIM_INFINITY


def examine_gpus() -> Iterator[Finding]:
    """Check torch's build against driver and GPUs, then devices, limits and compilers."""
    driver, capabilities = driver_and_capabilities()
    build = installed_build()
    yield about_torch(build, driver, capabilities)
    yield from about_gpus(_read_devices(), driver)
    if isinstance(build, TorchBuild) and driver:
        yield about_sight(build, len(capabilities))
    num_amd = count_amd_gpus()
    if num_amd:
        yield finding("gpus", "warn", f"{num_amd} of AMD", f"{NOT_USED}: docs/gpus.md says why.")
    if driver:
        yield about_uvm(DEV)
    locks = bool(driver) or (DEV / "infiniband").exists()
    yield about_locked_memory(resource.getrlimit(resource.RLIMIT_MEMLOCK)[1], is_needed=locks)
    yield about_compiler(has_gpus=bool(driver))


def about_torch(
    build: TorchBuild | str, driver: str, capabilities: Sequence[Capability]
) -> Finding:
    """Compare torch's build with driver and GPUs."""
    if isinstance(build, str):
        return finding("torch", "fail", build, INSTALL)
    made_for = f"CUDA {build.cuda}" if build.cuda else "CPUs"
    nccl = f", NCCL {build.nccl}" if build.nccl else ""
    found = f"{build.version} for {made_for}{nccl}"
    verdict = build.judge(driver, capabilities)
    if verdict.why:
        return finding("torch", "fail", f"{found}: {verdict.why}", verdict.todo)
    return finding("torch", "ok", found)


def about_gpus(reading: Reading, driver: str) -> Iterator[Finding]:
    """Report the GPUs that answer, and the reason for each that is not fit for jobs."""
    if reading.error:
        yield finding("gpus", "fail", "the driver does not answer", reading.error)
    elif not reading.devices and not reading.num_silent:
        yield finding("gpus", "ok", "none: CPU slots are offered")
    else:
        names = ", ".join(sorted({device.name for device in reading.devices if device.name}))
        fit = [device for device in reading.devices if device.fault is None]
        found = f"{len(fit)} fit for jobs ({names}), driver {driver}"
        yield finding("gpus", "ok" if fit else "fail", found, "" if fit else "See the next lines.")
    for device in reading.devices:
        if device.fault is not None:
            yield finding(
                "gpus", "warn", f"{device.uuid}: {device.fault.health}", device.fault.reason
            )
    if reading.num_silent:
        yield finding(
            "gpus",
            "warn",
            f"{reading.num_silent} do not tell even their UUID",
            "Look for Xid in dmesg on the node, and reboot it.",
        )


def about_sight(build: TorchBuild, num_gpus: int) -> Finding:
    """Compare the GPUs that torch sees with those that the driver lists."""
    if build.num_gpus == num_gpus:
        return finding("cuda", "ok", f"torch sees all {num_gpus} GPUs")
    why = f": {build.error}" if build.error else ""
    return finding(
        "cuda",
        "fail" if build.num_gpus == 0 else "warn",
        f"torch sees {build.num_gpus} of {num_gpus} GPUs{why}",
        "See the line on torch; then CUDA_VISIBLE_DEVICES, and the rights on /dev/nvidia*.",
    )


def about_uvm(devices: Path) -> Finding:
    """Check the device that CUDA makes at its first use, which a sandboxed program cannot."""
    if (devices / "nvidia-uvm").exists():
        return finding("uvm", "ok", "/dev/nvidia-uvm is there")
    return finding(
        "uvm",
        "warn",
        "/dev/nvidia-uvm is not there: CUDA fails in a sandboxed program that comes first",
        LOAD_UVM,
    )


def about_locked_memory(limit: int, *, is_needed: bool) -> Finding:
    """Check the limit on locked memory (bytes) of this shell's user."""
    if limit == UNLIMITED:
        return finding("memlock", "ok", "locked memory is not limited")
    found = f"at most {limit / GIB:.2f} GiB of locked memory in this shell"
    if not is_needed:
        return finding("memlock", "ok", found)
    return finding(
        "memlock",
        "warn",
        f"{found}; InfiniBand and offloading to files need more",
        "Set LimitMEMLOCK=infinity in the worker's unit (docs/operate.md); for shells, memlock in "
        "/etc/security/limits.conf.",
    )


def about_compiler(*, has_gpus: bool) -> Finding:
    """Check the compiler and the headers that generated kernels need."""
    missing = why_no_compiler("cuda" if has_gpus else "cpu")
    if not missing:
        return finding("compiler", "ok", "jobs can compile kernels")
    return finding(
        "compiler",
        "warn",
        f"jobs that compile are refused here; missing: {missing}",
        "If jobs need it: apt install gcc g++ python3-dev (of the worker's Python version).",
    )


def _read_devices() -> Reading:
    nvml = Nvml()
    try:
        return nvml.read()
    finally:
        nvml.close()
