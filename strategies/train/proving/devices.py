"""torch's own view of this node: build, GPUs by UUID, and a product on each of them."""

from pathlib import Path

import torch

from strategies.train.proving.written import out_path, write


def look() -> dict[str, object]:
    """Return the view; a GPU that cannot multiply has an `error`."""
    return {
        "torch": torch.__version__,
        "cuda": torch.version.cuda or "",
        "is_available": torch.cuda.is_available(),
        "gpus": [gpu(index) for index in range(torch.cuda.device_count())],
        "has_uvm": Path("/dev/nvidia-uvm").exists(),
    }


def gpu(index: int) -> dict[str, object]:
    """Return one GPU, and the error of a small product on it."""
    found = torch.cuda.get_device_properties(index)
    error = ""
    try:
        ones = torch.ones(256, 256, device=torch.device("cuda", index))
        if float((ones @ ones).sum().item()) != 256.0**3:
            error = "a product of ones is wrong"
    except RuntimeError as failure:
        error = str(failure).splitlines()[0]
    return {
        "uuid": str(found.uuid),
        "name": found.name,
        "memory_gib": found.total_memory / 2**30,
        "capability": f"{found.major}.{found.minor}",
        "error": error,
    }


if __name__ == "__main__":
    write(out_path("strategies.train.proving.devices"), look())
