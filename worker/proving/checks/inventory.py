"""inventory: the GPUs, the driver and the tools of this node are what torch can use."""

from typing import Any

from core.wire.messages import Inventory
from strategies.plan.torch_builds import BuildVerdict, Capability, judge_build
from worker.gpus.torch_build import driver_and_capabilities
from worker.proving.bench import Bench
from worker.proving.finding import Finding, all_of


def look(bench: Bench) -> Finding:
    """Compare the worker's inventory with torch's view, in a process of its own."""
    seen = bench.measure("strategies.train.proving.devices")
    driver, installed = driver_and_capabilities()
    used = [capability_in(gpu["capability"]) for gpu in seen["gpus"]]
    build = judge_build(
        cuda=seen["cuda"] or None, hip=None, driver=driver, capabilities=used or installed
    )
    return judge(seen, bench.inventory, device=bench.device, build=build)


def capability_in(text: str) -> Capability:
    """Return the compute capability that is written as 8.0."""
    major, minor = text.split(".")
    return int(major), int(minor)


def judge(
    seen: dict[str, Any], inventory: Inventory, *, device: str, build: BuildVerdict
) -> Finding:
    """Return whether torch sees the inventory's GPUs and can compute on each of them; `build` is
    the judgement on torch's build."""
    gpus = seen["gpus"] if device == "cuda" else []
    wrong = []
    if device == "cuda" and build.why:
        wrong.append(f"{build.why}. {build.todo}")
    if device == "cuda" and not seen["is_available"]:
        if not build.why:
            wrong.append(f"torch {seen['torch']} sees no GPU; look at `nvidia-smi`")
    elif device == "cuda":
        ours = {gpu.uuid.removeprefix("GPU-"): gpu.name for gpu in inventory.gpus}
        torchs = {gpu["uuid"].removeprefix("GPU-"): gpu["name"] for gpu in gpus}
        wrong += [f"torch does not see {ours[uuid]} {uuid}" for uuid in ours.keys() - torchs.keys()]
        wrong += [
            f"the inventory lacks {torchs[uuid]} {uuid}" for uuid in torchs.keys() - ours.keys()
        ]
        wrong += [f"{gpu['name']} {gpu['uuid']}: {gpu['error']}" for gpu in gpus if gpu["error"]]
        if not seen["has_uvm"]:
            wrong.append("/dev/nvidia-uvm is missing; run nvidia-modprobe -u at boot")
    if inventory.no_compiler:
        wrong.append(inventory.no_compiler)
    what = f"{len(gpus)} GPUs" if device == "cuda" else f"{inventory.slots} CPU slots"
    well = f"torch {seen['torch']} computes on all {what}; generated kernels can be compiled."
    return all_of(wrong, well, {"gpus": float(len(gpus))})
