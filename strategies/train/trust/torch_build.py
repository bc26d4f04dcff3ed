"""Build of the installed torch and the GPUs that it sees, as JSON on standard output.

`python -m strategies.train.trust.torch_build`: a process of its own, because a process that has
loaded CUDA can start no others that use it.
"""

import json
import sys

import torch
import torch.distributed as dist


def describe() -> dict[str, object]:
    """Return the versions of torch and its parts, the number of visible GPUs, and CUDA's error."""
    error = ""
    if torch.version.cuda is not None:
        try:
            torch.cuda.init()  # type: ignore[no-untyped-call]
        except RuntimeError as raised:
            error = str(raised).strip().splitlines()[0]
    nccl = ()
    if dist.is_nccl_available():
        nccl = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
    return {
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "nccl": ".".join(map(str, nccl)),
        "num_gpus": 0 if error else torch.cuda.device_count(),
        "error": error,
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(describe()))
