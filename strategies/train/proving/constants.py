"""Memory of a rank before its model: the process itself, and each communicator. In GiB.

On a GPU it is what the driver says is in use beyond torch's allocator; on a CPU, resident memory.
"""

import gc
import os
from pathlib import Path

import torch
import torch.distributed as dist

from strategies.plan.estimates.memory import GIB
from strategies.train.mesh import leave
from strategies.train.proving.written import out_path, write

SIZE = 1 << 20  # numbers of an all-reduce: buffers of every protocol are allocated
PAGE = os.sysconf("SC_PAGE_SIZE")


def in_use(device: torch.device) -> int:
    """Return the bytes that this process and its libraries take, without torch's tensors."""
    if device.type == "cpu":
        gc.collect()
        return PAGE * int(Path("/proc/self/statm").read_text().split()[1])
    torch.cuda.synchronize(device)
    free, total = torch.cuda.mem_get_info(device)
    return total - free - torch.cuda.memory_reserved(device)


def measure(device: torch.device) -> dict[str, object]:
    """Return `process_gib`, and `communicator_gib`: the mean of the world's and of one more."""
    numbers = torch.ones(SIZE, device=device)
    torch.ones(64, 64, device=device) @ torch.ones(64, 64, device=device)
    process, communicator_gib = in_use(device), None
    if int(os.environ["WORLD_SIZE"]) > 1:
        on_gpu = device.type == "cuda"
        dist.init_process_group("nccl" if on_gpu else "gloo", device_id=device if on_gpu else None)
        groups = (None, dist.new_group())
        for group in groups:
            dist.all_reduce(numbers, group=group)
        communicator_gib = max(0.0, (in_use(device) - process) / GIB / len(groups))
    return {"process_gib": process / GIB, "communicator_gib": communicator_gib}


def main() -> None:
    """Measure on rank 0; the others take part."""
    out = out_path("strategies.train.proving.constants")
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    write(out, measure(device))
    leave()


if __name__ == "__main__":
    main()
