"""inventory: the GPUs, the driver and the tools of this node are what torch can use."""

from typing import Any

from core.wire.messages import Inventory
from worker.proving.bench import Bench
from worker.proving.finding import Finding, all_of


def look(bench: Bench) -> Finding:
    """Compare the worker's inventory with torch's view, in a process of its own."""
    seen = bench.measure("strategies.train.proving.devices")
    return judge(seen, bench.inventory, device=bench.device)


def judge(seen: dict[str, Any], inventory: Inventory, *, device: str) -> Finding:
    """Return whether torch sees the inventory's GPUs and can compute on each of them."""
    gpus = seen["gpus"] if device == "cuda" else []
    wrong = []
    if device == "cuda" and not seen["is_available"]:
        build = f"CUDA {seen['cuda']}" if seen["cuda"] else "no CUDA"
        wrong.append(
            f"torch {seen['torch']}, built for {build}, sees no GPU; install the build for this "
            "driver (docs/gpus.md)"
        )
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
